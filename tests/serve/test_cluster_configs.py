"""Every file of cluster_configs/ is one that its reader takes: our tree, Ray's schema, the fields of KubeRay's CRD."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssd_cluster.config import Device
from ssd_cluster.serve.agreement import disagreements
from ssd_cluster.serve.args import ServeFile
from ssd_cluster.serve.checks import models_of
from ssd_cluster.serve.files import read_serve_file
from ssd_cluster.serve.fit import Node, fit, groups_of

FOLDER = Path(__file__).parents[2] / "cluster_configs"
SERVE_FILES = (
    "laptop.yaml",
    "two-nodes.yaml",
    "two-targets-three-drafts.yaml",
    "llama-3.1-70b-h100.yaml",
    "qwen3-32b-h100.yaml",
)
RAY_UP_FILES = ("aws-p5.yaml", "gcp-a3.yaml", "on-premises.yaml")
KUBERAY = "kuberay.yaml"
NOT_RUN = "Not yet run on this hardware"
UNTRIED = {
    "two-targets-three-drafts.yaml",
    "llama-3.1-70b-h100.yaml",
    "qwen3-32b-h100.yaml",
    "aws-p5.yaml",
    "gcp-a3.yaml",
    KUBERAY,
}
SECRETS = {"authority.pem", "draft.pem", "draft.key", "target.pem", "target.key", "drafts.token", "api-keys"}

# CPUs and H100s of the machine types that the files name, from their clouds' documents.
MACHINES = {
    "m7i.xlarge": (4, 0),
    "p5.48xlarge": (192, 8),
    "p5.4xlarge": (16, 1),
    "n2-standard-4": (4, 0),
    "a3-highgpu-8g": (208, 8),
    "a3-highgpu-1g": (26, 1),
}

# Fields of RayService in ray.io/v1 (KubeRay 1.5.1), as far as ours uses them; ``!`` marks required ones.
CRD: dict[str, Any] = {
    "apiVersion!": str,
    "kind!": str,
    "metadata!": {"name!": str},
    "spec!": {
        "serviceUnhealthySecondThreshold": int,
        "deploymentUnhealthySecondThreshold": int,
        "serveConfigV2": str,
        "rayClusterConfig!": {
            "rayVersion": str,
            "authOptions": {"mode": str},
            "headGroupSpec!": {"rayStartParams": dict, "template!": dict},
            "workerGroupSpecs": [
                {
                    "groupName!": str,
                    "replicas": int,
                    "minReplicas!": int,
                    "maxReplicas!": int,
                    "labels": dict,
                    "rayStartParams": dict,
                    "template!": dict,
                }
            ],
        },
    },
}


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return content


def head_comment(name: str) -> list[str]:
    lines = (FOLDER / name).read_text().splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    return lines[:end]


def test_no_file_is_forgotten() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*SERVE_FILES, *RAY_UP_FILES, KUBERAY}


@pytest.mark.parametrize("name", sorted({*SERVE_FILES, *RAY_UP_FILES, KUBERAY} - {"laptop.yaml"}))
def test_the_head_says_what_it_costs_and_what_to_change(name: str) -> None:
    comment = head_comment(name)
    assert (NOT_RUN in comment[0]) == (name in UNTRIED)
    assert sum(line.startswith("# Costs: ") for line in comment) == 1
    assert sum(line.startswith("# Change first: ") for line in comment) == 1
    assert all(len(line) <= 130 for line in (FOLDER / name).read_text().splitlines() if line.startswith("#"))


def serve_content(name: str) -> dict[str, Any]:
    if name != KUBERAY:
        return load(name)
    content: dict[str, Any] = yaml.safe_load(load(name)["spec"]["serveConfigV2"])
    return content


@pytest.mark.parametrize("name", [*SERVE_FILES, KUBERAY])
def test_serve_files_are_right_for_us_and_for_serve(name: str, tmp_path: Path) -> None:
    schema = pytest.importorskip("ray.serve.schema")
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(serve_content(name)))
    file = read_serve_file(path)
    assert disagreements(file).mistakes == ()
    deployed = schema.ServeDeploySchema.model_validate(serve_content(name))
    assert [app.name for app in deployed.applications] == [app.name for app in file.applications]


@pytest.mark.parametrize("name", [*SERVE_FILES[1:], KUBERAY])
def test_links_between_nodes_are_guarded_by_files(name: str) -> None:
    file = ServeFile.model_validate(serve_content(name))
    used = set()
    for app in file.applications:
        args = app.args.target or app.args.draft
        assert args is not None
        tls = args.link.tls
        assert tls is not None
        assert tls.server_name == ("drafts.internal" if app.args.target else None)
        used |= {tls.certificate, tls.key, tls.authority, *filter(None, [args.link.token_file])}
        if app.args.target is not None:
            assert app.args.target.http.api_keys_file is not None
            used.add(app.args.target.http.api_keys_file)
    assert {path.parent for path in used} == {Path("/etc/ssd")}
    assert {path.name for path in used} <= SECRETS


def nodes_of(name: str) -> list[Node]:
    """The nodes of a ``ray up`` file, from its machine types and labels."""
    nodes = []
    for kind in load(name)["available_node_types"].values():
        config = kind["node_config"]
        cpus, gpus = MACHINES[config.get("InstanceType") or config["machineType"]]
        assert kind["resources"].get("GPU", 0) == gpus
        assert kind["resources"].get("CPU", cpus) == cpus
        resources = {"CPU": float(cpus)} | ({"GPU": float(gpus)} if gpus else {})
        nodes.append(Node(f"{name} {kind['labels']['role']}", resources, kind["labels"]))
    return nodes


@pytest.mark.parametrize("cluster", ["aws-p5.yaml", "gcp-a3.yaml"])
@pytest.mark.parametrize("name", ["llama-3.1-70b-h100.yaml", "qwen3-32b-h100.yaml"])
def test_large_models_fit_the_clouds(cluster: str, name: str) -> None:
    file = read_serve_file(FOLDER / name)
    assert all(model.device is Device.CUDA for app in file.applications for _, model in models_of(app))
    placed = fit(groups_of(file), nodes_of(cluster))
    assert placed.mistakes == ()
    assert {where for app, where in placed.places if app.startswith("drafts")} == {f"{cluster} draft"}


@pytest.mark.parametrize(
    ("name", "roles"), [("two-nodes.yaml", "td"), ("two-targets-three-drafts.yaml", "ttddd"), ("laptop.yaml", "t")]
)
def test_small_models_fit_the_machines_that_the_head_names(name: str, roles: str) -> None:
    words = {"t": "target", "d": "draft"}
    nodes = [Node(str(i), {"CPU": 2.0}, {"role": words[role]}) for i, role in enumerate(roles)]
    groups = groups_of(read_serve_file(FOLDER / name))
    assert fit(groups, nodes).mistakes == ()
    assert name == "laptop.yaml" or fit(groups, nodes[:-1]).mistakes


@pytest.mark.parametrize("name", RAY_UP_FILES)
def test_ray_takes_its_cluster_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    autoscaler = pytest.importorskip("ray.autoscaler")
    schema = json.loads((Path(autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(load(name), schema)
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(load(name))  # fills in what the file leaves out, as `ray up` does
    validate_config(prepared)
    kinds = prepared["available_node_types"].values()
    assert sum(kind.get("min_workers", 0) for kind in kinds) == 2


@pytest.mark.parametrize("name", RAY_UP_FILES)
def test_cluster_files_ship_the_secrets_and_ask_for_rays_token(name: str) -> None:
    content = load(name)
    secrets = next(remote for remote, local in content["file_mounts"].items() if local == "./secrets")
    setup = "\n".join(content["setup_commands"])
    assert f"ln -sfn {secrets} /etc/ssd" in setup
    assert "RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=/etc/ssd/ray.token" in setup
    starts = content["head_start_ray_commands"] + content["worker_start_ray_commands"]
    assert sum("ray start" in command for command in starts) == 2
    assert "/secrets" in content["rsync_exclude"]  # not once more with the checkout
    text = "\n".join(head_comment(name)) + "\n".join(head_comment("aws-p5.yaml"))
    assert all(word in text for word in SECRETS)


def check(value: Any, fields: Any, where: str) -> None:
    """Fail on a field that is unknown, of another type, or missing."""
    if isinstance(fields, type):
        assert isinstance(value, fields), where
    elif isinstance(fields, list):
        for i, item in enumerate(value):
            check(item, fields[0], f"{where}[{i}]")
    else:
        known = {name.removesuffix("!"): inner for name, inner in fields.items()}
        assert set(value) <= set(known), where
        assert {name[:-1] for name in fields if name.endswith("!")} <= set(value), where
        for name, inner in value.items():
            check(inner, known[name], f"{where}.{name}")


def test_kuberay_has_the_fields_of_the_crd() -> None:
    content = load(KUBERAY)
    check(content, CRD, KUBERAY)
    assert (content["apiVersion"], content["kind"]) == ("ray.io/v1", "RayService")
    cluster = content["spec"]["rayClusterConfig"]
    starts = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert all(isinstance(v, str) for group in starts for v in group["rayStartParams"].values())
    assert cluster["rayVersion"] == "2.60.0"


def test_kuberay_pods_hold_what_the_applications_ask_for() -> None:
    content = load(KUBERAY)
    nodes = []
    for group in content["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        spec = group["template"]["spec"]
        (container,) = spec["containers"]
        limits = container["resources"]["limits"]
        resources = {"CPU": float(limits["cpu"]), "GPU": float(limits["nvidia.com/gpu"])}
        nodes.append(Node(group["groupName"], resources, group["labels"]))
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        secret = volumes[mounts["/etc/ssd"]]["secret"]
        assert secret["secretName"] == f"ssd-{group['groupName']}"
        assert secret["defaultMode"] == 0o440
        assert {"/models", "/dev/shm"} < set(mounts)
        assert set(mounts.values()) == set(volumes)
    assert fit(groups_of(ServeFile.model_validate(serve_content(KUBERAY))), nodes).mistakes == ()
