"""Ratio mode on the target: the laws that a draft sends for what is verified, and the randomness of that verification.

Laws come as ``Law`` messages, after the tokens, while the forward runs. One counts only for the proposal whose
fingerprint it names. Without its law a proposal is verified as point masses (kind ``delta``), which is exact for tokens
of any origin: a draft that is late or wrong in form costs acceptance, not the text.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
import torch
from ssd_kernels.cpu import CpuKernels
from torch import Tensor

from ssd_cluster.errors import InvalidFrame
from ssd_cluster.link.laws import check_law, id_rows, probability_rows
from ssd_cluster.link.messages import CompleteLaw, Law
from ssd_cluster.link.stream import Inbox
from ssd_cluster.metrics import TargetMetrics
from ssd_cluster.sampling.ratio_noise import RoundDraws
from ssd_cluster.target.session import Session, SessionState
from ssd_cluster.target.times import RoundTimes
from ssd_cluster.types import RATIO_KINDS, Proposal, ProposalKind
from ssd_cluster.verify import DenseLaw, DraftLaw, SparseLaw

logger = logging.getLogger(__name__)

LONGEST_WAIT_S = 0.001
WAIT_SHARE = 0.05
"""A law that is not there when the forward ends is waited for: at most 1 ms, and 5 % of a verification."""


def law_of(message: Law, proposal: Proposal, known: int, columns: int, device: torch.device) -> DraftLaw:
    """The law in a message, for a proposal whose fingerprint it has.

    Args:
        message: from a peer.
        proposal: what is verified.
        known: ids that the tokenizer knows; a law has no others.
        columns: V of the target's rows, padding included.
        device: where the target's rows lie.

    Raises:
        InvalidFrame: it is malformed, or not one row per proposed token.
        ValueError: its rows are no laws.
    """
    if message.channel:
        raise InvalidFrame("a law of a tensor channel that was not asked for")
    check_law(message, known)
    check_fits(message, proposal)
    width = columns if message.kind is ProposalKind.DENSE else max(message.row_size, default=0)
    probabilities = np.zeros((len(proposal.tokens), width), dtype=np.float32)
    for row, values in zip(probabilities, probability_rows(message), strict=True):
        row[: values.shape[0]] = values
    q = torch.from_numpy(probabilities).to(device)
    if message.kind is ProposalKind.DENSE:
        return DenseLaw.validated(q, columns)
    ids = np.zeros(probabilities.shape, dtype=np.int64)
    for id_row, entries in zip(ids, id_rows(message), strict=True):
        id_row[: entries.shape[0]] = entries
    return SparseLaw.validated(torch.from_numpy(ids).to(device), q, columns)


def check_fits(message: Law, proposal: Proposal) -> None:
    """A law is for the tokens of a proposal.

    Raises:
        InvalidFrame: another kind, or not one row per proposed token.
    """
    if message.kind is not proposal.kind or len(message.row_size) != len(proposal.tokens):
        raise InvalidFrame("a law has another kind or another number of rows than its proposal")


def law_of_tensors(
    ids: Tensor | None, probabilities: Tensor, known: int, columns: int, device: torch.device
) -> DraftLaw:
    """As ``law_of``, of a tensor channel; nothing of the result shares memory with the arguments.

    Args:
        ids: int32 ``[n, m]`` of a sparse law; None: dense.
        probabilities: float32 ``[n, m]``; ``[n, known]`` at most for a dense law.
        known, columns, device: as for ``law_of``.
    """
    q = probabilities.to(device)
    if ids is not None:
        return SparseLaw.validated(ids.to(device, torch.int64), q, known)
    padded = q.new_zeros(q.shape[0], columns)
    padded[:, : q.shape[1]] = q
    return DenseLaw.validated(padded, columns)


class LawDesk:
    """Takes laws in, waits for the last ones, and counts what became of them.

    Args:
        known, columns, device: as for ``law_of``.
        metrics: counters.
    """

    def __init__(self, known: int, columns: int, device: torch.device, metrics: TargetMetrics) -> None:
        self._known = known
        self._columns = columns
        self.device = device
        self._metrics = metrics
        self._logged: set[str] = set()

    def read(self, ids: Tensor | None, probabilities: Tensor) -> DraftLaw | str:
        """The law that has come on a tensor channel, checked, or why it cannot be used; for any thread."""
        try:
            return law_of_tensors(ids, probabilities, self._known, self._columns, self.device)
        except ValueError as error:
            return str(error)

    def take(self, session: Session, message: Law) -> None:
        """A law for a live session has come."""
        proposal = session.inflight
        if message.fingerprint != proposal.fingerprint or proposal.kind not in RATIO_KINDS:
            self._metrics.link_dropped.labels("stale_law").inc()
            return
        try:
            session.law = self._usable(message, proposal)
        except (InvalidFrame, ValueError) as error:
            session.law_refused = True
            self._metrics.link_dropped.labels("bad_law").inc()
            self._log(str(error))

    def _usable(self, message: Law, proposal: Proposal) -> DraftLaw:
        if not isinstance(message, CompleteLaw):
            return law_of(message, proposal, self._known, self._columns, self.device)
        check_fits(message, proposal)
        if not isinstance(message.content, DraftLaw):
            raise InvalidFrame(str(message.content))
        return message.content

    def count(self, session: Session | None, law: DraftLaw | None, *, refused: bool) -> None:
        """Count one verified proposal of a ratio kind; ``refused``: its law gives a drafted token no probability."""
        if law is None:
            result = "refused" if session is not None and session.law_refused else "late"
        else:
            result = "refused" if refused else "used"
        if refused:
            self._log("a law gives no probability to a token that was drafted")
        self._metrics.laws.labels(result).inc()

    def _log(self, why: str) -> None:
        if why not in self._logged:
            self._logged.add(why)
            logger.warning("draft_law_refused reason=%r (logged once)", why)


def await_laws(
    sessions: Iterable[Session],
    inbox: Inbox,
    receive: Callable[[], None],
    times: RoundTimes,
    clock: Callable[[], float],
) -> None:
    """Wait a little for laws that are on their way, once the forward has ended.

    Args:
        sessions: those whose proposal is verified now.
        inbox: where messages arrive.
        receive: takes in what has arrived.
        times: measured T_v.
        clock: seconds, monotonic.
    """
    receive()
    missing = [session for session in sessions if _on_its_way(session)]
    if not missing:
        return
    deadline = clock() + min(LONGEST_WAIT_S, WAIT_SHARE * (times.verify_s or 0.0))
    while missing and (left := deadline - clock()) > 0 and inbox.wait(left):
        receive()
        missing = [session for session in missing if _on_its_way(session)]


def _on_its_way(session: Session) -> bool:
    if session.state is not SessionState.ATTACHED or session.law_refused:
        return False
    return session.inflight.kind in RATIO_KINDS and session.law is None


class ChoiceDraws:
    """Accept uniforms and residual noise of one choice, one fresh set per verification.

    The round word only grows, whatever happens to the choice or its draft session: what an earlier round has looked at
    is never drawn again. It also names a round's noise alone, so that sets can be drawn before it is known at which
    length they will be used; positions are counted from 0 in each.

    Args:
        key: ``ratio_key`` of the choice.
        k: most tokens of a proposal; may change between verifications.
        vocabulary: V, padding included.
        device: where rows lie.
        kernels: as for ``RoundDraws``.
    """

    def __init__(
        self, key: int, k: int, vocabulary: int, device: torch.device, kernels: CpuKernels | None = None
    ) -> None:
        self._key = key
        self.k = k
        self._vocabulary = vocabulary
        self._device = device
        self._kernels = kernels
        self._rounds = 0
        self._ready: deque[RoundDraws] = deque()

    def prepare(self, rounds: int = 1) -> bool:
        """Draw the set of one verification unless those of the next ``rounds`` are there; False if they are."""
        if len(self._ready) >= rounds:
            return False
        fresh = self._fresh()
        fresh.prefetch(self.k)
        self._ready.append(fresh)
        return True

    def take(self) -> RoundDraws:
        """The set of a verification that happens now."""
        return self._ready.popleft() if self._ready else self._fresh()

    def _fresh(self) -> RoundDraws:
        self._rounds += 1
        return RoundDraws(self._key, self._rounds - 1, 0, self._vocabulary, self._device, self._kernels)
