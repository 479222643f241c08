"""Configuration files: the shipped one, and what is said about wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ssd_cluster.errors import ConfigError
from ssd_cluster.serve.files import read_serve_file
from ssd_cluster.types import Mode

LAPTOP = Path(__file__).parents[2] / "cluster_configs" / "laptop.yaml"


def content() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(LAPTOP.read_text())
    return loaded


def mistakes(tmp_path: Path, changed: Any) -> list[str]:
    path = tmp_path / "serve.yaml"
    path.write_text(changed if isinstance(changed, str) else yaml.safe_dump(changed))
    with pytest.raises(ConfigError) as refusal:
        read_serve_file(path)
    lines = refusal.value.message.splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    return [line.removeprefix(f"{path}: ") for line in lines]


def test_the_laptop_file_serves_two_models_on_cores_of_their_own() -> None:
    file = read_serve_file(LAPTOP)
    draft, target = (app.args for app in file.applications)
    assert draft.draft is not None
    assert target.target is not None
    assert (file.http_options.host, file.http_options.port) == ("127.0.0.1", 8000)
    assert target.target.draft_application == file.applications[0].name
    assert target.target.mode is Mode.SSD
    assert set(target.target.model.cores or ()).isdisjoint(draft.draft.model.cores or ())
    assert target.target.engine_settings.speculation == target.target.speculation


def test_the_laptop_file_is_what_serve_deploy_takes() -> None:
    schema = pytest.importorskip("ray.serve.schema")
    deployed = schema.ServeDeploySchema.model_validate(content())
    assert [(app.name, app.route_prefix) for app in deployed.applications] == [
        ("drafts-smollm2", None),
        ("smollm2-135m-instruct", "/"),
    ]


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml: no such file"):
        read_serve_file(tmp_path / "nothing.yaml")


@pytest.mark.parametrize("text", ["a: [", "- 1", "", "applications: []", "{}", "applications: 5"])
def test_no_configuration(tmp_path: Path, text: str) -> None:
    assert len(mistakes(tmp_path, text)) == 1


def test_every_mistake_has_its_line(tmp_path: Path) -> None:
    changed = content()
    changed["http_options"]["port"] = 99999
    changed["extra"] = 1
    draft, target = (app["args"] for app in changed["applications"])
    target["target"]["speculation"]["k"] = -1
    target["target"]["modle"] = {}
    del draft["draft"]["model"]["path"]
    lines = mistakes(tmp_path, changed)
    assert {line.split(": ")[0] for line in lines} == {
        "http_options.port",
        "extra",
        "applications.1.args.target.speculation.k",
        "applications.1.args.target.modle",
        "applications.0.args.draft.model.path",
    }
    assert "applications.1.args.target.modle: unknown key" in lines


def changed_target(**changes: Any) -> dict[str, Any]:
    changed = content()
    target = changed["applications"][1]["args"]["target"]
    for key, value in changes.items():
        if value is None:
            del target[key]
        else:
            target[key] = value
    return changed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"draft_application": None}, "mode ssd needs"),
        ({"draft_application": "other"}, "'other', which is not in this file"),
        ({"mode": "ar"}, "mode ar uses no draft"),
        ({"mode": "sd"}, "mode sd needs in_process_draft"),
        ({"in_process_draft": {"model": {"path": "x"}}}, "mode ssd needs either"),
    ],
)
def test_draft_and_mode_must_fit(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    (line,) = mistakes(tmp_path, changed_target(**changes))
    assert said in line


def test_applications_must_fit_together(tmp_path: Path) -> None:
    twice = content()
    twice["applications"].append(twice["applications"][1])
    assert "more than once" in mistakes(tmp_path, twice)[0]
    drafts_only = content()
    del drafts_only["applications"][1]
    assert "none of them is a target" in mistakes(tmp_path, drafts_only)[0]
    routed = content()
    routed["applications"][0]["route_prefix"] = "/draft"
    assert "route_prefix" in mistakes(tmp_path, routed)[0]
    unrouted = content()
    unrouted["applications"][1]["route_prefix"] = None
    assert "route_prefix" in mistakes(tmp_path, unrouted)[0]
    both = content()
    both["applications"][1]["args"]["draft"] = both["applications"][0]["args"]["draft"]
    assert "exactly one of target and draft" in mistakes(tmp_path, both)[0]
    foreign = content()
    foreign["applications"][1]["import_path"] = "os:system"
    assert mistakes(tmp_path, foreign)[0].startswith("applications.1.import_path")


def test_modes_without_a_draft_application_are_served(tmp_path: Path) -> None:
    for mode, draft in (("ar", None), ("sd", {"model": {"path": "d"}}), ("ssd", {"model": {"path": "d"}})):
        changed = content()
        del changed["applications"][0]
        target = changed["applications"][0]["args"]["target"]
        del target["draft_application"]
        target["mode"] = mode
        if draft is not None:
            target["in_process_draft"] = draft
        path = tmp_path / f"{mode}.yaml"
        path.write_text(yaml.safe_dump(changed))
        args = read_serve_file(path).targets[0].args.target
        assert args is not None
        assert (args.mode, args.in_process_draft is None) == (Mode(mode), draft is None)


def test_replicas_of_a_deployment(tmp_path: Path) -> None:
    changed = content()
    changed["applications"][1]["deployments"] = [{"name": "target", "num_replicas": 2}]
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(changed))
    assert [app.num_replicas for app in read_serve_file(path).applications] == [1, 2]
    changed["applications"][0]["deployments"] = [{"name": "target", "num_replicas": 2}]
    changed["applications"][1]["deployments"] = [{"name": "target", "num_replicas": 0}]
    lines = mistakes(tmp_path, changed)
    assert lines == [
        "applications.0: deployments: this application has the deployment 'draft', not 'target'",
        "applications.1.deployments.0.num_replicas: Input should be greater than or equal to 1",
    ]


def test_a_pool_that_scales_has_no_fixed_number(tmp_path: Path) -> None:
    changed = content()
    changed["applications"][0]["args"]["draft"]["autoscaling"] = {"max_replicas": 2}
    changed["applications"][0]["deployments"] = [{"name": "draft", "user_config": {"target_weights": {"x": 2.0}}}]
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(changed))
    assert read_serve_file(path).applications[0].most_replicas == 2
    changed["applications"][0]["deployments"][0]["num_replicas"] = 2
    assert "num_replicas fixes what draft.autoscaling changes" in mistakes(tmp_path, changed)[0]


def test_serve_itself_sees_the_type_of_the_builders_argument() -> None:
    api = pytest.importorskip("ray.serve._private.api")
    from ssd_cluster.serve.app import build

    application = api.call_user_app_builder_with_args_if_necessary(build, content()["applications"][1]["args"])
    assert application._bound_deployment.name == "target"


def test_shards_need_a_pool(tmp_path: Path) -> None:
    wrong = content()
    target = wrong["applications"][1]["args"]["target"]
    target.pop("draft_application")
    target["in_process_draft"] = wrong["applications"][0]["args"]["draft"]
    target["speculation"] = {"shards": 2}
    assert "speculation.shards above 1 needs draft_application" in "".join(mistakes(tmp_path, wrong))
