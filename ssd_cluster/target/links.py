"""Connections from a target to its draft replicas: connecting, Hello and Welcome, loss.

Connectors block, so each attempt runs on a helper thread; everything else happens on the engine thread. Pings and
silence are the business of the streams.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ssd_cluster.config import BreakerSettings, LinkSettings, TargetSettings
from ssd_cluster.errors import LinkClosed, LinkError
from ssd_cluster.link.handshake import first_difference
from ssd_cluster.link.messages import Hello, Load, Message, StreamClosed, Welcome
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.link.tensor.inlet import LawInlet
from ssd_cluster.metrics import TargetMetrics
from ssd_cluster.target.replica import Connector, DraftReplica, ReplicaState
from ssd_cluster.types import ProposalKind

logger = logging.getLogger(__name__)

Dialer = Callable[[str, Inbox], Stream]
"""Opens a stream to a draft at host:port, or raises ``LinkError``; blocks at most for its own deadline."""

_CHANNELS_S = 3.0
_IDLE_LINK_S = 30.0
_DEAD_LINK_S = 5.0


def greeting(settings: TargetSettings, tokenizer_hash: str, vocabulary: int, rng: random.Random) -> Hello:
    """What a target says of itself; its kinds hold a ratio kind only if it uses the draft's laws."""
    kind = settings.speculation.kind if settings.uses_laws else ProposalKind.COUPLED
    return Hello(
        target_id=f"{settings.name}-{rng.getrandbits(32):08x}",
        incarnation=rng.getrandbits(64),
        tokenizer_hash=tokenizer_hash,
        vocabulary=vocabulary,
        kinds=(kind, ProposalKind.DELTA),
        trust_domain=settings.trust_domain or "",
    )


