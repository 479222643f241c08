"""What the draft tells its targets about its load, and when it sheds a session because it cannot keep up."""

from __future__ import annotations

import math

from ssd_cluster.config import DraftSettings
from ssd_cluster.draft.builds import TreeBuild
from ssd_cluster.draft.leases import LeaseBook
from ssd_cluster.draft.peaks import Peaks
from ssd_cluster.draft.session import Session
from ssd_cluster.draft.table import Peer, SessionTable
from ssd_cluster.draft.timing import StepTimer
from ssd_cluster.link.messages import Load, NackCode
from ssd_cluster.metrics import DraftMetrics

_WINDOW = 32


def count_traffic(peer: Peer, metrics: DraftMetrics) -> None:
    """Add what went over a peer's stream since the last call to the counters."""
    stream, old = peer.stream, peer.counted
    peer.counted = stream.bytes_sent, stream.bytes_received, stream.frames_dropped
    sent, received, invalid = (max(0, new - before) for new, before in zip(peer.counted, old, strict=True))
    metrics.link_bytes.labels("sent").inc(sent)
    metrics.link_bytes.labels("received").inc(received)
    metrics.invalid_frames.inc(invalid)


class LoadReporter:
    """Sends Load on change and at intervals, keeps gauges, and sheds sessions under lasting overload.

    Rows and depth are shed by the planner and the scheduler. When in spite of that most rounds end before anything was
    pushed for them although their rows were wanted (they had to wait for others in full steps), one session is refused.

    Args:
        table: peers and sessions.
        settings: credits and the interval.
        timer: step time.
        metrics: counters.
        leases: whose unused ones end in time; None: there are none.

    Attributes:
        lateness: share of recent rounds that ended before anything was pushed for them, 0 to 1.
        peaks: the longest that the draft's queues have been.
    """

    def __init__(
        self,
        table: SessionTable,
        settings: DraftSettings,
        timer: StepTimer,
        metrics: DraftMetrics,
        leases: LeaseBook | None = None,
    ) -> None:
        self.lateness = 0.0
        self.peaks = Peaks()
        self._leases = leases
        self._table = table
        self._settings = settings
        self._timer = timer
        self._metrics = metrics
        self._next = -math.inf
        self._rounds = 0
        self._starved = 0

    def next_in(self, now: float) -> float:
        """Seconds until a report is due."""
        return max(0.0, min(self._settings.load_interval_s, self._next - now))

    def superseded(self, session: Session) -> None:
        """A session's work is about to be replaced; count whether it ever got anywhere."""
        build = session.build
        if build is None:
            return
        self._rounds += 1
        pushed = build.pushed is not None if isinstance(build, TreeBuild) else build.pushed
        self.lateness += (float(not pushed) - self.lateness) / _WINDOW
        self._starved += build.passed_over and not pushed
        if self._rounds < _WINDOW:
            return
        if 2 * self._starved > self._rounds:
            self._shed()
        self._rounds = self._starved = 0

    def _shed(self) -> None:
        """Refuse the least wanted session of the target that holds most, by weight."""
        peers = [peer for peer in self._table.peers.values() if peer.sessions]
        if len(self._table) < 2:
            return
        heaviest = max(peers, key=lambda p: len(p.sessions) / self._table.weight(p.target_id))
        self._table.refuse(self._table.least_wanted(heaviest), NackCode.BUSY, "the draft is overloaded")

    def report(self, now: float, *, draining: bool) -> None:
        """Send Load to peers for whom it changed, and to all of them when the interval has passed."""
        unsent = max((peer.stream.unsent for peer in self._table.peers.values()), default=0)
        self.peaks.note(sessions=len(self._table), unsent=unsent)
        due = now >= self._next
        if due:
            self._next = now + self._settings.load_interval_s
            self._gauges()
            self._table.cool(now)
            if self._leases is not None:
                self._leases.expire()
        for peer in self._table.peers.values():
            if peer.incarnation is None:
                continue
            rows, sessions = self._table.row_credit(peer), self._table.session_credit(peer)
            old = peer.load
            if due or old is None or (old.row_credit, old.session_credit, old.draining) != (rows, sessions, draining):
                self._send(peer, rows, sessions, draining)

    def _send(self, peer: Peer, rows: int, sessions: int, draining: bool) -> None:
        wanted = sum(len(s.build.live) if isinstance(s.build, TreeBuild) else 1 for s in self._table.active)
        step = self._timer.predict(min(wanted, self._settings.max_step_rows)) if wanted else self._timer.predict(1)
        waiting = max(0, wanted - self._settings.max_step_rows) / self._settings.max_step_rows * step
        peer.load = Load(rows, sessions, queue_us=int(waiting * 1e6), step_us=int(step * 1e6), draining=draining)
        peer.send(peer.load)

    def _gauges(self) -> None:
        self._metrics.sessions.set(len(self._table))
        if not len(self._table):
            self.lateness = 0.0
        self._metrics.kv_usage.set(self._table.kv_usage)
        for peer in self._table.peers.values():
            count_traffic(peer, self._metrics)
