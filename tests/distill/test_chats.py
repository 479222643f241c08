"""Lanes against the engine's own runner, and the conversations that the target writes in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny import EOS, make_checkpoint

from ssd_cluster.config import DType, ModelSettings
from ssd_cluster.distill.chats import ChatFrame, ChatWriter, Seeds
from ssd_cluster.distill.functions import function_prompts
from ssd_cluster.distill.lanes import LaneDecoder
from ssd_cluster.distill.settings import CollectSettings
from ssd_cluster.distill.shards import Document
from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.batch import CausalSpan, ForwardBatch
from ssd_cluster.model.runner import ModelRunner, load_runner
from ssd_cluster.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("chats") / "target", seed=5)


@pytest.fixture(scope="module")
def runner(target: Path) -> ModelRunner:
    return load_runner(ModelSettings(path=str(target), dtype=DType.FLOAT32, kv_tokens=2048))


def lane_decoder(target: Path, lanes: int = 2, width: int = 3, positions: int = 96) -> LaneDecoder:
    return LaneDecoder(ModelSettings(path=str(target), dtype=DType.FLOAT32), lanes, width, positions)


def whole_logits(runner: ModelRunner, tokens: list[int]) -> torch.Tensor:
    table = runner.pool.allocate(-(-len(tokens) // runner.pool.block_size))
    try:
        return runner.forward(ForwardBatch([CausalSpan(tokens, 0, table)]))
    finally:
        runner.pool.free(table)


def test_lanes_compute_what_the_runner_computes(target: Path, runner: ModelRunner) -> None:
    """Slots of two lanes at different lengths, some fed in pieces, one reused from its start."""
    decoder = lane_decoder(target)
    texts = {
        slot: torch.randint(0, 320, (30,), generator=torch.Generator().manual_seed(slot)).tolist() for slot in range(5)
    }
    fed = dict.fromkeys(texts, 0)
    for step in range(12):
        spans = []
        for slot in texts:
            n = 7 if (step + slot) % 5 == 0 else 1
            if (step == 3 and slot in (1, 4)) or fed[slot] + n > 30:
                continue
            if step == 6 and slot == 2:
                fed[slot] = 0
            spans.append(CausalSpan(texts[slot][fed[slot] : fed[slot] + n], fed[slot], [slot], logits_from=n - 1))
            fed[slot] += n
        logits = torch.cat(list(decoder.forward(spans)))
        for row, span in zip(logits, spans, strict=True):
            slot = span.block_table[0]
            torch.testing.assert_close(row, whole_logits(runner, texts[slot][: fed[slot]])[-1], rtol=1e-4, atol=1e-4)


def test_a_text_longer_than_the_lane_or_the_context_is_refused(target: Path) -> None:
    with pytest.raises(ValueError, match="beyond"):
        list(lane_decoder(target, positions=16).forward([CausalSpan([1, 2], 15, [0])]))
    with pytest.raises(CheckpointError, match="shorter prompts"):
        lane_decoder(target, positions=4096)


def settings(**changes: object) -> CollectSettings:
    base = {"prompt_tokens": 12, "answer_tokens": 20, "whole_prompt_tokens": 12, "top_m": 8}
    return CollectSettings.model_validate(base | changes)


def written(
    target: Path, seeds: Seeds, collect: CollectSettings, lanes: int, numbers: list[int]
) -> dict[int, list[Document]]:
    frame = ChatFrame.of(Tokenizer.load(target))
    return dict(ChatWriter(lane_decoder(target, lanes, 4), frame, seeds, collect, 3).write(numbers))


def test_frame_surrounds_the_users_text(target: Path) -> None:
    tokenizer = Tokenizer.load(target)
    frame = ChatFrame.of(tokenizer)
    assert tokenizer.decode(list(frame.before_prompt), skip_special_tokens=False) == "<|im_start|>user\n"
    after = tokenizer.decode(list(frame.after_prompt), skip_special_tokens=False)
    assert after == "<|im_end|>\n<|im_start|>assistant\n"
    assert frame.ends == {EOS}


def test_documents_hold_the_targets_own_laws_and_draws(target: Path, runner: ModelRunner) -> None:
    tokenizer = Tokenizer.load(target)
    opening, prompt = tuple(tokenizer.encode("the river")), tuple(tokenizer.encode("once upon"))
    frame = ChatFrame.of(tokenizer)
    collect = settings(temperatures=(0.0, 0.7, 0.0, 1.0))
    documents = [d for ds in written(target, Seeds([opening], [prompt]), collect, 2, [0, 1, 2]).values() for d in ds]
    assert len(documents) == 12
    kinds = set()
    for index, document in enumerate(documents):
        tokens = document.tokens.tolist()
        laws = whole_logits(runner, tokens).softmax(-1)
        top = laws.topk(8, dim=-1)
        for at in np.flatnonzero(document.has_law):
            assert document.law_ids[at].tolist() == top.indices[at - 1].tolist()
            np.testing.assert_allclose(document.law_p[at], top.values[at - 1].numpy(), rtol=2e-3, atol=1e-6)
        end = tokens.index(EOS) if EOS in tokens else len(tokens)
        body = tuple(tokens[len(frame.before_prompt) : end])
        assert tuple(tokens[: len(frame.before_prompt)]) == frame.before_prompt
        kinds.add("whole" if body == prompt else "begun" if body[: len(opening)] == opening else "own")
        answer = end + len(frame.after_prompt)
        assert tuple(tokens[end:answer]) == frame.after_prompt
        assert document.has_law[answer:].all()
        assert 0 < len(tokens) - answer <= 20
        if index % 4 in (0, 2):
            assert tokens[answer:] == document.law_ids[answer:, 0].tolist(), "temperature 0 takes the first"
    assert kinds == {"whole", "begun", "own"}


def test_a_lane_does_not_depend_on_what_runs_beside_it(target: Path) -> None:
    seeds = Seeds([(5, 6, 7), (40,)], [])
    alone = written(target, seeds, settings(), 1, [4])
    among = written(target, seeds, settings(), 2, [2, 3, 4, 5])
    assert sorted(among) == [2, 3, 4, 5]
    for a, b in zip(alone[4], among[4], strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
    assert alone[4][0].tokens.tolist() != among[5][0].tokens.tolist()


def test_a_lane_closes_when_few_of_its_chats_still_write(tmp_path: Path) -> None:
    """Answers end at random, about one token in ten ends a turn; the last eighth is cut short, all are kept."""
    ends = (EOS, *range(100, 132))
    target = make_checkpoint(tmp_path / "target", seed=5, eos=ends)
    collect = settings(temperatures=(1.0,), answer_tokens=80)
    frame = ChatFrame.of(Tokenizer.load(target))
    decoder = lane_decoder(target, 1, 32, 128)
    ((_, documents),) = ChatWriter(decoder, frame, Seeds([(5,)], []), collect, 0).write([0])
    assert len(documents) == 32
    cut_short = [d for d in documents if int(d.tokens[-1]) not in ends]
    assert len(cut_short) <= 3
    assert 0 < max(len(d) for d in documents) < 100


def test_function_prompts_are_heads_of_documented_functions(tmp_path: Path) -> None:
    code = '''
class Box:
    def fold(self, times: int) -> int:
        """Fold the box as often as asked and return how thick it has become."""
        return 2 ** times

    def bare(self):
        return 1

def only_a_docstring_and_nothing_else(first, second):
    """There is no body that could be written for this function."""
'''
    (tmp_path / "box.py").write_text(code)
    (tmp_path / "copy.py").write_text(code)
    (tmp_path / "broken.py").write_text("def (:")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "more.py").write_text(code.replace("fold", "tested"))
    (prompt,) = function_prompts(tmp_path)
    assert prompt == (
        "Complete this function.\n\ndef fold(self, times: int) -> int:\n"
        '    """Fold the box as often as asked and return how thick it has become."""\n'
    )
