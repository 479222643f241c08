"""One session on the draft: its text, its pages, how it samples, and the work in progress for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ssd_cluster.draft.builds import Build, ChainBuild, TreeBuild
from ssd_cluster.draft.pages import SessionPages
from ssd_cluster.draft.sampler import SessionSampling
from ssd_cluster.draft.transcript import Round, Transcript, common_prefix
from ssd_cluster.link.messages import NackCode, Next, Open
from ssd_cluster.types import ProposalKind

if TYPE_CHECKING:
    from ssd_cluster.draft.table import Peer

_EARLY_MARGIN = 2.0
_KINDS = (ProposalKind.COUPLED, ProposalKind.DELTA)


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
        carried = self._carried()
        room = self.max_len - self.base_len
        if round_.next is Next.WAIT:
            limit = min(round_.k, room)
            if limit <= 0:
                return None
            chain = ChainBuild(self.base_len, limit, round_.deadline_s, self.stop_ids)
            chain.extend(carried)
            return chain
        if round_.rows == 0 or round_.k == 0 or room < 2:
            return None
        agreed = common_prefix(carried, round_.proposal)
        seed = (agreed, carried[agreed], tuple(carried[agreed + 1 :])) if agreed < len(carried) else None
        due_s = round_.due_s - _EARLY_MARGIN * self.peer.early_s
        return TreeBuild(self.base_len, round_.proposal, round_.k, round_.rows, due_s, self.stop_ids, seed)

    def _carried(self) -> list[int]:
        """Tokens that the draft itself drew to follow the committed text, left over from the old build."""
        build = self.build
        if build is None:
            return []
        tail = self.tokens[build.base_len :]
        if isinstance(build, ChainBuild):
            fits = build.tokens[: len(tail)] == tail
            return build.tokens[len(tail) :] if fits else []
        for branch in build.branches or ():
            path = [*build.proposal[: branch.k], branch.t_star, *branch.tokens]
            if branch.k < len(tail) <= len(path) and path[: len(tail)] == tail:
                return path[len(tail) :]
        return []

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


def check_open(message: Open, context: int, vocabulary: int) -> tuple[NackCode, str] | None:
    """Why an Open cannot be served, or None.

    Args:
        message: what the target asks for.
        context: most positions of the draft.
        vocabulary: number of valid ids.
    """
    if not message.tokens:
        return NackCode.BAD_TOKEN, "a session needs at least one token"
    if min(message.tokens) < 0 or max(message.tokens) >= vocabulary:
        return NackCode.BAD_TOKEN, f"token ids must be below {vocabulary}"
    if len(message.tokens) >= context:
        return NackCode.TOO_LONG, f"{len(message.tokens)} tokens do not fit the draft's context of {context}"
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
