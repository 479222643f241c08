"""The trainable draft against the runner that serves it; its loss against plain loops."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.tiny import make_checkpoint

from ssd_cluster.config import DType, ModelSettings
from ssd_cluster.distill.agreement import Agreement
from ssd_cluster.distill.data import Batch, Batches
from ssd_cluster.distill.initialise import initialise
from ssd_cluster.distill.loss import head_loss, law_loss
from ssd_cluster.distill.norm import rms_norm
from ssd_cluster.distill.settings import DraftShape
from ssd_cluster.distill.shards import Document
from ssd_cluster.distill.student import Student
from ssd_cluster.model.batch import CausalSpan, ForwardBatch
from ssd_cluster.model.runner import load_runner


def document(tokens: list[int], m: int = 4, vocab: int = 320, seed: int = 0) -> Document:
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.permutation(vocab)[:m] for _ in tokens]).astype(np.int32)
    p = -np.sort(-rng.dirichlet(np.ones(m + 1), len(tokens))[:, :m], axis=1)
    has = rng.random(len(tokens)) < 0.8
    has[-1] = True
    return Document(np.array(tokens), ids, p.astype(np.float16), has)


def runner_logits(checkpoint: Path, tokens: list[int]) -> torch.Tensor:
    runner = load_runner(ModelSettings(path=str(checkpoint), dtype=DType.FLOAT32, kv_tokens=512))
    table = runner.pool.allocate(-(-len(tokens) // runner.pool.block_size))
    return runner.forward(ForwardBatch([CausalSpan(tokens, 0, table)]))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_same_logits_as_the_runner_and_saved_whole(family: str, tmp_path: Path) -> None:
    target = make_checkpoint(tmp_path / "target", family, layers=4, tie=family == "llama")
    head = np.sort(np.random.default_rng(0).permutation(320)[:100])
    initial = initialise(target, tmp_path / "initial", DraftShape(layers=(0, 3), head=100), head)
    student = Student(initial)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    student.save(tmp_path / "saved", torch.float32)
    texts = [[5, 9, 200, 31, 77, 4, 8], [100, 3, 17]]
    batches = Batches([document(t) for t in texts], head, 320, 64)
    batch = batches.batch([document(t) for t in texts])
    logits = student(batch)
    runner = torch.cat([runner_logits(tmp_path / "saved", t) for t in texts])
    flat = {0 * 7 + s: s for s in range(7)} | {1 * 7 + s: 7 + s for s in range(3)}
    expected = runner[[flat[int(row)] for row in batch.rows]]
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
    again = Student(tmp_path / "saved")
    torch.testing.assert_close(again(batch), logits)


def test_rows_are_shifted_by_one_and_ids_become_columns() -> None:
    head = np.array([3, 10, 11, 50])
    ids = np.array([[10, 3], [50, 4], [11, 10], [7, 50]], np.int32)
    p = np.array([[0.5, 0.25], [0.5, 0.25], [0.75, 0.125], [0.5, 0.25]], np.float16)
    first = Document(np.array([3, 50, 11, 9]), ids, p, np.array([True, False, True, True]))
    second = Document(np.array([10, 11]), ids[:2], p[:2], np.array([False, True]))
    batch = Batches([first, second], head, 60, 64).batch([first, second])
    assert batch.tokens.tolist() == [[3, 50, 11, 9], [10, 11, 0, 0]]
    assert batch.rows.tolist() == [1, 2, 4], "the law at position i is predicted at i - 1; position 0 has no row"
    assert batch.p.tolist() == [[0.75, 0.125], [0.0, 0.25], [0.5, 0.0]], "ids outside the head have no mass"
    assert batch.all_p.tolist() == [[0.75, 0.125], [0.5, 0.25], [0.5, 0.25]]
    kept = batch.columns[batch.p > 0].tolist()
    assert kept == [2, 1, 3, 3]
    assert batch.next_column.tolist() == [2, -1, 2]


def test_every_document_is_in_one_batch_of_bounded_size() -> None:
    rng = np.random.default_rng(3)
    documents = [document(list(range(n))) for n in rng.integers(2, 60, 50)]
    batches = Batches(documents, None, 320, 128)
    groups = batches.split()
    assert sorted(i for group in groups for i in group) == list(range(50))
    assert max(len(group) * max(len(documents[i]) for i in group) for group in groups) <= 128
    assert [b.tokens.tolist() for b in batches.epoch(1)] != [b.tokens.tolist() for b in batches.epoch(2)]


def test_norm_and_its_gradients_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, upstream = (torch.randn(*s, generator=generator) for s in ((3, 5, 16), (16,), (3, 5, 16)))
    results = []
    for norm in (lambda a, w: rms_norm(a, w, 1e-5), lambda a, w: F.rms_norm(a, (16,), w, 1e-5)):
        a, w = x.clone().requires_grad_(), weight.clone().requires_grad_()
        out = norm(a, w)
        out.backward(upstream)
        results.append((out.detach(), a.grad, w.grad))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def slow_loss(logits: list[list[float]], batch: Batch, cross_entropy: float) -> float:
    total = 0.0
    for row, z in enumerate(logits):
        norm = math.log(sum(math.exp(v) for v in z))
        for column, p in zip(batch.columns[row].tolist(), batch.p[row].tolist(), strict=True):
            total -= p * (z[column] - norm)
        following = int(batch.next_column[row])
        if following >= 0:
            total -= cross_entropy * (z[following] - norm)
    return total / len(logits)


def test_loss_and_gradient_against_loops() -> None:
    texts = [document([1, 2, 3, 4, 5, 60], vocab=80, seed=s) for s in range(2)]
    head = np.arange(0, 80, 3)
    batch = Batches(texts, head, 80, 64).batch(texts)
    logits = torch.randn(len(batch.rows), len(head), generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = law_loss(logits, batch, 0.3)
    assert float(loss.detach()) == pytest.approx(slow_loss(logits.tolist(), batch, 0.3), rel=1e-5)
    (2 * loss).backward()
    step = 1e-3
    for row, column in ((0, 0), (1, 5), (3, int(batch.columns[3, 0])), (2, int(batch.next_column[2].clamp_min(0)))):
        ends = []
        for sign in (1, -1):
            moved = logits.detach().clone()
            moved[row, column] += sign * step
            ends.append(slow_loss(moved.double().tolist(), batch, 0.3))
        assert logits.grad is not None
        assert float(logits.grad[row, column]) == pytest.approx(
            2 * (ends[0] - ends[1]) / (2 * step), rel=1e-3, abs=1e-6
        )


def test_head_loss_is_the_loss_of_the_logits_with_its_gradients() -> None:
    """More rows than a block holds, and a weight on the loss as a caller may put one."""
    generator = torch.Generator().manual_seed(0)
    N, E, V, m = 300, 12, 40, 5
    p = torch.rand(N, m, generator=generator) / m
    p[torch.rand(N, m, generator=generator) < 0.3] = 0.0
    columns = torch.stack([torch.randperm(V, generator=generator)[:m] for _ in range(N)])
    following = torch.randint(-1, V, (N,), generator=generator)
    batch = Batch(columns, columns, columns, columns, p, p, following)
    hidden, head = torch.randn(N, E, generator=generator), torch.randn(V, E, generator=generator)
    results = []
    for loss_of in (lambda h, w: law_loss(h @ w.t(), batch, 0.2), lambda h, w: head_loss(h, w, batch, 0.2)):
        h, w = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        loss = loss_of(h, w)
        (3 * loss).backward()
        results.append((loss.detach(), h.grad, w.grad))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_agreement_on_a_case_worked_out_by_hand() -> None:
    ids = np.array([[0, 0], [0, 1], [2, 9], [9, 1]], np.int32)
    p = np.array([[0, 0], [0.5, 0.25], [0.75, 0.25], [0.5, 0.5]], np.float16)
    text = Document(np.array([0, 0, 2, 1]), ids, p, np.array([False, True, True, True]))
    batch = Batches([text], np.array([0, 1, 2, 3, 4, 5]), 10, 64).batch([text])
    q = torch.tensor(
        [[0.6, 0.1, 0.1, 0.1, 0.05, 0.05], [0.3, 0.25, 0.2, 0.1, 0.1, 0.05], [0.1, 0.5, 0.2, 0.1, 0.05, 0.05]]
    )
    agreement = Agreement()
    agreement.add(q.log(), batch)
    means = agreement.means()
    assert means["greedy_match"] == pytest.approx(1 / 3)
    assert means["top4"] == pytest.approx(2 / 3)
    assert means["in_head"] == pytest.approx(2 / 3)
    assert means["overlap"]["1"] == pytest.approx(((0.5 + 0.1) + 0.2 + 0.5) / 3, rel=1e-3)
    hot = q ** (1 / 0.7) / (q ** (1 / 0.7)).sum(1, keepdim=True)
    law = [[0.5, 0.25], [0.75, 0.25], [0.5, 0.5]]
    heated = [[v ** (1 / 0.7) / sum(w ** (1 / 0.7) for w in row) for v in row] for row in law]
    shares = [
        min(heated[0][0], float(hot[0, 0])) + min(heated[0][1], float(hot[0, 1])),
        min(heated[1][0], float(hot[1, 2])),
        min(heated[2][1], float(hot[2, 1])),
    ]
    assert means["overlap"]["0.7"] == pytest.approx(sum(shares) / 3, rel=1e-3)
