"""One prompt continued under one rule, round after round; counts target calls and what they emitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from ssd_cluster.bench.rules.drafting import Columns, Drafter
from ssd_cluster.bench.rules.pair import LoadedPair
from ssd_cluster.bench.rules.sequence import ModelSequence, Path
from ssd_cluster.draft.laws import LawTerms
from ssd_cluster.errors import ConfigError, OutOfBlocks
from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.params import SEED_MASK
from ssd_cluster.sampling.processors import RowParams, process
from ssd_cluster.sampling.ratio_noise import DraftDraws, RoundDraws, ratio_key
from ssd_cluster.types import ProposalKind

_SECRET = 0x5DEECE66D
_DRAFT_SECRET = 0x2545F4914F6CDD1D


@dataclass(frozen=True, slots=True)
class Terms:
    """What a continuation depends on besides pair, prompt and rule.

    Attributes:
        temperature, top_p, top_k: of target and draft.
        k: tokens drafted per round, per draft.
        drafts: chains of a round, or width of its tree, for rules that take several.
        max_tokens: no round starts once so many tokens are there; the last round counts whole.
        seed: of the first prompt; prompt i has ``seed`` + i.
        kind: of proposals of ratio rules; ``top_m``: entries of a sparse law.
        c, f: SAGUARO.
        ignore_eos: go on behind end tokens.
    """

    temperature: float
    k: int
    max_tokens: int
    drafts: int = 1
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    kind: ProposalKind = ProposalKind.DENSE
    top_m: int = 64
    c: float = 1.0
    f: int = 4
    ignore_eos: bool = False

    @property
    def params(self) -> RowParams:
        return RowParams(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """How one round ended.

    Attributes:
        tokens: what it emits: kept tokens and what the target drew.
        kept: proposed tokens among them.
        proposed: tokens that could have been kept: the length of the chain, or the depth of the tree.
        calls: serial target forwards.
    """

    tokens: Path
    kept: int
    proposed: int
    calls: int = 1


@dataclass(slots=True)
class Round:
    """What a rule sees of a round.

    Attributes:
        target, draft: the two models behind the same committed tokens.
        draws: randomness of the ratio rules in this round.
        noise: the equality rule's noise; None for greedy rows.
        valid: ids from here on are padding.
        rule_s: seconds spent in processors and rule, of all rounds so far.
    """

    target: ModelSequence
    draft: Drafter
    terms: Terms
    draws: RoundDraws
    noise: NoiseSource | None
    valid: int
    rule_s: float = 0.0

    @property
    def base(self) -> int:
        return len(self.target.tokens)

    def probs(self, paths: list[Path]) -> Tensor:
        """Processed target rows behind ``paths``, float32 ``[n, V]``; one forward for those that were not run."""
        logits = self.target.logits(paths)
        with self.measured():
            return process(logits, [self.terms.params] * len(paths), self.valid)

    def shared(self, path: Path) -> Tensor | None:
        """The equality rule's noise of the token behind ``path``."""
        return None if self.noise is None else self.noise.row(self.base + len(path))

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Charge the time of a block to ``rule_s``."""
        began = time.perf_counter()
        yield
        self.rule_s += time.perf_counter() - began


RuleRound = Callable[[Round], RoundEnd]
Watcher = Callable[[Round, RoundEnd, bool], None]
"""Called with each round before its tokens are committed, and whether the text goes on behind it."""


@dataclass(slots=True)
class Continuation:
    """A prompt's continuation and its counts.

    ``kept_histogram[j]``: rounds that kept j proposed tokens. ``tokens``: as emitted, cut behind an end token.
    """

    tokens: list[int] = field(default_factory=list)
    rounds: int = 0
    calls: int = 0
    proposed: int = 0
    kept: int = 0
    kept_histogram: list[int] = field(default_factory=list)
    rule_s: float = 0.0
    seconds: float = 0.0

    def add(self, end: RoundEnd, emitted: Path) -> None:
        """Count one round."""
        self.tokens += emitted
        self.rounds += 1
        self.calls += end.calls
        self.proposed += end.proposed
        self.kept += end.kept
        self.kept_histogram += [0] * (end.kept + 1 - len(self.kept_histogram))
        self.kept_histogram[end.kept] += 1


def continue_prompt(
    pair: LoadedPair, prompt: list[int], seed: int, terms: Terms, rule: RuleRound, watch: Watcher | None = None
) -> Continuation:
    """Decode one prompt under one rule.

    Raises:
        ConfigError: prompt and answer do not fit the models.
    """
    began = time.perf_counter()
    state, stop_ids = _start(pair, prompt, seed, terms)
    result = Continuation()
    try:
        while len(result.tokens) < terms.max_tokens:
            state.draws = RoundDraws(state.draws.key, result.rounds, state.base, state.draws.vocabulary)
            end = rule(state)
            stop = next((i for i, token in enumerate(end.tokens) if token in stop_ids), None)
            emitted = end.tokens if stop is None else end.tokens[: stop + 1]
            result.add(end, emitted)
            if watch is not None:
                watch(state, end, stop is None)
            if stop is not None:
                break
            state.target.commit(emitted)
            state.draft.commit(emitted)
    finally:
        state.target.close()
        state.draft.sequence.close()
    result.rule_s, result.seconds = state.rule_s, time.perf_counter() - began
    return result


def _start(pair: LoadedPair, prompt: list[int], seed: int, terms: Terms) -> tuple[Round, frozenset[int]]:
    stop_ids = frozenset() if terms.ignore_eos else pair.stop_ids
    longest = terms.max_tokens + terms.k + 1
    if len(prompt) + longest > pair.max_context:
        raise ConfigError(f"a prompt of {len(prompt)} tokens and {longest} more do not fit the pair", param="prompts")
    room = longest + 1 + (terms.drafts + 1) * terms.k  # the last: nodes of a tree, and of what naive HSD resamples
    seed &= SEED_MASK
    width = pair.target.config.vocab_size
    draws = DraftDraws(ratio_key(_DRAFT_SECRET, seed), pair.draft_ids)
    law_terms = LawTerms(terms.kind, terms.top_m, terms.c, terms.f, draws)
    columns = Columns(pair.columns, pair.names, width)
    target = ModelSequence(pair.target, prompt, room)
    try:
        sequence = ModelSequence(pair.draft, prompt, room)
    except OutOfBlocks:
        target.close()
        raise
    # Sources of their own: each model asks for positions in its own order.
    shared = [None if terms.params.greedy else NoiseSource(seed, width) for _ in range(2)]
    draft = Drafter(sequence, columns, terms.params, law_terms, shared[0], stop_ids)
    first = RoundDraws(ratio_key(_SECRET, seed), 0, len(prompt), width)
    return Round(target, draft, terms, first, shared[1], pair.vocabulary), stop_ids
