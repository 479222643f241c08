"""Where replicas may run: what a configuration says, what Serve is asked for, and whether nodes have it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from ssd_cluster.config import Device, ModelSettings
from ssd_cluster.errors import ConfigError
from ssd_cluster.serve import local
from ssd_cluster.serve.args import AppArgs, DraftAppArgs, ServeFile, TargetAppArgs
from ssd_cluster.serve.fit import Group, Node, fit, groups_of
from ssd_cluster.serve.placement import Placement, demand_of, matches

CUDA = {"path": "m", "device": "cuda"}


def target(**fields: Any) -> TargetAppArgs:
    return TargetAppArgs.model_validate({"mode": "ar", "model": {"path": "m"}, **fields})


def options_of(args: AppArgs) -> dict[str, Any]:
    """What Serve would be asked for."""
    from ssd_cluster.serve.app import build

    config = build(args)._bound_deployment._replica_config
    return {
        "actor": config.ray_actor_options,
        "bundles": config.placement_group_bundles,
        "labels": config.placement_group_bundle_label_selector,
        "strategy": config.placement_group_strategy,
        "spread": config.max_replicas_per_node,
    }


def test_a_replica_takes_its_threads_and_a_gpu_on_cuda() -> None:
    cpu = demand_of(ModelSettings(path="m", cores=(0, 1)), Placement())
    assert cpu.bundle == {"CPU": 2}
    assert demand_of(ModelSettings(path="m", device=Device.CUDA), Placement()).bundle == {"CPU": 1, "GPU": 1}
    shared = Placement(num_gpus=0.5, num_cpus=0, memory=1 << 30, resources={"draft": 0.25})
    model = ModelSettings(path="m", device=Device.CUDA)
    assert demand_of(model, shared).bundle == {"GPU": 0.5, "memory": 1 << 30, "draft": 0.25}


def test_serve_is_asked_for_all_of_it() -> None:
    place = {"resources": {"draft": 1}, "label_selector": {"role": "draft"}, "max_replicas_per_node": 1, "memory": 99}
    draft = DraftAppArgs.model_validate({"model": {"path": "m"}, "placement": place})
    asked = options_of(AppArgs(draft=draft))
    assert asked["actor"]["resources"] == {"draft": 1}
    assert asked["actor"]["label_selector"] == {"role": "draft"}
    assert asked["actor"]["memory"] == 99
    assert asked["actor"]["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "1"
    assert (asked["spread"], asked["bundles"]) == (1, None)


def test_ranks_get_bundles_with_everything_in_them() -> None:
    model = CUDA | {"tensor_parallel": 2}
    place = {"resources": {"nvlink": 1}, "label_selector": {"zone": "a"}}
    asked = options_of(AppArgs(target=target(model=model, placement=place, rank_placement="STRICT_PACK")))
    assert asked["bundles"] == [{"CPU": 1, "GPU": 1, "nvlink": 1}] * 2
    assert asked["labels"] == [{"zone": "a"}] * 2
    assert asked["strategy"] == "STRICT_PACK"
    assert asked["actor"]["num_gpus"] == 1
    assert "label_selector" not in asked["actor"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"placement": {"resources": {"GPU": 1}}}, "for GPU use num_gpus"),
        ({"placement": {"label_selector": {"role": "in()"}}}, "no label selector"),
        ({"placement": {"label_selector": {"a b": "x"}}}, "no label of a node"),
        ({"placement": {"num_gpus": 1}}, "is for device cuda"),
        ({"model": CUDA, "placement": {"num_gpus": 0}}, "must be above 0"),
        ({"model": CUDA, "placement": {"num_gpus": 2}}, "must not exceed 1"),
        ({"model": {"path": "m", "tensor_parallel": 2}, "placement": {"max_replicas_per_node": 1}}, "rank_placement"),
    ],
)
def test_what_cannot_be_placed_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        target(**fields)


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [("a", "a"), ("!b", "ac-"), ("in(a, c)", "ac"), ("in(a,b)", "ab"), ("!in(b, c)", "a-")],
)
def test_selectors_mean_what_they_mean_to_ray(wanted: str, meant: str) -> None:
    label_utils = pytest.importorskip("ray._private.label_utils")
    assert label_utils.validate_label_selector({"role": wanted}) is None
    assert Placement(label_selector={"role": wanted})
    nodes: dict[str, dict[str, str]] = {value: {"role": value, "other": "b"} for value in "abc"} | {"-": {"other": "a"}}
    assert "".join(name for name, labels in nodes.items() if matches({"role": wanted}, labels)) == meant


def test_a_selector_that_ray_refuses_is_refused_here() -> None:
    label_utils = pytest.importorskip("ray._private.label_utils")
    for wanted in ("in()", "!!a", "a b", "in(a", "-a", "in(a,,b)"):
        assert label_utils.validate_label_selector({"role": wanted}) is not None
        with pytest.raises(ValidationError):
            Placement(label_selector={"role": wanted})


def node(name: str, cpus: float, gpus: float = 0, **labels: str) -> Node:
    return Node(name, {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}, labels)


def test_everything_gets_a_place() -> None:
    nodes = [node("a", 2, role="target"), node("b", 2), node("c", 1)]
    groups = [
        Group("drafts", 3, {"CPU": 1}, per_node=1),
        Group("llama", 1, {"CPU": 1}, selector={"role": "target"}),
        Group("later", 0, {"CPU": 99}),
    ]
    placed = fit(groups, nodes)
    assert not placed.mistakes
    assert Counter(placed.places) == {("drafts", "a"): 1, ("drafts", "b"): 1, ("drafts", "c"): 1, ("llama", "a"): 1}


def test_the_search_goes_back_where_the_first_choice_was_wrong() -> None:
    # "wide" must not take the only node that "narrow" can use, whichever comes first.
    nodes = [node("small", 2), node("large", 3)]
    groups = [Group("wide", 1, {"CPU": 2}), Group("narrow", 1, {"CPU": 3})]
    assert set(fit(groups, nodes).places) == {("wide", "small"), ("narrow", "large")}
    nodes = [node("x", 5), node("y", 4)]
    groups = [Group("a", 2, {"CPU": 2}), Group("b", 1, {"CPU": 3}), Group("c", 1, {"CPU": 2})]
    assert not fit(groups, nodes).mistakes


@pytest.mark.parametrize(
    ("strategy", "ranks", "fits"),
    [("STRICT_PACK", 4, True), ("STRICT_PACK", 5, False), ("PACK", 6, True), ("STRICT_SPREAD", 3, False)],
)
def test_ranks_follow_their_strategy(strategy: str, ranks: int, fits: bool) -> None:
    nodes = [node("a", 8, 4), node("b", 8, 2)]
    placed = fit([Group("t", 1, {"CPU": 1, "GPU": 1}, ranks=ranks, strategy=strategy)], nodes)
    assert bool(placed.places) == fits
    assert bool(placed.mistakes) != fits
    if strategy == "STRICT_PACK" and fits:
        assert {where for _, where in placed.places} == {"a"}


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (Group("t", 1, {"CPU": 1}, selector={"role": "gpu"}), ["no node has the labels role=gpu", "1 x [4 CPU"]),
        (Group("t", 1, {"GPU": 1}), ["a replica takes 1 GPU, more than any node has"]),
        (Group("t", 9, {"CPU": 1}), ["6 of 9 replicas fit", "1 CPU"]),
        (Group("t", 3, {"CPU": 1}, per_node=1), ["2 of 3 replicas fit", "at most 1 of them on a node"]),
        (Group("t", 1, {"CPU": 1}, ranks=3, strategy="STRICT_SPREAD"), ["0 of 1 replicas fit", "3 ranks"]),
    ],
)
def test_a_mistake_names_what_is_missing(group: Group, words: list[str]) -> None:
    (line,) = fit([group], [node("a", 4, role="cpu"), node("b", 2)]).mistakes
    assert line.startswith("t: ")
    for word in words:
        assert word in line


def test_what_only_fits_one_by_one_is_said() -> None:
    (line,) = fit([Group("a", 1, {"CPU": 2}), Group("b", 1, {"CPU": 2})], [node("x", 3)]).mistakes
    assert "not all of them at once" in line
    assert "a 1 x 2 CPU; b 1 x 2 CPU" in line


def test_a_search_that_is_given_up_rules_nothing_out() -> None:
    nodes = [node(f"n{i}", 10 + i / 100) for i in range(12)]
    groups = [Group(f"g{i}", 3, {"CPU": 3.3 + i / 10}) for i in range(12)]
    placed = fit(groups, nodes)
    assert placed.unsure
    assert not placed.mistakes


def test_groups_of_a_file() -> None:
    file = ServeFile.model_validate(
        {
            "applications": [
                {
                    "name": "drafts",
                    "route_prefix": None,
                    "args": {
                        "draft": {
                            "model": {"path": "d"},
                            "autoscaling": {"min_replicas": 0, "max_replicas": 3},
                            "placement": {"label_selector": {"role": "draft"}, "max_replicas_per_node": 1},
                        }
                    },
                },
                {
                    "name": "llama",
                    "args": {
                        "target": {
                            "model": CUDA | {"tensor_parallel": 2},
                            "draft_application": "drafts",
                            "rank_placement": "SPREAD",
                        }
                    },
                    "deployments": [{"name": "target", "num_replicas": 2}],
                },
            ]
        }
    )
    drafts, llama = groups_of(file)
    assert (drafts.replicas, drafts.per_node, drafts.selector) == (0, 1, {"role": "draft"})
    assert groups_of(file, everything=True)[0].replicas == 3
    assert (llama.replicas, llama.ranks, llama.strategy, llama.bundle) == (2, 2, "SPREAD", {"CPU": 1, "GPU": 1})


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"label_selector": {"role": "draft"}}, "no node has the labels role=draft"),
        ({"resources": {"fast": 1}}, "a replica takes 1 CPU, 1 fast, more than any node has"),
    ],
)
def test_this_machine_alone_has_no_labels_and_no_resources(place: dict[str, Any], said: str, tmp_path: Path) -> None:
    target = {"mode": "ar", "model": {"path": "m"}, "placement": place}
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"name": "t", "args": {"target": target}}]}))
    with pytest.raises(ConfigError, match=f"t: {said}"):
        local.serve(path)
