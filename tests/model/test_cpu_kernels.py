"""When compiled kernels run, and that a model without them says so and runs all the same."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from ssd_kernels.backends import KernelUnavailable
from ssd_kernels.cpu import PagedAttention
from support.attention import config, memory
from support.compiled import compiled
from support.model import load, random_tokens, run_whole
from support.tiny import make_checkpoint

from ssd_cluster.config import DType, ModelSettings, TargetSettings
from ssd_cluster.errors import ConfigError
from ssd_cluster.model import cpu_kernels as chosen
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan
from ssd_cluster.model.compiled_attention import FEW_ROWS, CompiledAttention, agrees
from ssd_cluster.model.row_ops import CompiledRowOps, EagerRowOps
from ssd_cluster.model.runner import ModelRunner
from ssd_cluster.model.sdpa import SdpaAttention

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SETTINGS = ModelSettings(path="some/model")


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "_checked", chosen._checked.__wrapped__)


def test_chosen_on_the_cpu_unless_switched_off() -> None:
    compiled()
    assert chosen.cpu_kernels(SETTINGS, torch.bfloat16, CPU) is not None
    assert chosen.cpu_kernels(SETTINGS, torch.bfloat16, CUDA) is None
    assert chosen.cpu_kernels(SETTINGS.model_copy(update={"cpu_kernels": "off"}), torch.bfloat16, CPU) is None


def test_attention_is_compiled_for_sdpa_and_head_sizes_that_fit() -> None:
    kernels = compiled()
    for kept, head_dim, expected in (
        (kernels, 16, CompiledAttention),
        (kernels, 24, SdpaAttention),
        (None, 16, SdpaAttention),
    ):
        arguments = memory(config(head_dim=head_dim))
        assert type(chosen.attention("sdpa", kept, *arguments)) is expected
    assert type(chosen.row_ops(kernels)) is CompiledRowOps
    assert type(chosen.row_ops(None)) is EagerRowOps


def test_without_a_compiler_the_model_runs_in_torch_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_checkpoint(tmp_path / "model")
    tokens = random_tokens(40)
    expected = run_whole(load(folder, cpu_kernels="off"), tokens)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SSD_CLUSTER_CACHE", str(tmp_path / "cache"))
    with caplog.at_level(logging.WARNING):
        assert torch.equal(run_whole(load(folder), tokens), expected)
    assert "without compiled CPU kernels: there is no C compiler (cc) on the path" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_that_computes_otherwise_is_not_used(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = compiled()
    assert agrees(kernels, dtype)
    right = PagedAttention.attend

    def otherwise(self: PagedAttention, layer: int, q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor) -> None:
        right(self, layer, q, kv, out)
        out[2] += 0.5

    monkeypatch.setattr(PagedAttention, "attend", otherwise)
    assert not agrees(kernels, dtype)
    assert chosen.cpu_kernels(SETTINGS, dtype, CPU) is None


def test_kernels_that_compute_otherwise_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled()
    monkeypatch.setattr(CompiledRowOps, "gate", lambda self, joined: joined[:, ::2])
    with caplog.at_level(logging.WARNING):
        assert chosen.cpu_kernels(SETTINGS, torch.float32, CPU) is None
    assert "something else than torch" in caplog.text


def test_a_library_that_cannot_be_built_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = compiled()
    outcomes = iter([KernelUnavailable("no room"), kernels])

    def make(folder: Path) -> object:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(chosen, "CpuKernels", make)
    assert chosen.cpu_kernels(SETTINGS, torch.float32, CPU) is None
    assert chosen.cpu_kernels(SETTINGS, torch.float32, CPU) is kernels


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    folder = make_checkpoint(tmp_path_factory.mktemp("tiny"), family="qwen3", head_dim=32)
    compiled()
    return load(folder, tail_slots=8, tail_depth=4)


def test_a_span_has_the_same_logits_alone_and_in_a_batch(runner: ModelRunner) -> None:
    """To the bit, in float32: verification does not depend on who else is served, prefill included."""
    tables = [runner.pool.allocate(n) for n in (4, 6, 3, 5)]
    for table, n in zip(tables, (50, 40, 20, 30), strict=True):
        runner.forward(ForwardBatch([CausalSpan(random_tokens(n, seed=n), 0, table, n)]))
    spans = [
        CausalSpan(random_tokens(6, seed=1), 50, tables[0]),
        CausalSpan(random_tokens(FEW_ROWS + 9, seed=2), 40, tables[1]),
        TreeSpan(random_tokens(3, seed=3), tables[2], [20, 18, 20], [4, 1, 7], [0, 0, 0]),
        CausalSpan(random_tokens(1, seed=4), 30, tables[3]),
    ]
    together = runner.forward(ForwardBatch(list(spans)))
    alone = torch.cat([runner.forward(ForwardBatch([span])) for span in spans])
    for table in tables:
        runner.pool.free(table)
    assert torch.equal(together, alone)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_int8_weights_are_near_the_checkpoint_and_independent_of_the_batch(dtype: DType, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, hidden=128, kv_heads=4)
    compiled()
    tokens = random_tokens(60)
    plain, rounded = load(folder, dtype=dtype), load(folder, dtype=dtype, weights="int8")
    exact = run_whole(plain, tokens)
    assert 0 < (run_whole(rounded, tokens) - exact).norm() / exact.norm() < 0.1
    assert rounded.model_hash == plain.model_hash + "-int8"
    tables = [rounded.pool.allocate(3) for _ in range(3)]
    spans = [CausalSpan(random_tokens(n, seed=n), 0, table) for n, table in zip((1, 5, 9), tables, strict=True)]
    together = rounded.forward(ForwardBatch(list(spans)))
    alone = torch.cat([rounded.forward(ForwardBatch([span])) for span in spans])
    assert torch.equal(together, alone)
    steps = [rounded.forward(ForwardBatch([CausalSpan([token], i, tables[0])])) for i, token in enumerate(tokens[:8])]
    verified = rounded.forward(ForwardBatch([CausalSpan(tokens[:8], 0, tables[1])]))
    assert torch.equal(torch.cat(steps), verified)


def test_tiles_verify_in_bfloat16_what_steps_would_have_given(tmp_path: Path) -> None:
    if not compiled().tiles:
        pytest.skip("this processor has no AMX tiles")
    model = load(make_checkpoint(tmp_path, hidden=96, kv_heads=4), dtype=DType.BFLOAT16)
    tables = [model.pool.allocate(3) for _ in range(2)]
    tokens = random_tokens(12)
    steps = [model.forward(ForwardBatch([CausalSpan([token], i, tables[0])])) for i, token in enumerate(tokens)]
    verified = model.forward(ForwardBatch([CausalSpan(tokens, 0, tables[1])]))
    assert torch.equal(torch.cat(steps), verified)
    assert not torch.equal(verified, verified.bfloat16().float()), "logits are sums, not rounded to where they tie"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"device": "cuda"}, "need device cpu"),
        ({"cpu_kernels": "off"}, "cpu_kernels auto"),
        ({"tensor_parallel": 2}, "need tensor_parallel 1"),
    ],
)
def test_int8_weights_are_refused_where_they_cannot_run(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        ModelSettings(path="some/model", weights="int8", **settings)


def test_int8_weights_without_a_compiler_are_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_checkpoint(tmp_path / "model")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SSD_CLUSTER_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match="install a C compiler or use weights dtype"):
        load(folder, weights="int8")


def test_a_draft_may_leave_int8_to_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_checkpoint(tmp_path / "model")
    rounded, chosen, plain = load(folder, weights="int8"), load(folder, weights="auto"), load(folder)
    assert chosen.model_hash == rounded.model_hash != plain.model_hash
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SSD_CLUSTER_CACHE", str(tmp_path / "cache"))
    assert load(folder, weights="auto").model_hash == plain.model_hash
    with pytest.raises(ValidationError, match="weights auto is for drafts"):
        TargetSettings(model=ModelSettings(path="some/model", weights="auto"))
