"""One session on the draft: its text, its pages, how it samples, and the work in progress for it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ssd_cluster.draft.builds import Build, ChainBuild, TreeBuild
from ssd_cluster.draft.laws import LawRow, LawShelf
from ssd_cluster.draft.pages import SessionPages
from ssd_cluster.draft.sampler import SessionSampling
from ssd_cluster.draft.transcript import Round, Transcript, common_prefix
from ssd_cluster.link.laws import law_bytes
from ssd_cluster.link.messages import NackCode, Next, Open
from ssd_cluster.types import RATIO_KINDS, ProposalKind

if TYPE_CHECKING:
    from ssd_cluster.draft.table import Peer

_EARLY_MARGIN = 2.0
_KINDS = (ProposalKind.COUPLED, ProposalKind.DELTA, *RATIO_KINDS)


@dataclass(slots=True, eq=False)
class Session:
    """State of one session.

    Attributes:
        peer: the stream it came on; it lives no longer than that.
        id, epoch: as the target named them.
        kind: what it builds.
        priority: sessions of lower priority are refused first.
        stop_ids: tokens after which nothing follows.
        lengths: kept lengths to serve; empty means all.
        max_len: no token is drafted at or beyond this position.
        k_max: of a longer proposal only so many tokens are run and guessed after.
        transcript: committed text and current round.
        sampling: law and noise of its draws.
        pages: KV pages; None before the first step and after an eviction.
        build: work for the current round, also when it is done; None if there is none.
        block_seq: number of blocks pushed.
        ratio_rounds: trees and chains started in ratio mode: the round word of the next one's draws.
        shelf: in ratio mode the builds whose laws may still be asked for.
        renewed_s: clock time of the newest round.
        ended: everything was freed; the object is no longer in the table.
    """

    peer: Peer
    id: int
    epoch: int
    kind: ProposalKind
    priority: int
    stop_ids: frozenset[int]
    lengths: frozenset[int]
    max_len: int
    k_max: int
    transcript: Transcript
    sampling: SessionSampling
    pages: SessionPages | None = None
    build: Build | None = None
    block_seq: int = 0
    ratio_rounds: int = 0
    shelf: LawShelf = field(default_factory=LawShelf)
    renewed_s: float = 0.0
    ended: bool = False

    @property
    def tokens(self) -> list[int]:
        """Committed tokens."""
        return self.transcript.tokens

    @property
    def base_len(self) -> int:
        return len(self.transcript.tokens)

    @property
    def valid(self) -> int:
        """Committed positions with keys and values in the pages."""
        return self.pages.valid if self.pages is not None else 0

    @property
    def backlog(self) -> int:
        """Committed tokens before the last one that are not in the pages."""
        return self.base_len - 1 - self.valid

    @property
    def horizon(self) -> range:
        """Positions whose noise this round and the next one may want."""
        round_ = self.transcript.round
        stop = self.base_len + len(round_.proposal) + 2 * (round_.k + 1)
        return range(self.base_len, min(stop, self.max_len))

    def cacheable(self, block_size: int) -> tuple[int, ...]:
        """The committed tokens that the prefix cache can share."""
        return tuple(self.tokens[: (self.base_len - 1) // block_size * block_size])

    def next_build(self) -> Build | None:
        """Work for the current round; what the old work drew already is carried over where it still fits.

        Call after a commit was applied and before the old build is dropped.
        """
        round_ = self.transcript.round
        room = self.max_len - self.base_len
        if round_.next is Next.WAIT:
            limit = min(round_.k, room)
            if limit <= 0:
                return None
            chain = ChainBuild(self.base_len, limit, round_.deadline_s, self.stop_ids, ratio_round=self._ratio_round())
            chain.extend(*(self._carried() if chain.ratio_round is None else self._untouched()))
            return chain
        if round_.rows == 0 or round_.k == 0 or room < 2:
            return None
        due_s = round_.due_s - _EARLY_MARGIN * self.peer.early_s
        tree = TreeBuild(self.base_len, round_.proposal, round_.k, round_.rows, due_s, self.stop_ids)
        tree.ratio_round = self._ratio_round()
        if tree.ratio_round is None:
            carried, _ = self._carried()
            agreed = common_prefix(carried, round_.proposal)
            tree.seed = (agreed, carried[agreed], tuple(carried[agreed + 1 :])) if agreed < len(carried) else None
        return tree

    def _ratio_round(self) -> int | None:
        """A fresh round word in ratio mode: draws that a verification may have looked at are never used again."""
        if self.sampling.laws is None:
            return None
        self.ratio_rounds += 1
        return self.ratio_rounds - 1

    def _untouched(self) -> tuple[list[int], list[LawRow]]:
        """In ratio mode: what was drafted behind the outcome that has just come, for a target that waits for a chain.

        Only this may be carried over. A target that waits has not verified the branch that its outcome names, so these
        tokens are draws from their laws still. Tokens behind a place where a verification stopped are not: what is left
        of a proposal is there because the rule rejected before it, and a branch that is entered further down was
        selected by its tokens. Drawn again with fresh noise they are unbiased; kept, they would not be.
        """
        build = self.build
        if isinstance(build, TreeBuild):
            tail = self.tokens[build.base_len :]
            for branch in build.branches or ():
                if [*build.proposal[: branch.k], branch.t_star] == tail:
                    return branch.tokens, branch.laws
        return [], []

    def _carried(self) -> tuple[list[int], list[LawRow]]:
        """Tokens that the draft itself drew to follow the committed text, left over from the old build; no laws."""
        build = self.build
        if build is None:
            return [], []
        tail = self.tokens[build.base_len :]
        if isinstance(build, ChainBuild):
            fits = build.tokens[: len(tail)] == tail
            return (build.tokens[len(tail) :] if fits else []), []
        for branch in build.branches or ():
            path = [*build.proposal[: branch.k], branch.t_star, *branch.tokens]
            if branch.k < len(tail) <= len(path) and path[: len(tail)] == tail:
                return path[len(tail) :], []
        return [], []

    def glue_proposal(self) -> Sequence[int]:
        """Tokens to run behind the last committed one, so that every usable kept length gets its row.

        Nothing follows a stop id, and an outcome whose t* would be the last token before ``max_len`` leads nowhere.
        """
        build = self.build
        if build is None:
            return ()
        if isinstance(build, ChainBuild):
            return build.tokens
        proposal = build.proposal[: max(0, min(self.k_max, self.max_len - self.base_len - 2))]
        for index, token in enumerate(proposal):
            if token in self.stop_ids:
                return proposal[:index]
        return proposal


@dataclass(frozen=True, slots=True)
class OpenLimits:
    """What a draft can serve: positions, valid ids, drafted tokens per branch, bytes of a law (None: any)."""

    context: int
    vocabulary: int
    k_max: int
    law_bytes: int | None


def check_open(message: Open, limits: OpenLimits, kinds: Collection[ProposalKind]) -> tuple[NackCode, str] | None:
    """Why an Open cannot be served, or None.

    Args:
        message: what the target asks for.
        limits: of the draft.
        kinds: what the target said it verifies; ratio kinds among them only if it was found in our trust domain.
    """
    context, vocabulary = limits.context, limits.vocabulary
    if not message.tokens:
        return NackCode.BAD_TOKEN, "a session needs at least one token"
    if min(message.tokens) < 0 or max(message.tokens) >= vocabulary:
        return NackCode.BAD_TOKEN, f"token ids must be below {vocabulary}"
    if len(message.tokens) >= context:
        return NackCode.TOO_LONG, f"{len(message.tokens)} tokens do not fit the draft's context of {context}"
    if message.kind in RATIO_KINDS:
        refusal = _check_laws(message, limits, kinds)
        if refusal is not None:
            return NackCode.MISMATCH, refusal
    if message.kind not in _KINDS:
        return NackCode.MISMATCH, f"this draft does not build proposals of kind {message.kind}"
    lawful = (
        math.isfinite(message.temperature)
        and message.temperature >= 0
        and 0 < message.top_p <= 1
        and message.top_k >= 0
    )
    if not lawful:
        return NackCode.MISMATCH, "temperature, top_k or top_p is out of range"
    return None


def _check_laws(message: Open, limits: OpenLimits, kinds: Collection[ProposalKind]) -> str | None:
    if message.kind not in kinds:
        return f"this target did not say in Hello that it verifies kind {message.kind}"
    if message.kind is ProposalKind.SPARSE and message.top_m < 1:
        return "a sparse law needs top_m of at least 1"
    if not 0 <= message.saguaro_c <= 1 or message.saguaro_f < 0:
        return "saguaro_c or saguaro_f is out of range"
    size = law_bytes(message.kind, min(message.k, limits.k_max), limits.vocabulary, message.top_m)
    if limits.law_bytes is not None and size > limits.law_bytes:
        return f"laws of {message.k} tokens take {size} bytes, more than the {limits.law_bytes} of a frame"
    return None


def open_session(
    peer: Peer, message: Open, now: float, *, context: int, k_max: int, sampling: SessionSampling
) -> Session:
    """A session from an Open that passed ``check_open``; its first round guesses the first output token."""
    first = Round(Next.NONE, (), max(0, min(message.k, k_max)), max(0, message.rows), now, math.inf)
    return Session(
        peer=peer,
        id=message.session,
        epoch=message.epoch,
        kind=message.kind,
        priority=message.priority,
        stop_ids=frozenset(message.stop_ids),
        lengths=frozenset(message.lengths),
        max_len=min(message.max_len, context),
        k_max=k_max,
        transcript=Transcript(list(message.tokens), first),
        sampling=sampling,
        renewed_s=now,
    )
