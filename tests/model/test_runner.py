"""A loaded model: every way to cut the same tokens into forwards gives the same logits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.model import load, random_tokens, run_whole
from support.tiny import make_checkpoint, perturb

from ssd_cluster.config import Device, DType, ModelSettings
from ssd_cluster.errors import CheckpointError, ConfigError
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan
from ssd_cluster.model.kv import SequenceBlocks
from ssd_cluster.model.runner import ModelRunner, load_runner

TOLERANCE = 5e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tiny"), family="qwen3", layers=2)


@pytest.fixture(params=["off", "auto"])
def runner(folder: Path, request: pytest.FixtureRequest) -> ModelRunner:
    """In torch alone, and with compiled kernels where a compiler is installed."""
    return load(folder, tail_slots=8, tail_depth=4, cpu_kernels=request.param)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_chunked_prefill_equals_whole(runner: ModelRunner, chunk: int) -> None:
    tokens = random_tokens(130)
    blocks = SequenceBlocks(runner.pool)
    parts = []
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        blocks.ensure(start + len(part))
        parts.append(runner.forward(ForwardBatch([CausalSpan(part, start, blocks.table)])))
        blocks.advance(part)
    close(torch.cat(parts), run_whole(runner, tokens))


def test_ragged_batch_equals_each_sequence_alone(runner: ModelRunner) -> None:
    sequences = [random_tokens(n, seed=n) for n in (1, 50, 17, 33)]
    expected = [run_whole(runner, tokens) for tokens in sequences]
    starts, tables = (0, 45, 10, 0), []
    for tokens, start in zip(sequences, starts, strict=True):
        table = runner.pool.allocate(4)
        tables.append(table)
        if start:
            runner.forward(ForwardBatch([CausalSpan(tokens[:start], 0, table, start)]))
    batch = ForwardBatch(
        [
            CausalSpan(tokens[start:], start, table)
            for tokens, start, table in zip(sequences, starts, tables, strict=True)
        ]
    )
    close(runner.forward(batch), torch.cat([rows[start:] for rows, start in zip(expected, starts, strict=True)]))


def test_scattered_blocks_equal_a_run(runner: ModelRunner) -> None:
    tokens = random_tokens(60)
    expected = run_whole(runner, tokens)
    close(runner.forward(ForwardBatch([CausalSpan(tokens, 0, [9, 3, 4, 1])])), expected)
    runner.forward(ForwardBatch([CausalSpan(tokens[:50], 0, [9, 3, 4, 1], 50)]))
    close(runner.forward(ForwardBatch([CausalSpan(tokens[50:], 50, [9, 3, 4, 1])])), expected[50:])


def test_shared_prefix_blocks_give_the_same_logits(runner: ModelRunner) -> None:
    tokens = random_tokens(70)
    expected = run_whole(runner, tokens)
    first = SequenceBlocks(runner.pool)
    first.ensure(len(tokens))
    runner.forward(ForwardBatch([CausalSpan(tokens, 0, first.table)]))
    first.advance(tokens)
    second = SequenceBlocks(runner.pool)
    cached = second.attach_prefix(tokens)
    assert cached == 64
    second.ensure(len(tokens))
    assert second.table[:4] == first.table[:4]
    close(runner.forward(ForwardBatch([CausalSpan(tokens[cached:], cached, second.table)])), expected[cached:])


def test_only_wanted_rows_come_back_in_span_order(runner: ModelRunner) -> None:
    tokens = random_tokens(20)
    rows = run_whole(runner, tokens)
    tables = [runner.pool.allocate(2) for _ in range(3)]
    batch = ForwardBatch([CausalSpan(tokens, 0, table, cut) for table, cut in zip(tables, (19, 20, 15), strict=True)])
    logits = runner.forward(batch)
    assert len(logits) == batch.n_logits == 6
    close(logits, torch.cat([rows[19:], rows[15:]]))
    none = runner.forward(ForwardBatch([CausalSpan(tokens, 0, tables[0], 20)]))
    assert none.shape == (0, 320)
    assert none.dtype == torch.float32
    assert runner.forward(ForwardBatch([])).shape == (0, 320)


def test_rejected_tokens_are_overwritten(runner: ModelRunner) -> None:
    tokens = random_tokens(40)
    table = runner.pool.allocate(4)
    runner.forward(ForwardBatch([CausalSpan(tokens[:30], 0, table)]))
    runner.forward(ForwardBatch([CausalSpan(random_tokens(8, seed=9), 30, table)]))
    close(runner.forward(ForwardBatch([CausalSpan(tokens[30:], 30, table)])), run_whole(runner, tokens)[30:])


def test_tree_rows_equal_each_branch_run_as_its_own_sequence(runner: ModelRunner) -> None:
    """Branches leave one prefix at different points, join at different steps, and share forwards with a causal span."""
    prefix = random_tokens(37)
    table = runner.pool.allocate(3)
    runner.forward(ForwardBatch([CausalSpan(prefix, 0, table)]))
    visible, born = [37, 35, 37, 30], [0, 0, 1, 2]
    branches = [random_tokens(4, seed=seed) for seed in range(4)]
    slots = runner.tails.allocate(4)
    other, other_table = random_tokens(12, seed=8), runner.pool.allocate(1)
    got: dict[tuple[int, int], torch.Tensor] = {}
    for step in range(4):
        rows = [branch for branch in range(4) if born[branch] <= step]
        depths = [step - born[branch] for branch in rows]
        span = TreeSpan(
            [branches[branch][depth] for branch, depth in zip(rows, depths, strict=True)],
            table,
            [visible[branch] for branch in rows],
            [slots[branch] for branch in rows],
            depths,
        )
        causal = CausalSpan(other[3 * step : 3 * step + 3], 3 * step, other_table)
        logits = runner.forward(ForwardBatch([causal, span]))
        for row, key in enumerate(zip(rows, depths, strict=True)):
            got[key] = logits[3 + row]
        close(logits[:3], run_whole(runner, other)[3 * step : 3 * step + 3])
    assert len(got) == 4 + 4 + 3 + 2
    for (branch, depth), row in got.items():
        alone = run_whole(runner, prefix[: visible[branch]] + branches[branch][: depth + 1])
        close(row, alone[-1])
    close(runner.forward(ForwardBatch([CausalSpan(prefix[36:], 36, table)])), run_whole(runner, prefix)[36:])


@pytest.mark.parametrize("cpu_kernels", ["off", "auto"])
def test_bfloat16_takes_every_kind_of_span(folder: Path, cpu_kernels: str) -> None:
    runner = load(folder, tail_slots=2, tail_depth=2, dtype=DType.BFLOAT16)
    tokens = random_tokens(20)
    spans = [CausalSpan(tokens, 0, [3, 1]), TreeSpan([5, 6], [3, 1], [20, 18], [0, 1], [0, 0])]
    runner.forward(ForwardBatch(spans[:1]))
    logits = runner.forward(ForwardBatch(spans))
    exact = load(folder, tail_slots=2, tail_depth=2)
    exact.forward(ForwardBatch(spans[:1]))
    expected = exact.forward(ForwardBatch(spans))
    assert logits.isfinite().all()
    assert torch.corrcoef(torch.stack([logits.flatten(), expected.flatten()]))[0, 1] > 0.99


def test_reduced_head_names_target_ids(folder: Path, tmp_path: Path) -> None:
    full = load(folder)
    assert full.output_ids is None
    perturb(folder, tmp_path, noise=0.0)
    tensors = load_file(tmp_path / "model.safetensors")
    ids = torch.tensor([7, 300, 2, 45])
    tensors |= {"lm_head_ids": ids, "lm_head.weight": tensors["lm_head.weight"][ids].clone()}
    save_file(tensors, tmp_path / "model.safetensors")
    reduced = load(tmp_path)
    assert reduced.output_ids is not None
    assert reduced.output_ids.tolist() == ids.tolist()
    tokens = random_tokens(10)
    close(run_whole(reduced, tokens), run_whole(full, tokens)[:, ids])


def test_max_context_is_the_smallest_limit(folder: Path) -> None:
    assert load(folder).max_context == 512
    assert load(folder, max_context=100).max_context == 100
    assert load(folder, kv_tokens=250).max_context == 240
    with pytest.raises(ConfigError, match="max_context 513 is more than the 512"):
        load(folder, max_context=513)


def test_sliding_window_is_refused_unless_the_context_fits_it(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, family="mistral", config={"sliding_window": 128})
    with pytest.raises(CheckpointError, match=r"sliding-window attention over 128 tokens.* at most 128"):
        load(folder)
    assert load(folder, max_context=128).max_context == 128


def test_span_beyond_the_context_is_refused(folder: Path) -> None:
    runner = load(folder, max_context=16)
    with pytest.raises(ValueError, match="position 16 is beyond the context of 16 tokens"):
        runner.forward(ForwardBatch([CausalSpan([5] * 17, 0, [0, 1])]))


def test_token_outside_the_vocabulary_is_refused(runner: ModelRunner) -> None:
    for token in (320, -1):
        with pytest.raises(ValueError, match="vocabulary"):
            runner.forward(ForwardBatch([CausalSpan([5, token], 0, [0])]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 1}, "model.layers.1.* feature that the decoder does not have"),
        ({"intermediate_size": 100}, r"mlp.gate_proj.weight has shape \[128, 64\], config.json asks for \[100, 64\]"),
        ({"model_type": "llama"}, "[qk]_norm.weight belongs to a feature"),
    ],
)
def test_config_that_does_not_fit_the_tensors_is_named(
    folder: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    perturb(folder, tmp_path, noise=0.0)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("ids", [[1, 1], [320], [-1], []])
def test_wrong_reduced_head_ids_are_refused(folder: Path, tmp_path: Path, ids: list[int]) -> None:
    perturb(folder, tmp_path, noise=0.0)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"lm_head_ids": torch.tensor(ids, dtype=torch.int64)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="lm_head_ids"):
        load(tmp_path)


def test_hash_names_the_weights(folder: Path, tmp_path: Path) -> None:
    assert load(folder).model_hash == load(folder).model_hash
    assert load(folder).model_hash != load(perturb(folder, tmp_path)).model_hash


def test_closed_runner_refuses(runner: ModelRunner) -> None:
    runner.close()
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.forward(ForwardBatch([]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_without_a_device_is_a_clear_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no CUDA device"):
        load_runner(ModelSettings(path=str(folder), device=Device.CUDA))
