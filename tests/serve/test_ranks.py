"""What a tensor-parallel target asks of Serve, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.tiny import make_checkpoint

from ssd_cluster.bench.spec import PairOptions, default_cores, engine_spec
from ssd_cluster.config import Device, ModelSettings, SpeculationSettings
from ssd_cluster.errors import ConfigError, StartupError
from ssd_cluster.serve.args import TargetAppArgs
from ssd_cluster.serve.checks import require_split
from ssd_cluster.serve.placement import Placement
from ssd_cluster.types import Mode


def args(**fields: Any) -> TargetAppArgs:
    return TargetAppArgs.model_validate({"mode": "ar", "model": {"path": "x"}, **fields})


def test_one_bundle_per_rank() -> None:
    from ssd_cluster.serve.ranks import placement_options

    place = Placement()
    model = ModelSettings(path="x", cores=(0, 1, 2, 3), tensor_parallel=2)
    options = placement_options(model, place, "SPREAD")
    assert options["placement_group_bundles"] == [{"CPU": 2}, {"CPU": 2}]
    assert options["placement_group_strategy"] == "SPREAD"
    assert options["ray_actor_options"]["num_cpus"] == 2
    gpu = placement_options(model.model_copy(update={"device": Device.CUDA, "tensor_parallel": 4}), place, "PACK")
    assert gpu["placement_group_bundles"] == [{"CPU": 1, "GPU": 1}] * 4
    assert gpu["ray_actor_options"]["num_gpus"] == 1
    assert "placement_group_bundles" not in placement_options(ModelSettings(path="x"), place)


def test_a_deployment_carries_the_bundles() -> None:
    from ssd_cluster.serve.app import build
    from ssd_cluster.serve.args import AppArgs

    target = args(model={"path": "x", "tensor_parallel": 2}, rank_placement="STRICT_SPREAD")
    config = build(AppArgs(target=target))._bound_deployment._replica_config
    assert config.placement_group_bundles == [{"CPU": 1}, {"CPU": 1}]
    assert config.placement_group_strategy == "STRICT_SPREAD"
    whole = build(AppArgs(target=args()))._bound_deployment._replica_config
    assert whole.placement_group_bundles is None


def test_placement_without_ranks_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"rank_placement needs model\.tensor_parallel"):
        args(rank_placement="SPREAD")


def test_a_model_that_cannot_be_split_is_named(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path)
    require_split("t: target.model", ModelSettings(path=str(folder), tensor_parallel=2))
    require_split("t: target.model", ModelSettings(path="nowhere"))
    with pytest.raises(StartupError, match=r"t: target\.model: tensor_parallel 3: .* runs on 1, 2, 4 ranks"):
        require_split("t: target.model", ModelSettings(path=str(folder), tensor_parallel=3))


def test_commands_give_each_rank_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 3, 5})
    assert default_cores() == ((2,), (3,))
    assert default_cores(2) == ((2, 3), (5,))
    assert default_cores(3) == ((2, 3, 5), None)
    assert default_cores(4) == (None, None)
    options = PairOptions(target="t", draft="d", speculation=SpeculationSettings(), tensor_parallel=2)
    spec = engine_spec(Mode.SSD, options)
    assert (spec.target.model.tensor_parallel, spec.target.model.cores) == (2, (2, 3))
    assert spec.draft is not None
    assert (spec.draft.model.tensor_parallel, spec.draft.model.cores) == (1, (5,))
    with pytest.raises(ConfigError, match="3 cores cannot be divided among 2 ranks"):
        engine_spec(Mode.AR, options.model_copy(update={"target_cores": (1, 2, 3)}))
