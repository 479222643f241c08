"""What a file contradicts itself in: credits, both ends of a link, ports."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ssd_cluster.serve.agreement import disagreements
from ssd_cluster.serve.args import ServeFile

TOKEN = {"token_file": "/etc/ssd/drafts.token"}


def content(*, draft: dict[str, Any] | None = None, targets: int = 1, **target: Any) -> dict[str, Any]:
    pool = {"model": {"path": "d"}, "row_credit": 64, **(draft or {})}
    base = {"model": {"path": "m"}, "draft_application": "drafts", "speculation": {"k": 4, "rows": 16}, "max_batch": 4}
    applications: list[dict[str, Any]] = [{"name": "drafts", "route_prefix": None, "args": {"draft": pool}}]
    for i in range(targets):
        fields = copy.deepcopy(base | target) | {"served_name": f"m{i}"}
        applications.append({"name": f"t{i}", "route_prefix": f"/{i}", "args": {"target": fields}})
    return {"applications": applications}


def mistakes(changed: dict[str, Any]) -> tuple[str, ...]:
    return disagreements(ServeFile.model_validate(changed)).mistakes


def test_a_file_that_agrees() -> None:
    found = disagreements(ServeFile.model_validate(content(targets=4, link=TOKEN, draft={"link": TOKEN})))
    assert found.mistakes == ()
    assert "full batches ask for 256 rows per round, and the pool has 64" in found.notes[0]


def test_every_target_gets_the_rows_of_one_sequence() -> None:
    lines = mistakes(content(targets=5))
    assert [line.split(":")[0] for line in lines] == ["t0", "t1", "t2", "t3", "t4"]
    assert "12 of 64; lower rows, or raise row_credit to 80" in lines[0]
    assert not mistakes(content(targets=5, draft={"row_credit": 80}))
    two = content()
    two["applications"][1]["deployments"] = [{"name": "target", "num_replicas": 5}]
    assert len(mistakes(two)) == 1
    limited = mistakes(content(draft={"limits": {"rows": 8}}))
    assert "limits.rows = 8" in limited[0]


def test_weights_count_and_name_targets() -> None:
    lines = mistakes(content(targets=2, draft={"target_weights": {"m0": 7.0}}))
    assert [line.split(":")[0] for line in lines] == ["t1"]
    assert "raise row_credit to 128" in lines[0]
    assert "no target that uses these drafts is called x" in mistakes(content(draft={"target_weights": {"x": 2.0}}))[0]


def test_k_fits_the_draft_also_where_user_config_sets_it() -> None:
    assert "k = 9 is more than k_max = 8 of drafts" in mistakes(content(speculation={"k": 9}))[0]
    changed = content(draft={"k_max": 5})
    changed["applications"][1]["deployments"] = [{"name": "target", "user_config": {"speculation": {"k": 6}}}]
    assert "k = 6 is more than k_max = 5" in mistakes(changed)[0]
    inside = {"model": {"path": "m"}, "in_process_draft": {"model": {"path": "d"}, "k_max": 3}}
    alone = {"applications": [{"name": "t", "args": {"target": inside}}]}
    assert "k = 5 is more than k_max = 3 of in_process_draft" in mistakes(alone)[0]


@pytest.mark.parametrize("where", ["target", "draft"])
def test_both_ends_of_a_link_must_be_guarded(where: str) -> None:
    changed = content(link=TOKEN) if where == "target" else content(draft={"link": TOKEN})
    (line,) = mistakes(changed)
    has, lacks = ("t0", "drafts") if where == "target" else ("drafts", "t0")
    assert line.startswith(f"{has} sets link.token_file and {lacks} does not")


def test_fixed_ports() -> None:
    assert "is that of http_options" in mistakes(content(draft={"port": 8000}))[0]
    pool = content(draft={"port": 7001})
    assert not mistakes(pool)
    pool["applications"][0]["deployments"] = [{"name": "draft", "num_replicas": 2}]
    assert "2 replicas cannot share port 7001" in mistakes(pool)[0]
    pool["applications"][0]["args"]["draft"]["placement"] = {"max_replicas_per_node": 1}
    assert not mistakes(pool)
    pool["applications"].append(copy.deepcopy(pool["applications"][0]) | {"name": "others"})
    assert "port 7001 is that of drafts too" in mistakes(pool)[0]
    found = disagreements(ServeFile.model_validate(content(draft={"port": 12345})))
    assert "port 12345 may be taken" in found.notes[0]


def test_a_pool_that_is_too_small_or_unused_is_said() -> None:
    small = disagreements(ServeFile.model_validate(content(draft={"session_credit": 3})))
    assert "the pool serves 3" in small.notes[0]
    unused = content()
    unused["applications"][1]["args"]["target"] = {"model": {"path": "m"}, "mode": "ar"}
    assert disagreements(ServeFile.model_validate(unused)).notes == ("drafts: no target uses these drafts",)
