"""The start-up self-test: silent about a good draft, loud about one that never agrees."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tiny import make_checkpoint, perturb

from ssd_cluster.bench.local import LocalEngine
from ssd_cluster.bench.spec import LinkBackend, PairOptions, engine_spec
from ssd_cluster.config import DType, SpeculationSettings
from ssd_cluster.serve.self_test import NEAR_ZERO, SelfTest
from ssd_cluster.types import Mode

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("self_test") / "target")


def run(target: Path, draft: Path) -> Iterator[float | None]:
    speculation = SpeculationSettings(k=4, rows=4, wait_ms=5000)
    options = PairOptions(target=str(target), draft=str(draft), speculation=speculation, dtype=DType.FLOAT32)
    with LocalEngine(engine_spec(Mode.SD, options, LinkBackend.INPROCESS)) as local:
        said: list[float | None] = []
        test = SelfTest(local.engine, local.tokenizer, said.append)
        test.start()
        test.join(PATIENCE_S)
        yield from said


def test_a_fitting_draft_is_measured(target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draft = perturb(target, tmp_path / "draft", noise=0.03, seed=1)
    with caplog.at_level(logging.WARNING, "ssd_cluster.serve.self_test"):
        (share,) = run(target, draft)
    assert share is not None
    assert share > 0.2
    assert not caplog.records


def test_a_useless_draft_is_named(target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stranger = make_checkpoint(tmp_path / "stranger", seed=77)
    with caplog.at_level(logging.WARNING, "ssd_cluster.serve.self_test"):
        (share,) = run(target, stranger)
    assert share is not None
    assert share < NEAR_ZERO
    assert "check-pair" in caplog.text