class DraftLinks:
    """All draft replicas of one target: the given ones for good, and those that leases lead to while they do.

    Args:
        connectors: one per given replica.
        hello: what this target says first; the draft must match it.
        link: deadlines.
        breaker: settings of every replica's breaker.
        inbox: where the streams deliver.
        metrics: counters of this target.
        rng: jitter.
        inlet: takes out of ``inbox`` what belongs to tensor channels; None: laws travel over gRPC.
    """

    def __init__(
        self,
        connectors: Sequence[Connector],
        hello: Hello,
        link: LinkSettings,
        breaker: BreakerSettings,
        inbox: Inbox,
        metrics: TargetMetrics,
        rng: random.Random,
        inlet: LawInlet | None = None,
    ) -> None:
        self.replicas = [DraftReplica(f"draft-{i}", c, breaker, rng) for i, c in enumerate(connectors)]
        self._breaker = breaker
        self._rng = rng
        self._hello = hello
        self._settings = link
        self._inbox = inbox
        self._inlet = inlet
        self._metrics = metrics
        self._attempts: deque[tuple[DraftReplica, Stream | Exception]] = deque()
        self._by_stream: dict[int, DraftReplica] = {}
        self._closed = False

    def lease(self, name: str, endpoint: str, incarnation: int, dial: Dialer) -> DraftReplica:
        """One more lease leads to this replica; it is linked unless that has been done."""
        for replica in self.replicas:
            if replica.incarnation == incarnation:
                break
        else:
            replica = DraftReplica(name, lambda inbox: dial(endpoint, inbox), self._breaker, self._rng, incarnation)
            self.replicas = [*self.replicas, replica]  # other threads may be reading the old list
        replica.leases = (replica.leases or 0) + 1
        return replica

    def unlease(self, replica: DraftReplica, now: float) -> None:
        """One lease less leads to this replica; without any its link is kept for a while."""
        replica.leases = (replica.leases or 0) - 1
        replica.unleased_at = now

    def tick(self, now: float) -> None:
        """Do what is due: attempts, giving up on a peer that does not say Welcome, byte counters."""
        while self._attempts:
            self._attempted(*self._attempts.popleft(), now)
        for replica in self.replicas:
            state = replica.state
            if not replica.wanted and now >= replica.unleased_at + _keep_s(state):
                self._forget(replica)
            elif state in (ReplicaState.DOWN, ReplicaState.REFUSED):
                if replica.wanted and now >= replica.deadline:
                    self._connect(replica, now)
            elif state is ReplicaState.GREETING:
                if now >= replica.deadline:
                    self.lost(replica, "no Welcome in time", now)
            elif state is ReplicaState.READY:
                self._count_bytes(replica)

    def receive(self, now: float) -> Iterator[tuple[DraftReplica, Message]]:
        """Everything that arrived and concerns sessions; messages about the link itself are dealt with here."""
        for stream, message, arrived in self._inbox.drain_timed():
            replica = self._by_stream.get(id(stream))
            if replica is None or replica.stream is not stream:
                continue
            if isinstance(message, StreamClosed):
                self.lost(replica, message.reason, now)
            elif isinstance(message, Welcome):
                self._welcomed(replica, message, now)
            elif replica.state is not ReplicaState.READY:
                self._metrics.link_dropped.labels("unexpected").inc()
            else:
                replica.heard_at = arrived
                if isinstance(message, Load):
                    replica.load = message
                yield replica, message

    def send(self, replica: DraftReplica, message: Message, now: float) -> None:
        """Queue a message; a stream that has ended counts as lost, a message that fits no frame is dropped."""
        if replica.stream is None:
            return
        try:
            replica.stream.send(message)
        except LinkClosed as error:
            self.lost(replica, error.message, now)
        except LinkError as error:
            logger.error("draft_message_dropped replica=%s error=%r", replica.name, error.message)
            self._metrics.draft_failures.labels("frame").inc()

    def lost(self, replica: DraftReplica, reason: str, now: float) -> None:
        """Give a stream up: its sessions fall back, its breaker opens, the connection is tried again later."""
        if replica.stream is None:
            return
        if replica.wanted or replica.sessions:
            logger.warning("draft_lost replica=%s sessions=%d reason=%r", replica.name, len(replica.sessions), reason)
            self._metrics.draft_failures.labels("stream").inc()
        else:
            logger.info("draft_gone replica=%s reason=%r", replica.name, reason)
        self._drop_stream(replica, reason)
        replica.breaker.trip(now)
        replica.failed(now)

    def close(self) -> None:
        """Close every stream; attempts that still run are closed when they come back."""
        self._closed = True
        for replica in self.replicas:
            self._drop_stream(replica, "target stopped")
            replica.state = ReplicaState.DOWN
        while self._attempts:
            outcome = self._attempts.popleft()[1]
            if isinstance(outcome, Stream):
                outcome.close("target stopped")
        if self._inlet is not None and not self._inlet.close(_CHANNELS_S):
            logger.error("law_channels_stop_timeout timeout_s=%.1f", _CHANNELS_S)

    def _forget(self, replica: DraftReplica) -> None:
        self.replicas = [other for other in self.replicas if other is not replica]
        self._drop_stream(replica, "not used any more")

    def _connect(self, replica: DraftReplica, now: float) -> None:
        replica.state = ReplicaState.CONNECTING
        thread = threading.Thread(target=self._attempt, args=(replica,), name=f"connect-{replica.name}", daemon=True)
        thread.start()

    def _attempt(self, replica: DraftReplica) -> None:
        """On a helper thread: run the connector and hand its outcome to the engine."""
        outcome: Stream | Exception
        try:
            outcome = replica.connector(self._inlet if self._inlet is not None else self._inbox)
        except Exception as error:
            outcome = error
        if self._closed:
            if isinstance(outcome, Stream):
                outcome.close("target stopped")
            return
        self._attempts.append((replica, outcome))
        self._inbox.wake()

    def _attempted(self, replica: DraftReplica, outcome: Stream | Exception, now: float) -> None:
        if isinstance(outcome, Stream) and replica not in self.replicas:
            outcome.close("not used any more")
            return
        if isinstance(outcome, Exception):
            if replica.failures == 0:
                logger.warning("draft_unreachable replica=%s error=%r", replica.name, str(outcome))
            self._metrics.draft_failures.labels("connect").inc()
            replica.failed(now)
            return
        self._by_stream[id(outcome)] = replica
        replica.connected(outcome)
        replica.deadline = now + self._settings.connect_timeout_s
        self.send(replica, self._hello, now)

    def _welcomed(self, replica: DraftReplica, welcome: Welcome, now: float) -> None:
        difference = first_difference(self._hello, welcome)
        if difference is not None:
            if difference not in replica.logged:
                logger.error("draft_refused replica=%s difference=%r", replica.name, difference)
                replica.logged.add(difference)
            self._metrics.draft_failures.labels("mismatch").inc()
            self._drop_stream(replica, f"pair mismatch: {difference}")
            replica.failed(now)
            replica.state = ReplicaState.REFUSED
            return
        if replica.incarnation not in (None, welcome.incarnation):
            self.lost(replica, "another draft answers there", now)
            return
        before = replica.welcome
        if replica.state is ReplicaState.READY and before is not None and before.incarnation != welcome.incarnation:
            self._detach_all(replica)
        replica.welcomed(welcome)
        if self._inlet is not None and replica.stream is not None:
            self._inlet.attach(replica.stream)
        logger.info("draft_ready replica=%s draft=%s peer=%s", replica.name, welcome.draft_id, self._peer(replica))

    def _count_bytes(self, replica: DraftReplica) -> None:
        stream = replica.stream
        if stream is None or (stream.bytes_sent, stream.bytes_received) == replica.bytes_seen:
            return
        sent, received = replica.bytes_seen
        self._metrics.link_bytes.labels("sent").inc(stream.bytes_sent - sent)
        self._metrics.link_bytes.labels("received").inc(stream.bytes_received - received)
        replica.bytes_seen = (stream.bytes_sent, stream.bytes_received)

    def _drop_stream(self, replica: DraftReplica, reason: str) -> None:
        self._detach_all(replica)
        self._count_bytes(replica)
        stream, replica.stream = replica.stream, None
        if stream is not None:
            self._by_stream.pop(id(stream), None)
            if self._inlet is not None:
                self._inlet.detach(stream)
            stream.close(reason)

    @staticmethod
    def _detach_all(replica: DraftReplica) -> None:
        for session in replica.sessions.values():
            session.detach()
        replica.sessions.clear()

    @staticmethod
    def _peer(replica: DraftReplica) -> str:
        return replica.stream.peer if replica.stream is not None else "?"


def _keep_s(state: ReplicaState) -> float:
    """How long a replica is remembered that no lease leads to."""
    return _IDLE_LINK_S if state is ReplicaState.READY else _DEAD_LINK_S
