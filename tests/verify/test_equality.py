"""The equality rule against an obvious loop, and its losslessness by enumeration."""

from __future__ import annotations

import itertools
import math
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.compiled import compiled

from ssd_cluster.errors import NumericalError
from ssd_cluster.sampling.coupled import coupled_sample
from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.processors import RowParams, process
from ssd_cluster.types import Proposal, ProposalKind
from ssd_cluster.verify import Outcome, VerifyBatch, equality, match, verify

TOKENS = st.lists(st.integers(0, 2), max_size=5)


def by_loop(proposal: list[int], draws: list[int]) -> Outcome:
    kept = 0
    while kept < len(proposal) and proposal[kept] == draws[kept]:
        kept += 1
    return Outcome(kept, draws[kept])


@settings(max_examples=200, deadline=None)
@given(st.lists(TOKENS, max_size=6), st.data())
def test_match_equals_a_loop_on_ragged_batches(proposals: list[list[int]], data: st.DataObject) -> None:
    draws = [data.draw(st.lists(st.integers(0, 2), min_size=len(x) + 1, max_size=len(x) + 1)) for x in proposals]
    wanted = [by_loop(x, y) for x, y in zip(proposals, draws, strict=True)]
    assert match(proposals, [t for y in draws for t in y]) == wanted


def test_match_by_hand() -> None:
    assert match([(), (4, 5), (4, 5), (4, 5)], [9, 4, 5, 6, 4, 6, 5, 5, 5, 5]) == [
        Outcome(0, 9),
        Outcome(2, 6),
        Outcome(1, 6),
        Outcome(0, 5),
    ]
    assert match([], []) == []
    with pytest.raises(ValueError, match="3 draws needed, got 2"):
        match([(1, 2)], [1, 2])


def test_a_token_outside_the_vocabulary_is_never_kept() -> None:
    assert match([(-1, 1), (2**31, 1)], [0, 1, 2, 0, 1, 2]) == [Outcome(0, 0), Outcome(0, 0)]


VOCABULARY = 3
LENGTH = 7


def logits_after(tokens: tuple[int, ...]) -> torch.Tensor:
    """A toy target: logits depend on every token before."""
    generator = torch.Generator().manual_seed(zlib.crc32(bytes(tokens)))
    return torch.randn(VOCABULARY, generator=generator) * 1.5


class Sequence:
    """One choice of the toy target, decoded by rounds of any proposals."""

    def __init__(self, seed: int, params: RowParams, prompt: tuple[int, ...] = (1,)) -> None:
        self.params = params
        self.noise = NoiseSource(seed, VOCABULARY)
        self.tokens = prompt
        self.prompt_len = len(prompt)

    @property
    def output(self) -> tuple[int, ...]:
        return self.tokens[self.prompt_len :][:LENGTH]

    def rows(self, proposal: tuple[int, ...]) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        logits = torch.stack([logits_after(self.tokens + proposal[:t]) for t in range(len(proposal) + 1)])
        positions = range(len(self.tokens), len(self.tokens) + len(proposal) + 1)
        noise = [None if self.params.greedy else self.noise.row(p) for p in positions]
        return process(logits, [self.params] * len(noise)), noise

    def plain_step(self) -> None:
        probs, noise = self.rows(())
        self.tokens += tuple(coupled_sample(probs, noise).tolist())

    def commit(self, proposal: tuple[int, ...], outcome: Outcome) -> None:
        self.tokens += (*proposal[: outcome.kept], outcome.next_token)


def run_rounds(sequence: Sequence, proposal: tuple[int, ...], kind: ProposalKind) -> list[int]:
    """Decode with the same proposal in every round; returns the kept lengths."""
    kept = []
    while len(sequence.output) < LENGTH:
        probs, noise = sequence.rows(proposal)
        (outcome,) = verify(VerifyBatch([Proposal(len(sequence.tokens), proposal, kind)], probs, noise))
        sequence.commit(proposal, outcome)
        kept.append(outcome.kept)
    return kept


