"""Three hosts with their own addresses: Ray is started on each, a file is deployed, and answers are those of ``ar``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.faults.hosts_cases import host_is_cut_off
from support.faults.hosts_scene import HEAD, HostsScene
from support.hosts import FIRST, NETWORK, unavailable
from support.tiny import make_checkpoint, perturb

WHY_NOT = unavailable()
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostsScene]:
    folder = tmp_path_factory.mktemp("hosts")
    target = make_checkpoint(folder / "target", max_context=4096)
    with HostsScene(target, perturb(target, folder / "draft"), max_tokens=400) as made:
        yield made


def test_target_and_drafts_are_where_their_resources_are(scene: HostsScene) -> None:
    assert {one["node"] for one in scene.view()["targets"]} == {HEAD}
    assert set(scene.drafts()) == {f"{NETWORK}.{FIRST + 1}", f"{NETWORK}.{FIRST + 2}"}
    for address, draft in scene.drafts().items():
        assert draft["endpoint"].startswith(f"{address}:")


def test_a_host_off_the_network_changes_no_text(scene: HostsScene) -> None:
    assert host_is_cut_off(scene, pause_s=0.0).same_text
