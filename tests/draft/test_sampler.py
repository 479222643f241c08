"""Draws of mixed batches against one row at a time through process and the race of the sampling room."""

from __future__ import annotations

import pytest
import torch

from ssd_cluster.draft.sampler import DrawRow, RowSampler, SessionSampling
from ssd_cluster.link.messages import Open
from ssd_cluster.sampling.coupled import coupled_sample, coupled_scores, top_guesses
from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.processors import RowParams, process
from ssd_cluster.types import ProposalKind

V = 500
PADDED = 512
REDUCED = torch.arange(3, V + 6, 7)  # the last id is beyond the vocabulary
LAWS = ((0.0, 0, 1.0), (1.0, 0, 1.0), (0.6, 0, 1.0), (1.0, 20, 1.0), (0.8, 0, 0.7), (1.3, 40, 0.9))


def open_with(temperature: float, top_k: int, top_p: float, seed: int, kind: ProposalKind) -> Open:
    return Open(1, 1, (1, 2), kind, temperature, seed, top_k, top_p, (), 100, 4, 8)


def reference(logits: torch.Tensor, row: DrawRow, message: Open, ids: torch.Tensor | None) -> tuple[int, list[int]]:
    """(drawn id, guessed ids) of one row."""
    greedy = message.temperature == 0 or message.kind is ProposalKind.DELTA
    valid = ids[ids < V] if ids is not None else torch.arange(V)
    columns = logits[: len(valid)][None]
    params = RowParams() if greedy else RowParams(message.temperature, message.top_k, message.top_p)
    noise = [None] if greedy else [NoiseSource(message.seed, V).row(row.position)[valid]]
    probs = process(columns, [params])
    scores = columns if greedy else coupled_scores(probs, noise)
    (best,) = top_guesses(scores, row.guesses, [row.exclude], valid)
    return int(valid[int(coupled_sample(probs, noise)[0])]), list(best.ids)


@pytest.mark.parametrize("ids", [None, REDUCED], ids=["full head", "reduced head"])
def test_mixed_batch_equals_row_by_row(ids: torch.Tensor | None) -> None:
    generator = torch.Generator().manual_seed(0)
    columns = PADDED if ids is None else len(ids)
    sampler = RowSampler(V, columns, ids, torch.device("cpu"), noise_rows=16)
    rows, messages = [], []
    for seed, law in enumerate(LAWS):
        for kind in (ProposalKind.COUPLED, ProposalKind.DELTA):
            message = open_with(*law, seed, kind)
            sampling = sampler.session(message)
            for position, guesses in ((5, 0), (6, 9), (5, 4)):
                exclude = frozenset({10, 17, 24}) if guesses else frozenset()
                rows.append(DrawRow(sampling, position, guesses, exclude))
                messages.append(message)
    order = torch.randperm(len(rows), generator=generator).tolist()
    rows, messages = [rows[i] for i in order], [messages[i] for i in order]
    logits = 3 * torch.randn(len(rows), columns, generator=generator)
    if ids is None:
        logits[:, V:] = 100.0
    else:
        logits[:, -1] = 100.0
    drawn = sampler.draw(logits, rows)
    for i, row in enumerate(rows):
        token, guesses = reference(logits[i], row, messages[i], ids)
        assert (drawn.ids[i], drawn.guesses[i]) == ((-1, guesses) if row.guesses else (token, []))


def test_no_rows() -> None:
    sampler = RowSampler(V, PADDED, None, torch.device("cpu"), 4)
    assert sampler.draw(torch.empty(0, PADDED), []).ids == []


def test_noise_is_drawn_ahead_once_and_forgotten_below_the_text() -> None:
    sampler = RowSampler(V, PADDED, None, torch.device("cpu"), 4)
    sampling = sampler.session(open_with(1.0, 0, 1.0, 5, ProposalKind.COUPLED))
    assert [sampling.prefetch(range(3, 6)) for _ in range(4)] == [True, True, True, False]
    assert torch.equal(sampling.gumbel(4), -NoiseSource(5, V).row(4).log())
    sampling.discard_below(5)
    assert [sampling.prefetch(range(3, 6)) for _ in range(3)] == [True, True, False]
    sampling.discard_below()
    assert sampling.prefetch(range(5, 6))


def test_greedy_sessions_have_no_noise() -> None:
    sampler = RowSampler(V, PADDED, None, torch.device("cpu"), 4)
    sampling: SessionSampling = sampler.session(open_with(0.0, 0, 1.0, 5, ProposalKind.COUPLED))
    assert not sampling.prefetch(range(3, 6))
    with pytest.raises(ValueError, match="argmax"):
        sampling.exponential(3)