@pytest.mark.parametrize("params", [RowParams(0.0), RowParams(0.7), RowParams(1.0), RowParams(1.0, top_k=2, top_p=0.8)])
def test_any_proposal_leaves_the_text_of_plain_sampling(params: RowParams) -> None:
    """Every proposal of up to three tokens over a vocabulary of three, in every round, for several seeds."""
    kept_lengths = set()
    texts = set()
    for seed in (-1, 0, 1, 2**63):
        plain = Sequence(seed, params)
        for _ in range(LENGTH):
            plain.plain_step()
        texts.add(plain.output)
        for n in range(4):
            for proposal in itertools.product(range(VOCABULARY), repeat=n):
                kind = ProposalKind.COUPLED if n else ProposalKind.NONE
                speculative = Sequence(seed, params)
                kept_lengths.update(run_rounds(speculative, proposal, kind))
                assert speculative.output == plain.output
    assert kept_lengths == {0, 1, 2, 3}
    assert (len(texts) == 1) == params.greedy


def test_text_does_not_depend_on_batch_mates() -> None:
    params = [RowParams(1.0), RowParams(0.0), RowParams(0.7), RowParams(1.0)]
    alone = [Sequence(seed, p) for seed, p in enumerate(params)]
    for sequence in alone:
        for _ in range(LENGTH):
            sequence.plain_step()
    together = [Sequence(seed, p) for seed, p in enumerate(params)]
    for round_ in range(LENGTH):
        proposals, probs, noise = [], [], []
        for i, sequence in enumerate(together):
            n = (round_ + i) % 4
            tokens = alone[i].tokens[len(sequence.tokens) :][:n] if i % 2 else tuple(range(n % VOCABULARY))
            proposals.append(Proposal(len(sequence.tokens), tokens, ProposalKind.DELTA))
            row_probs, row_noise = sequence.rows(tokens)
            probs.append(row_probs)
            noise.extend(row_noise)
        outcomes = equality(VerifyBatch(proposals, torch.cat(probs), noise))
        for sequence, proposal, outcome in zip(together, proposals, outcomes, strict=True):
            sequence.commit(proposal.tokens, outcome)
    assert [s.output for s in together] == [s.output for s in alone]


def test_perfect_proposals_are_kept_whole_and_greedy_equals_one_hot_noise() -> None:
    for params in (RowParams(0.0), RowParams(1.0)):
        plain, speculative = Sequence(5, params), Sequence(5, params)
        for _ in range(4):
            plain.plain_step()
        proposal = plain.output[:3]
        probs, noise = speculative.rows(proposal)
        batch = VerifyBatch([Proposal(1, proposal, ProposalKind.COUPLED)], probs, noise)
        assert equality(batch) == [Outcome(3, plain.output[3])]
        if params.greedy:
            noisy = VerifyBatch(batch.proposals, probs, NoiseSource(9, VOCABULARY).rows(range(4)))
            assert equality(noisy) == equality(batch)


def test_unusable_logits_are_an_error() -> None:
    probs = process(torch.full((1, 3), math.nan), [RowParams(1.0)])
    with pytest.raises(NumericalError):
        equality(VerifyBatch([Proposal(0)], probs, NoiseSource(0, 3).rows([0])))


@pytest.mark.parametrize("params", [RowParams(0.0), RowParams(1.0), RowParams(0.7, top_p=0.9)])
def test_compiled_functions_say_the_same(params: RowParams) -> None:
    generator = torch.Generator().manual_seed(1)
    probs = process(torch.randn(12, VOCABULARY, generator=generator) * 3, [params] * 12)
    source = NoiseSource(8, VOCABULARY)
    noise = [None if params.greedy else source.row(p) for p in range(12)]
    drawn = coupled_sample(probs, noise).tolist()
    proposals = [Proposal(b, tuple(drawn[4 * b : 4 * b + b]) + (-7,) * (3 - b)) for b in range(3)]
    outcomes = [Outcome(b, drawn[4 * b + b]) for b in range(3)]
    for kernels in (None, compiled()):
        assert equality(VerifyBatch(proposals, probs, noise, kernels=kernels)) == outcomes


def test_a_row_behind_the_first_difference_is_not_needed() -> None:
    probs = process(torch.tensor([[0.0, 9.0, 0.0], [math.nan] * 3]), [RowParams(0.0)] * 2)
    assert equality(VerifyBatch([Proposal(0, (2,))], probs, [None, None])) == [Outcome(0, 1)]
    with pytest.raises(NumericalError):
        equality(VerifyBatch([Proposal(0, (1,))], probs, [None, None]))
