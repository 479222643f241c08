"""Ranks of a tensor-parallel target as Ray actors, in the bundles of its replica's placement group.

The replica, rank 0, is in bundle 0. The actors are owned by it: Ray ends them when it is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ssd_cluster.config import ModelSettings
from ssd_cluster.errors import SsdClusterError, StartupError
from ssd_cluster.model.device import pin_thread
from ssd_cluster.model.parallel.launcher import RankLauncher, RankOrder
from ssd_cluster.model.parallel.worker import serve_rank
from ssd_cluster.serve.placement import Placement, demand_of


class RankActor:
    """A rank in a worker process of Ray."""

    def serve(self, order: str) -> str | None:
        """Be a rank until rank 0 says stop; the reason if it ends otherwise."""
        parsed = RankOrder.model_validate_json(order)
        if parsed.model.cores is not None:
            pin_thread(parsed.model.cores)
        try:
            serve_rank(parsed, ray.util.get_node_ip_address(), lambda: None)
        except SsdClusterError as error:
            return error.message
        return None


class RayRanks(RankLauncher):
    """Ranks in the bundles 1 to N-1 of the calling replica's placement group; blocks, so not for an event loop."""

    own_devices = True  # Ray shows each actor the GPU of its bundle only

    def __init__(self, model: ModelSettings, placement: Placement) -> None:
        self.address = str(ray.util.get_node_ip_address())
        self._options = actor_options(model, placement)
        self._actors: list[Any] = []
        self._ends: list[Any] = []

    def start(self, orders: Sequence[RankOrder]) -> None:
        group = ray.util.get_current_placement_group()
        if group is None:
            raise StartupError("tensor_parallel needs a placement group: deploy with ssd_cluster.serve.app:build")
        for order in orders:
            place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=order.rank)
            actor = ray.remote(RankActor).options(scheduling_strategy=place, **self._options).remote()
            self._actors.append(actor)
            self._ends.append(actor.serve.remote(order.model_dump_json()))

    def ended(self) -> str | None:
        done, _ = ray.wait(self._ends, timeout=0) if self._ends else ([], [])
        if not done:
            return None
        rank = self._ends.index(done[0]) + 1
        try:
            reason = ray.get(done[0])
        except ray.exceptions.RayError as error:
            reason = type(error).__name__
        return f"rank {rank} has ended: {reason or 'rank 0 has told it to'}"

    def close(self, timeout_s: float) -> None:
        if self._ends and timeout_s > 0:
            ray.wait(self._ends, num_returns=len(self._ends), timeout=timeout_s)
        for actor in self._actors:
            ray.kill(actor)
        self._actors.clear()


def actor_options(model: ModelSettings, placement: Placement) -> dict[str, Any]:
    """What one replica, or one rank, takes of its node, for Ray; without labels, which belong to the whole replica."""
    demand, threads = demand_of(model, placement), model.compute_threads
    options: dict[str, Any] = {
        "num_cpus": demand.cpus,
        "num_gpus": demand.gpus,
        "resources": dict(demand.custom),
        "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}},
    }
    return options if demand.memory is None else options | {"memory": demand.memory}


def placement_options(model: ModelSettings, placement: Placement, strategy: str = "PACK") -> dict[str, Any]:
    """Where replicas of a deployment may run; with ``tensor_parallel`` a bundle for each rank, rank 0 in the first."""
    actor = actor_options(model, placement)
    labels = dict(placement.label_selector)
    if model.tensor_parallel == 1:
        spread = placement.max_replicas_per_node
        options: dict[str, Any] = {"ray_actor_options": actor | ({"label_selector": labels} if labels else {})}
        return options if spread is None else options | {"max_replicas_per_node": spread}
    bundles = [demand_of(model, placement).bundle for _ in range(model.tensor_parallel)]
    options = {
        "ray_actor_options": actor,
        "placement_group_bundles": bundles,
        "placement_group_strategy": strategy,
    }
    return options | ({"placement_group_bundle_label_selector": [labels]} if labels else {})


def launcher_of(model: ModelSettings, placement: Placement) -> RayRanks | None:
    """What starts the other ranks of a replica's model; None where there are none."""
    return RayRanks(model, placement) if model.tensor_parallel > 1 else None
