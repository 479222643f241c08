"""A target that asks a real draft for ten times its row credit: less speed, nothing else. Stepped in one thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.engine_pair import SteppedPair, draft_settings
from support.equality import assert_same
from support.target_rig import Rig, request, run
from support.tiny import make_checkpoint, perturb

from ssd_cluster.bench.pool.clients import GREED, Client, behave
from ssd_cluster.types import Mode

SEQUENCES, ROWS, CREDIT = 5, 8, 4
assert SEQUENCES * ROWS == GREED * CREDIT


class GreedyPair(SteppedPair):
    """The target believes in ten times its credit; the draft runs one forward for every round of the target."""

    most_asked = 0

    @staticmethod
    def _connector(inbox: Any) -> Any:
        return behave(SteppedPair._connector(inbox), Client.GREEDY)

    def step(self) -> None:
        self.engine.step()
        for draft in self.drafts:
            draft.step()
            self.most_asked = max(self.most_asked, draft.snapshot().rows)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("overload")
    target = make_checkpoint(folder / "target")
    return target, perturb(target, folder / "draft", 0.02)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_queues_are_bounded_no_request_is_lost_and_the_text_is_the_targets_own(
    folders: tuple[Path, Path], temperature: float
) -> None:
    rig = Rig.load(folders[0])
    requests = [
        request(f"r{i}", range(5 + i, 30 + i), seed=i, temperature=temperature, max_tokens=40, ignore_eos=True)
        for i in range(3 * SEQUENCES)
    ]
    plain = run(rig.engine(Mode.AR), requests)
    draft = draft_settings(folders[1], row_credit=CREDIT, max_step_rows=16)
    pair = GreedyPair(rig, draft, max_batch=SEQUENCES)
    pair.connect()
    clients = pair.run(requests)
    assert_same(rig, plain, clients, "overload")
    while pair.drafts[0].step():
        pass
    snapshot = pair.drafts[0].snapshot()
    metrics = pair.drafts[0].metrics.registry.get_sample_value
    assert pair.most_asked == GREED * CREDIT
    assert (metrics("ssd:draft_limited_total", {"limit": "rows"}) or 0) > 0
    # One frame of commits a round, and for each choice that begins or ends an Open or a Close.
    assert 0 < snapshot.peaks.messages <= 1 + 2 * SEQUENCES
    # At most a step's rows of trees, or one row for each; glue rows of all sessions, or their prompts, beside them.
    assert CREDIT <= snapshot.peaks.rows <= SEQUENCES * 40
    assert snapshot.peaks.sessions <= SEQUENCES + 1
    assert snapshot.peaks.unsent == 0
    pair.close()
