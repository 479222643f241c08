"""Training a tiny draft: it learns, stops early, and after an interruption goes on as if there had been none."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny import make_checkpoint

from ssd_cluster.config import DType, ModelSettings
from ssd_cluster.distill.chats import ChatFrame, ChatWriter, Seeds
from ssd_cluster.distill.data import Batch, Batches
from ssd_cluster.distill.initialise import frequent_ids, initialise
from ssd_cluster.distill.lanes import LaneDecoder
from ssd_cluster.distill.settings import CollectSettings, DistillSettings, DraftShape, TrainSettings
from ssd_cluster.distill.shards import OWN, Document
from ssd_cluster.distill.train import Trainer, split_documents
from ssd_cluster.errors import CheckpointError, SsdClusterError
from ssd_cluster.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("train") / "target", layers=3, tie=True)


@pytest.fixture(scope="module")
def documents(target: Path) -> Sequence[Document]:
    frame = ChatFrame.of(Tokenizer.load(target))
    decoder = LaneDecoder(ModelSettings(path=str(target), dtype=DType.FLOAT32), 2, 16, 64)
    collect = CollectSettings(prompt_tokens=6, answer_tokens=24, top_m=8, code_prompts=False)
    return [d for _, ds in ChatWriter(decoder, frame, Seeds([(9,)], []), collect, 0).write(range(4)) for d in ds]


@pytest.fixture(scope="module")
def initial(target: Path, documents: Sequence[Document], tmp_path_factory: pytest.TempPathFactory) -> Path:
    ids = frequent_ids(documents, 320, 128, (2,))
    return initialise(target, tmp_path_factory.mktemp("initial") / "draft", DraftShape(layers=(0, 2), head=128), ids)


def trainer(initial: Path, folder: Path, documents: Sequence[Document], lines: list[str], **train: object) -> Trainer:
    base = {"passes": 2, "batch_tokens": 256, "warmup_steps": 4, "evaluate_every": 5, "held_out": 0.1}
    settings = DistillSettings(
        target="unused",
        dtype=DType.FLOAT32,
        shape=DraftShape(layers=(0, 2), head=128),
        train=TrainSettings.model_validate(base | train),
    )
    return Trainer(settings, initial, folder, documents, lines.append)


def test_head_ids_are_the_ones_with_the_most_mass() -> None:
    ids = np.array([[5, 7], [7, 1], [9, 5]], np.int32)
    p = np.array([[0.5, 0.4], [0.6, 0.3], [0.9, 0.05]], np.float16)
    document = Document(np.array([0, 1, 2]), ids, p, np.array([True, True, False]))
    assert frequent_ids([document], 20, 3, (15,)).tolist() == [5, 7, 15]
    with pytest.raises(CheckpointError, match="larger than the target's vocabulary"):
        frequent_ids([document], 20, 21, ())


def test_it_learns_what_the_target_says(initial: Path, documents: Sequence[Document], tmp_path: Path) -> None:
    lines: list[str] = []
    trained = trainer(initial, tmp_path, documents, lines, passes=8, learning_rate=3e-3, evaluate_every=8)
    assert trained.run()
    history = trained.history
    assert history[-1]["loss"] < 0.8 * history[0]["loss"]
    assert history[-1]["greedy_match"] > history[0]["greedy_match"]
    assert trained.measure_best()["loss"] == pytest.approx(min(h["loss"] for h in history), rel=0.02)
    assert any("greedy match" in line for line in lines)


def test_interrupted_training_ends_like_an_uninterrupted_one(
    initial: Path, documents: Sequence[Document], tmp_path: Path
) -> None:
    whole = trainer(initial, tmp_path / "whole", documents, [])
    assert whole.run()
    calls, lines = 0, []
    while True:
        part = trainer(initial, tmp_path / "parts", documents, lines, max_minutes=1e-3)
        calls += 1
        if part.run():
            break
        assert calls < 200
    assert calls > 1
    assert any("going on from step" in line for line in lines)
    assert [h["loss"] for h in part.history] == [h["loss"] for h in whole.history]
    for (name, a), (_, b) in zip(whole.student.named_parameters(), part.student.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_scored_text_is_trained_on_in_the_first_passes_only(
    initial: Path, documents: Sequence[Document], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk = [Document(d.tokens, d.law_ids, d.law_p, d.has_law, "thing") for d in documents[:60]]
    sources: list[str] = []
    real = Batches.batch

    def record(batches: Batches, chosen: Sequence[Document]) -> Batch:
        sources.extend(d.source for d in chosen)
        return real(batches, chosen)

    monkeypatch.setattr(Batches, "batch", record)
    settings = {"passes": 3, "bulk_passes": 2, "evaluate_every": 1000}
    trained = trainer(initial, tmp_path, [*documents, *bulk], [], **settings)
    while not trained.run():
        pass
    held_out, training = split_documents(documents, 0.1, 1)
    assert sources.count("thing") == 2 * len(bulk)
    assert "thing" not in sources[-len(held_out) - len(training) :]
    assert sources.count(OWN) == 3 * len(training) + len(held_out)


def test_it_stops_early_and_keeps_the_best(initial: Path, documents: Sequence[Document], tmp_path: Path) -> None:
    """A step far too long makes every evaluation after the first ones worse."""
    trained = trainer(initial, tmp_path, documents, [], passes=40, learning_rate=0.5, patience=3, evaluate_every=1)
    assert trained.run()
    losses = [h["loss"] for h in trained.history]
    assert len(losses) < 40
    assert min(losses) == min(losses[:-3])
    assert trained.measure_best()["loss"] == pytest.approx(min(losses), rel=0.02)


def test_state_of_other_settings_is_refused(initial: Path, documents: Sequence[Document], tmp_path: Path) -> None:
    trainer(initial, tmp_path, documents, [], max_minutes=1e-6).run()
    with pytest.raises(SsdClusterError, match="other settings"):
        trainer(initial, tmp_path, documents, [], learning_rate=0.01).run()


def test_held_out_documents_are_not_trained_on_and_stay_held_out(documents: Sequence[Document]) -> None:
    held_out, training = split_documents(documents, 0.2, 1)
    assert 0.05 * len(documents) < len(held_out) < 0.4 * len(documents)
    assert len(held_out) + len(training) == len(documents)
    assert not {id(d) for d in held_out} & {id(d) for d in training}
    fewer = split_documents(documents[:30], 0.2, 1)[0]
    assert [id(d) for d in fewer] == [id(d) for d in held_out][: len(fewer)]
    assert [id(d) for d in split_documents(documents, 0.2, 2)[0]] != [id(d) for d in held_out]
    assert len(split_documents(documents, 1e-9, 1)[0]) == 1


def test_a_full_disk_stops_training_and_keeps_the_last_checkpoint(
    initial: Path, documents: Sequence[Document], tmp_path: Path
) -> None:
    """The system refuses files above some size, as a full disk would; what was saved before stays readable."""
    trainer(initial, tmp_path, documents, [], max_minutes=1e-6).run()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(SsdClusterError, match="Free space and run the command again"):
            trainer(initial, tmp_path, documents, [], evaluate_every=1).run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert {p.name for p in tmp_path.iterdir()} <= {"state.pt", "best"}
    lines: list[str] = []
    assert trainer(initial, tmp_path, documents, lines).run()
    assert "going on from step" in lines[0]
