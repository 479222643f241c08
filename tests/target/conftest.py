"""One tiny model for all tests of the target engine, and what it says when nobody drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.scripted_draft import Truth
from support.target_rig import Client, Rig, learn, run
from support.tiny import make_checkpoint

from ssd_cluster.target.request import GenerationRequest
from ssd_cluster.types import Mode


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="session")
def rig(checkpoint: Path) -> Rig:
    return Rig.load(checkpoint)


@dataclass
class Reference:
    """Plain runs of requests, and the truth for scripted drafts that comes from them."""

    clients: list[Client]
    truth: Truth


@pytest.fixture
def reference(rig: Rig) -> Callable[[list[GenerationRequest]], Reference]:
    """Run requests in mode ``ar`` on an engine of their own."""

    def plain(requests: list[GenerationRequest]) -> Reference:
        clients, truth = run(rig.engine(Mode.AR), requests), Truth()
        learn(truth, clients)
        return Reference(clients, truth)

    return plain
