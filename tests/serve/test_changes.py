"""``user_config``: what may be in it, and that a wrong one never harms a running replica."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssd_cluster.errors import ConfigError
from ssd_cluster.serve.args import DraftAppArgs, TargetAppArgs, changed_draft
from ssd_cluster.serve.changes import ChangesInPlace, changed_speculation, target_changes
from ssd_cluster.serve.files import read_serve_file

LAPTOP = Path(__file__).parents[2] / "cluster_configs" / "laptop.yaml"


def args(**fields: Any) -> TargetAppArgs:
    return TargetAppArgs.model_validate({"model": {"path": "m"}, "draft_application": "d", **fields})


def test_changes_are_relative_to_the_arguments() -> None:
    target = args(speculation={"k": 6, "rows": 8, "wait_ms": 7.0})
    changes = target_changes({"speculation": {"k": 2, "miss_policy": "never_wait", "controller": "on"}})
    after = changed_speculation(target, changes)
    assert (after.k, after.rows, after.wait_ms, after.miss_policy.value) == (2, 8, 7.0, "never_wait")
    assert after.controller.enabled
    assert changed_speculation(target, target_changes({})) == target.speculation


def test_a_rule_changes_within_its_kind() -> None:
    ratio = args(trust_domain="x", speculation={"kind": "sparse", "rule": "block"})
    assert changed_speculation(ratio, target_changes({"speculation": {"rule": "token"}})).rule.value == "token"
    with pytest.raises(ConfigError, match=r"user_config\.speculation: rule 'token' cannot verify kind 'coupled'"):
        changed_speculation(args(), target_changes({"speculation": {"rule": "token"}}))


@pytest.mark.parametrize(
    ("user_config", "said"),
    [
        ({"speculation": {"kind": "dense"}}, "speculation.kind: cannot change in place, only k, rows, rule"),
        ({"model": {"path": "y"}}, "user_config.model: cannot change in place, only speculation can: change args"),
        ({"speculation": {"k": 65}}, "user_config.speculation.k: Input should be less than or equal to 64"),
        ({"speculation": {"k": "many"}}, "user_config.speculation.k"),
    ],
)
def test_a_wrong_one_is_refused_with_a_sentence(user_config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        changed_speculation(args(), target_changes(user_config))
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("fields", "speculation", "said"),
    [
        ({"mode": "ar", "draft_application": None}, {"k": 2}, "mode ar, which has none"),
        ({"speculation": {"k": 0}}, {"k": 2}, "k was 0 when this target started"),
        (
            {"mode": "sd", "draft_application": None, "in_process_draft": {"model": {"path": "d"}}},
            {"rows": 3},
            "mode sd, which builds no branches",
        ),
        (
            {"trust_domain": "x", "speculation": {"kind": "sparse", "k": 3}, "link": {"laws": "tensor"}},
            {"k": 4},
            "cannot exceed 3 in place",
        ),
    ],
)
def test_what_this_target_cannot_take_over(fields: dict[str, Any], speculation: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        changed_speculation(args(**fields), target_changes({"speculation": speculation}))


def test_drafts_take_weights_and_shares_over() -> None:
    draft = DraftAppArgs.model_validate({"model": {"path": "d"}, "autoscaling": {"max_replicas": 3}})
    after = changed_draft(draft, {"target_weights": {"m": 2.0}, "autoscaling": {"target_utilisation": 0.5}})
    assert after.target_weights == {"m": 2.0}
    assert after.autoscaling is not None
    assert (after.autoscaling.target_utilisation, after.autoscaling.max_replicas) == (0.5, 3)
    assert changed_draft(draft, {}) == draft
    with pytest.raises(ConfigError, match="k_max: cannot change in place"):
        changed_draft(draft, {"k_max": 3})
    with pytest.raises(ConfigError, match="max_replicas: cannot change in place, only target_utilisation, late_share"):
        changed_draft(draft, {"autoscaling": {"max_replicas": 4}})
    still = DraftAppArgs.model_validate({"model": {"path": "d"}})
    with pytest.raises(ConfigError, match="do not scale"):
        changed_draft(still, {"autoscaling": {"late_share": 0.5}})


def test_a_file_is_checked_with_it(tmp_path: Path) -> None:
    content = yaml.safe_load(LAPTOP.read_text())
    content["applications"][1]["deployments"] = [{"name": "target", "user_config": {"speculation": {"k": 2}}}]
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(content))
    target = read_serve_file(path).applications[1].settings
    assert isinstance(target, TargetAppArgs)
    assert target.speculation.k == 2
    content["applications"][1]["deployments"][0]["user_config"] = {"speculation": {"kind": "sparse"}}
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=r"applications\.1: deployments: user_config\.speculation\.kind: cannot"):
        read_serve_file(path)


def test_only_the_first_one_may_end_a_replica(caplog: pytest.LogCaptureFixture) -> None:
    def wrong() -> None:
        raise ConfigError("that is wrong")

    with pytest.raises(ConfigError, match="that is wrong"):
        ChangesInPlace().take(wrong)
    changes = ChangesInPlace()
    changes.take(lambda: None)
    with caplog.at_level(logging.ERROR):
        changes.take(wrong)
    assert changes.refused == "that is wrong"
    assert "the old settings stay: that is wrong" in caplog.text
    changes.take(lambda: None)
    assert changes.refused is None
