"""Laws are used inside one trust domain only: refused when the configuration is read, and at the handshake."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.engine_pair import draft_settings
from support.ratio_pair import PROMPT, RatioPair, tiny_pair
from support.target_rig import Rig, request, run

from ssd_cluster.bench.spec import EngineSpec
from ssd_cluster.config import SpeculationSettings, TargetSettings
from ssd_cluster.errors import ConfigError
from ssd_cluster.serve.args import ServeFile, TargetAppArgs
from ssd_cluster.target.replica import ReplicaState
from ssd_cluster.types import Mode

MODEL = {"path": "somewhere"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rig, Path]:
    return tiny_pair(tmp_path_factory.mktemp("trust"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "sparse", "rule": "equality"}, "token, block or hsd"),
        ({"rule": "block"}, "equality"),
        ({"kind": "coupled", "rule": "token"}, "equality"),
        ({"saguaro": {"c": 0.5}}, "saguaro"),
        ({"kind": "dense", "top_m": 8}, "top_m"),
        ({"kind": "delta"}, "kind"),
        ({"kind": "sparse", "rule": "hsd_uncapped_lossy"}, "rule"),
    ],
)
def test_a_rule_that_cannot_be_used_with_a_kind_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        SpeculationSettings.model_validate(fields)


def test_the_rule_of_a_kind_and_the_round_trip_of_settings() -> None:
    for fields, rule in (({}, "equality"), ({"kind": "sparse"}, "block"), ({"kind": "dense", "rule": "hsd"}, "hsd")):
        settings = SpeculationSettings.model_validate(fields)
        assert settings.rule == rule
        assert SpeculationSettings.model_validate_json(settings.model_dump_json()) == settings


def test_a_target_that_uses_laws_needs_a_trust_domain() -> None:
    with pytest.raises(ValidationError, match="trust_domain"):
        TargetSettings.model_validate({"model": MODEL, "speculation": {"kind": "sparse"}})
    for fields in ({"mode": "ar"}, {"trust_domain": "a"}):
        TargetSettings.model_validate({"model": MODEL, "speculation": {"kind": "sparse"}} | fields)


@pytest.mark.parametrize("domain", [None, "b"])
def test_both_sides_in_one_file_must_agree(domain: str | None) -> None:
    target = {"model": MODEL, "speculation": {"kind": "sparse"}, "trust_domain": "a"}
    draft = {"model": MODEL, "trust_domain": domain}
    file = {
        "applications": [
            {"name": "t", "args": {"target": target | {"draft_application": "d"}}},
            {"name": "d", "route_prefix": None, "args": {"draft": draft}},
        ]
    }
    for read in (
        lambda: ServeFile.model_validate(file),
        lambda: TargetAppArgs.model_validate(target | {"in_process_draft": draft}),
        lambda: EngineSpec.model_validate({"target": target, "draft": draft}),
    ):
        with pytest.raises(ValidationError, match="'a'"):
            read()
    draft["trust_domain"] = "a"
    ServeFile.model_validate(file)


@pytest.mark.parametrize("domain", [None, "elsewhere"])
def test_the_handshake_refuses_on_both_sides_and_says_why(
    models: tuple[Rig, Path], domain: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    rig, folder = models
    one = request("r", PROMPT, max_tokens=8, ignore_eos=True)
    plain = run(rig.engine(Mode.AR), [one])[0].tokens
    pair = RatioPair(rig, draft_settings(folder, trust_domain=domain), {"kind": "sparse"})
    with caplog.at_level(logging.WARNING):
        pair.connect(ReplicaState.REFUSED)
    refusals = [record.getMessage() for record in caplog.records if "trust domain" in record.getMessage()]
    assert any("draft_refused" in said for said in refusals)
    assert any("target refused" in said for said in refusals)
    assert all(repr(domain or "") in said and "tests" in said for said in refusals)
    assert pair.value("ssd:draft_failures_total", reason="mismatch") == 1
    assert pair.run([one])[0].tokens == plain, "the target goes on without a draft"
    pair.close()


def test_a_draft_that_is_not_trusted_serves_coupled_targets(models: tuple[Rig, Path]) -> None:
    rig, folder = models
    pair = RatioPair(rig, draft_settings(folder), {"kind": "coupled"}, trust_domain=None)
    pair.connect(ReplicaState.READY)
    pair.close()


def test_laws_that_fit_no_frame_are_refused_at_the_start(tmp_path: Path) -> None:
    rig, _ = tiny_pair(tmp_path, vocab=320)
    fields: dict[str, Any] = {"trust_domain": "a", "link": {"frame_bytes": 4096}}
    with pytest.raises(ConfigError, match="frame_bytes"):
        rig.engine(Mode.SSD, speculation={"kind": "dense", "k": 4}, **fields)
    for speculation in ({"kind": "sparse", "k": 4}, {"kind": "dense", "k": 3}):
        rig.engine(Mode.SSD, speculation=speculation, **fields).stop()
