"""What the cluster says of itself, taken down at a fixed pace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ssd_cluster.errors import ConfigError

RUNNING = "RUNNING"


@dataclass(frozen=True, slots=True)
class Moment:
    """The drafts at one time.

    Attributes:
        at_s: since the run began.
        drafts: replicas that serve.
        coming: replicas that start.
        going: replicas that drain or stop.
        sessions: open on all of them.
        rows: branches they hold.
        row_credit: branches they may hold.
        lateness: share of rounds without a block in time, the worst replica's.
        hits: lookups of all targets that hit, since they started.
        lookups: all their lookups.
    """

    at_s: float
    drafts: int
    coming: int
    going: int
    sessions: int
    rows: int
    row_credit: int
    lateness: float
    hits: int
    lookups: int


def moment(view: Mapping[str, Any], at_s: float, pool: str | None) -> Moment:
    """The part of a view that concerns the draft application ``pool`` (None: all drafts)."""
    drafts = [one for one in view["drafts"] if pool in (None, one["application"])]
    other = [one["state"] for one in view["unreachable"] if pool in (None, one["application"])]
    serving = [one for one in drafts if one["state"] == RUNNING and not one["draining"]]
    lookups = [link["lookups"] for target in view["targets"] for link in target["drafts"]]
    return Moment(
        at_s=at_s,
        drafts=len(serving),
        coming=other.count("STARTING"),
        going=len(drafts) - len(serving),
        sessions=sum(one["sessions"] for one in drafts),
        rows=sum(one["rows"] for one in drafts),
        row_credit=sum(one["row_credit"] for one in serving),
        lateness=max((one["lateness"] for one in serving), default=0.0),
        hits=sum(one.get("hit", 0) for one in lookups),
        lookups=sum(sum(one.values()) for one in lookups),
    )


class Watch:
    """Asks for the view every ``pace_s`` on a thread of its own.

    Attributes:
        moments: what it got, in order of time.
        missed: times it got no answer.
    """

    def __init__(self, view: Callable[[], Mapping[str, Any] | None], pool: str | None, pace_s: float) -> None:
        self.moments: list[Moment] = []
        self.missed = 0
        self._view, self._pool, self._pace_s = view, pool, pace_s
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")
        self._thread.start()

    @property
    def now_s(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._started

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            view = self._view()
            if view is None:
                self.missed += 1
            else:
                self.moments.append(moment(view, self.now_s, self._pool))
            if self._stop.wait(self._pace_s):
                return


def require_pool(view: Mapping[str, Any], pool: str | None) -> None:
    """
    Raises:
        ConfigError: there are drafts, but no application of that name.
    """
    names = sorted({one["application"] for one in [*view["drafts"], *view["unreachable"]]})
    if pool is not None and view["drafts"] and pool not in names:
        raise ConfigError(f"--pool {pool}: the cluster has {', '.join(names)}", param="pool")
