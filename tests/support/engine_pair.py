"""A target engine and a draft engine in one thread: stepped in turn, so that every block comes in time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ssd_cluster.config import DraftSettings, DType, ModelSettings
from ssd_cluster.draft.engine import load_draft
from ssd_cluster.link.inprocess import pair
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.target.replica import ReplicaState
from ssd_cluster.target.request import GenerationRequest, SpeculationStats
from ssd_cluster.types import Mode
from support.target_rig import STEP_LIMIT, Client, Rig, assert_clean, submit


def draft_settings(folder: Path, model: dict[str, Any] | None = None, **settings: Any) -> DraftSettings:
    """Settings of a tiny draft; ``model`` overrides its model's."""
    fields: dict[str, Any] = {"dtype": DType.FLOAT32, "kv_tokens": 4096, "block_size": 8} | (model or {})
    return DraftSettings(model=ModelSettings(path=str(folder), **fields), **({"k_max": 8} | settings))


class SteppedPair:
    """A pair in mode ``ssd`` that never waits and has no fallback: whatever is proposed comes from a block in time."""

    def __init__(
        self,
        rig: Rig,
        draft: DraftSettings,
        *,
        n_drafts: int = 1,
        k: int = 4,
        rows: int = 8,
        shards: int = 1,
        **settings: Any,
    ) -> None:
        self.rig = rig
        self.inboxes = [Inbox() for _ in range(n_drafts)]
        self.drafts = [load_draft(draft, inbox) for inbox in self.inboxes]
        speculation = {"k": k, "rows": rows, "shards": shards, "miss_policy": "never_wait", "fallback": "none"}
        connectors = [self._connector(inbox) for inbox in self.inboxes]
        self.engine = rig.engine(Mode.SSD, connectors, speculation=speculation, **settings)

    @staticmethod
    def _connector(inbox: Inbox) -> Any:
        def connect(target_inbox: Inbox) -> Stream:
            return pair(target_inbox, inbox)[0]

        return connect

    def step(self) -> None:
        """One round of the target, then every draft until it has nothing left to do."""
        self.engine.step()
        for draft in self.drafts:
            while draft.step():
                pass

    def connect(self, state: ReplicaState = ReplicaState.READY) -> None:
        """Step until every draft is in ``state``."""
        for _ in range(STEP_LIMIT):
            if all(one == state.value for one in self.engine.snapshot().drafts):
                return
            self.step()
        raise AssertionError(f"drafts are {self.engine.snapshot().drafts}, not {state}")

    def run(self, requests: Iterable[GenerationRequest]) -> list[Client]:
        """Serve the requests to their ends."""
        clients = submit(self.engine, requests)
        self.drain()
        assert all(client.finished is not None and client.finished.error is None for client in clients)
        return clients

    def drain(self) -> None:
        for _ in range(STEP_LIMIT):
            if not self.engine.snapshot().requests:
                return
            self.step()
        raise AssertionError("the pair does not come to an end")

    def value(self, name: str, **labels: str) -> float:
        """A counter of the target."""
        return self.engine.metrics.registry.get_sample_value(name, labels) or 0.0

    def close(self) -> None:
        """Everything that was served has left nothing behind on either side."""
        self.step()
        assert_clean(self.engine)
        for draft in self.drafts:
            snapshot = draft.snapshot()
            assert snapshot.sessions == 0
            assert snapshot.free_blocks == draft._runner.pool.n_total
            draft._runner.pool.check()
        self.engine.stop()
        for draft in self.drafts:
            draft.stop()


def stats(client: Client) -> SpeculationStats:
    """What a finished request says of its speculation."""
    assert client.finished is not None
    return client.finished.speculation
