"""Token trees in one forward with an ancestor mask: nodes see their own path, and a kept path becomes the sequence."""

from __future__ import annotations

import pytest
import torch
from support.model import load, run_whole
from support.tiny import make_checkpoint

from ssd_cluster.model.batch import CausalSpan, ForwardBatch, MaskedSpan
from ssd_cluster.model.runner import ModelRunner

PROMPT = [3, 17, 40, 5, 61, 23, 9]
TOKENS = [11, 7, 29, 30, 7, 51, 8]
PARENTS = [-1, 0, 0, 1, 2, 4, 1]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    folder = make_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    return load(folder, block_size=4)


def path_to(node: int) -> list[int]:
    nodes = []
    while node >= 0:
        nodes.append(node)
        node = PARENTS[node]
    return nodes[::-1]


def scattered(runner: ModelRunner) -> list[int]:
    """Blocks that are no ascending run."""
    blocks = runner.pool.allocate(9)
    runner.pool.free(blocks[::2])
    return blocks[1::2][::-1]


@pytest.mark.parametrize("pieces", [[7], [1, 6], [1, 2, 4]])
def test_every_node_sees_the_sequence_and_its_ancestors(runner: ModelRunner, pieces: list[int]) -> None:
    table = scattered(runner)
    start = len(PROMPT)
    runner.forward(ForwardBatch([CausalSpan(PROMPT, 0, table, start)]))
    rows, ran = [], 0
    for n in pieces:
        span = MaskedSpan(TOKENS[ran : ran + n], start, table, PARENTS[: ran + n])
        ran += n
        rows.append(runner.forward(ForwardBatch([span])))
    for node, row in enumerate(torch.cat(rows)):
        wanted = run_whole(runner, PROMPT + [TOKENS[i] for i in path_to(node)])[-1]
        torch.testing.assert_close(row, wanted, atol=2e-4, rtol=1e-4)
    path = path_to(5)
    runner.keep(table, start, path)
    kept = PROMPT + [TOKENS[i] for i in path]
    row = runner.forward(ForwardBatch([CausalSpan([19], len(kept), table)]))[0]
    torch.testing.assert_close(row, run_whole(runner, [*kept, 19])[-1], atol=2e-4, rtol=1e-4)
    runner.pool.free(table)


def test_masked_spans_run_run_whole(runner: ModelRunner) -> None:
    table = runner.pool.allocate(4)
    span = MaskedSpan([1], 0, table, [-1])
    with pytest.raises(ValueError, match="not beside other spans"):
        runner.forward(ForwardBatch([span, CausalSpan([1], 0, table)]))
    runner.pool.free(table)
