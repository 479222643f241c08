"""Peers in transformers: the same models, the same greedy text, usage and times, in this process and in a worker."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny import make_checkpoint, perturb

from ssd_cluster.bench.engines import Worker
from ssd_cluster.bench.handle import Workload
from ssd_cluster.bench.local import LocalEngine
from ssd_cluster.bench.peers.settings import Method, PeerSettings
from ssd_cluster.bench.peers.transformers_model import TransformersPeer, load_model, widened
from ssd_cluster.bench.spec import PairOptions, engine_spec
from ssd_cluster.config import DType, SpeculationSettings
from ssd_cluster.types import Mode

WORK = Workload(prompts=("the river ran", "the river ran to the sea and the river ran"), max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A target, and a draft with a reduced head."""
    folder = tmp_path_factory.mktemp("pair")
    target = make_checkpoint(folder / "target")
    draft = perturb(target, folder / "draft", noise=0.03)
    tensors = load_file(draft / "model.safetensors")
    ids = torch.arange(1, 300, 2)
    tensors |= {"lm_head.weight": tensors["lm_head.weight"][ids].contiguous(), "lm_head_ids": ids}
    save_file(tensors, draft / "model.safetensors")
    return str(target), str(draft)


def settings(pair: tuple[str, str], method: Method, tokens: int | None = None) -> PeerSettings:
    draft = pair[1] if method is Method.ASSISTED else None
    return PeerSettings(method=method, target=pair[0], draft=draft, dtype=DType.FLOAT32, tokens=tokens)


def ours(pair: tuple[str, str]) -> list[int]:
    """Checksums of what our plain decoding says."""
    options = PairOptions(target=pair[0], draft=pair[1], speculation=SpeculationSettings(), dtype=DType.FLOAT32)
    spec = engine_spec(Mode.AR, options)
    model = spec.target.model.model_copy(update={"cores": None})
    with LocalEngine(spec.model_copy(update={"target": spec.target.model_copy(update={"model": model})})) as local:
        return [request.output_crc for request in local.driver.run(WORK).requests]


def test_every_method_says_what_plain_decoding_says(pair: tuple[str, str]) -> None:
    wanted = ours(pair)
    for method, tokens in ((Method.GENERATE, None), (Method.ASSISTED, 4), (Method.ASSISTED, None), (Method.LOOKUP, 4)):
        heard: list[int] = []
        record = TransformersPeer(settings(pair, method, tokens), heard.append).run(WORK)
        assert [request.output_crc for request in record.requests] == wanted, method
        assert max(heard) == 12
        for request in record.requests:
            assert request.completion_tokens == 12
            assert request.prompt_tokens > 5
            assert 1 <= request.first_tokens <= (5 if tokens else 12 if method is not Method.GENERATE else 1)
            assert 0 < request.submitted_s < request.first_token_s < request.finished_s


def test_draws_follow_the_seed(pair: tuple[str, str]) -> None:
    peer = TransformersPeer(settings(pair, Method.GENERATE), lambda tokens: None)
    warm = WORK.model_copy(update={"temperature": 1.0, "seed": 3})
    first, again, other = (
        [r.output_crc for r in peer.run(work).requests] for work in (warm, warm, warm.model_copy(update={"seed": 9}))
    )
    assert first == again != other
    with pytest.raises(ValueError, match="one prompt at a time"):
        peer.run(WORK.model_copy(update={"batch": 2}))


def test_a_reduced_head_is_widened(pair: tuple[str, str]) -> None:
    head = widened(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([3, 1]), 4)
    assert head.tolist() == [[0, 0], [3, 4], [0, 0], [1, 2]]
    rows = load_model(pair[1], torch.float32).lm_head.weight
    assert rows.shape[0] == 320
    assert rows[0].abs().sum() == 0 < rows[1].abs().sum()


def test_a_worker_answers(pair: tuple[str, str]) -> None:
    worker = Worker("ssd_cluster.bench.peers.worker", "peer", settings(pair, Method.LOOKUP, 4).model_dump(mode="json"))
    try:
        assert worker.info["transformers"]
        assert [request.output_crc for request in worker.run(WORK).requests] == ours(pair)
    finally:
        worker.close()
