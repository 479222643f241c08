"""One request being served and its choices: committed tokens, KV blocks, noise, text, proposal, and draft session."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from ssd_cluster.config import SpeculationSettings
from ssd_cluster.model.kv import SequenceBlocks
from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.processors import RowParams
from ssd_cluster.sampling.ratio_noise import RoundDraws
from ssd_cluster.speculation.ngram import NgramProposer
from ssd_cluster.target.finish import OutputState
from ssd_cluster.target.laws import ChoiceDraws
from ssd_cluster.target.request import Delta, Event, Finished, GenerationRequest, Sink, SpeculationStats
from ssd_cluster.target.session import Session
from ssd_cluster.types import RATIO_KINDS, FinishReason, Proposal

logger = logging.getLogger(__name__)

_ROUNDS_AHEAD = 3


def noise_rows(k: int) -> int:
    """Noise rows that a choice holds: those of a round of ``k`` tokens, and of the one behind it."""
    return 2 * k + 2


@dataclass(slots=True, eq=False)
class Choice:
    """One of the ``n`` outputs of a request.

    The keys and values of every committed token but the last are (or, after admission or preemption, become) valid in
    ``blocks``; ``pending`` counts the committed tokens that must still run. Decoding is the case ``pending`` = 1.

    Attributes:
        live: the request that this choice belongs to.
        index: 0..n-1.
        arrival: order of submission over all requests.
        tokens: prompt and output, committed.
        blocks: KV block table.
        output: finish logic and text.
        rows: how logits are processed: (while stop tokens are masked, after that).
        noise: equality noise; None at temperature 0.
        draws: randomness of ratio rules; None at temperature 0, and where no ratio rule is used.
        k: most tokens proposed per round, by settings and request; 0: this choice does not speculate.
        proposal: verified in the next round.
        session: handle on a draft session; None without speculation.
        ngram: index of the fallback proposer, made when first needed.
        admitted: has been in the running batch.
        ended: has had its last delta.
    """

    live: LiveRequest
    index: int
    arrival: int
    tokens: list[int]
    blocks: SequenceBlocks
    output: OutputState
    rows: tuple[RowParams, RowParams]
    noise: NoiseSource | None
    k: int
    proposal: Proposal
    draws: ChoiceDraws | None = None
    session: Session | None = None
    ngram: NgramProposer | None = None
    admitted: bool = False
    ended: bool = False

    @property
    def prompt_len(self) -> int:
        return len(self.live.request.prompt_token_ids)

    @property
    def max_len(self) -> int:
        """Committed length at which ``max_tokens`` ends the choice."""
        return self.prompt_len + self.live.request.params.max_tokens

    @property
    def n_left(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_len - len(self.tokens)

    @property
    def pending(self) -> int:
        """Committed tokens whose keys and values are not there yet."""
        return len(self.tokens) - self.blocks.length

    @property
    def order(self) -> tuple[int, int, int]:
        """Scheduling order, first comes first: higher priority, then earlier submission, then choice."""
        return (-self.live.request.priority, self.arrival, self.index)

    def retune(self, k: int) -> None:
        """Propose at most ``k`` tokens per round from now on; what is drawn at a position stays the same."""
        self.k = k
        if self.noise is not None:
            self.noise.capacity = max(self.noise.capacity, noise_rows(k))
        if self.draws is not None:
            self.draws.k = k
        if self.session is not None:
            terms = replace(self.session.terms, k=k)
            for session in self.session.group:
                session.terms = terms

    def draft_room(self) -> int:
        """Most tokens to propose next: one of those left is the target's own, and a draft must be told all of them."""
        k, session = self.k, self.session
        if session is not None and session.replica is not None:
            k = min(k, session.replica.k_max)
        if session is not None and session.limits is not None:
            k = min(k, session.limits.k)
        return max(0, min(k, self.n_left - 1))

    def row_params(self, position: int) -> RowParams:
        """How the row that draws the token at absolute ``position`` is processed."""
        masked = position - self.prompt_len < self.live.request.params.min_tokens
        return self.rows[0 if masked else 1]

    def take_draws(self) -> RoundDraws:
        """Fresh randomness of a ratio rule for the verification that happens now.

        Raises:
            ValueError: the choice is greedy or no ratio rule is configured, so nothing of a ratio kind is proposed.
        """
        if self.draws is None:
            raise ValueError("a choice without draws has no proposals of a ratio kind")
        return self.draws.take()

    def draw_next(self) -> None:
        """Draw the noise of the next verification before its forward ends, as far as the rule is known."""
        base, n = len(self.tokens), len(self.proposal.tokens)
        if self.draws is not None and (n == 0 or self.proposal.kind in RATIO_KINDS):
            self.draws.prepare()
            n_plain = 0 if n else 1
        else:
            n_plain = (n or self.draft_room()) + 1
        if self.noise is not None and n_plain:
            self.noise.discard_below(base)
            self.noise.prefetch(range(base, base + n_plain))

    def draw_ahead(self) -> bool:
        """Draw noise for one of the rounds after the next one, so that a hit then draws none; False if none lacks."""
        if self.ended or self.noise is None:
            return False
        if self.draws is not None:
            return self.draws.prepare(_ROUNDS_AHEAD)
        base = len(self.tokens)
        return self.noise.draw_missing(range(base, min(base + 2 * self.draft_room() + 2, self.max_len)))

    def fallback(self, settings: SpeculationSettings, k: int) -> Proposal:
        """N-gram proposal of at most ``k`` tokens from the choice's own text, or an empty one."""
        if self.ngram is None:
            self.ngram = NgramProposer(min_n=settings.ngram_min, max_n=settings.ngram_max)
        self.ngram.extend(self.tokens[len(self.ngram) :])
        return self.ngram.proposal(k)


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request from submission to its ``Finished`` event.

    Attributes:
        submitted_at, prefilled_at: seconds of the engine's clock; ``prefilled_at`` is None before the first token.
        cached_tokens: prompt tokens of choice 0 that the prefix cache had.
        dead: the sink has failed; nothing is sent any more.
    """

    request: GenerationRequest
    sink: Sink
    submitted_at: float
    choices: list[Choice] = field(default_factory=list)
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    prefilled_at: float | None = None
    cached_tokens: int = 0
    completion_tokens: int = 0
    unfinished: int = 0
    dead: bool = False

    def emit(self, event: Event) -> None:
        """Hand an event to the sink; a sink that raises is never called again."""
        if self.dead:
            return
        try:
            self.sink(event)
        except Exception:
            self.dead = True
            logger.exception("sink_failed request=%s", self.request.request_id)

    def emit_delta(
        self,
        choice: int,
        token_ids: tuple[int, ...],
        text: str,
        reason: FinishReason | None = None,
        stop_reason: str | int | None = None,
    ) -> None:
        """Emit new tokens of a choice."""
        self.completion_tokens += len(token_ids)
        self.emit(Delta(self.request.request_id, choice, token_ids, text, reason, stop_reason))

    def emit_finished(self, now: float, error: str | None = None) -> None:
        """Emit the last event."""
        prefilled = self.prefilled_at if self.prefilled_at is not None else now
        self.emit(
            Finished(
                self.request.request_id,
                len(self.request.prompt_token_ids),
                self.completion_tokens,
                self.cached_tokens,
                self.stats,
                prefilled - self.submitted_at,
                now - prefilled,
                error,
            )
        )
