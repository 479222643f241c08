"""What a replica takes of a node and which nodes it may run on; read without Ray.

Label selectors are Ray's: a value, ``!value``, ``in(a, b)`` or ``!in(a, b)`` for each label.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from ssd_cluster.config import Device, ModelSettings, Settings

_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:{_WORD}(?:\.{_WORD})*/)?{_WORD}")
_ONE = re.compile(rf"(!?)({_WORD})")
_SET = re.compile(rf"(!?)in\(({_WORD}(?:, ?{_WORD})*)\)")
_OWN = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory", "object_store_memory": "memory"}


def _label(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is no label of a node: letters, digits, - _ . and one / after a prefix")
    return key


def _selector(value: str) -> str:
    if not (_ONE.fullmatch(value) or _SET.fullmatch(value)):
        raise ValueError(f"{value!r} is no label selector: write a value, !value, in(a, b) or !in(a, b)")
    return value


def _custom(name: str) -> str:
    if name in _OWN:
        raise ValueError(f"resources are custom ones: for {name} use {_OWN[name]}")
    return name


class Placement(Settings):
    """What each replica (of a tensor-parallel target: each rank) takes of its node, and where it may run.

    ``num_cpus``: None takes the model's compute threads. ``num_gpus``: None takes 1 on CUDA and 0 on a CPU; fractions
    let models share a GPU. ``memory``: bytes that Ray reserves. ``resources``: custom resources that nodes were started
    with. ``label_selector``: labels that the node must have. ``max_replicas_per_node``: spreads replicas.
    """

    num_cpus: float | None = Field(default=None, ge=0)
    num_gpus: float | None = Field(default=None, ge=0)
    memory: int | None = Field(default=None, ge=1)
    resources: dict[Annotated[str, AfterValidator(_custom)], Annotated[float, Field(gt=0)]] = Field(default={})
    label_selector: dict[Annotated[str, AfterValidator(_label)], Annotated[str, AfterValidator(_selector)]] = Field(
        default={}
    )
    max_replicas_per_node: int | None = Field(default=None, ge=1, le=100)


@dataclass(frozen=True, slots=True)
class Demand:
    """Resources by Ray's names (``CPU``, ``GPU``, ``memory`` in bytes, custom ones); none of them is zero."""

    cpus: float
    gpus: float
    memory: int | None
    custom: Mapping[str, float]

    @property
    def bundle(self) -> dict[str, float]:
        """All of them as one bundle of a placement group."""
        named = {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.memory or 0), **self.custom}
        return {name: amount for name, amount in named.items() if amount}


def demand_of(model: ModelSettings, placement: Placement) -> Demand:
    """What one replica, or one rank of it, takes."""
    gpus = placement.num_gpus
    if gpus is None:
        gpus = 1.0 if model.device is Device.CUDA else 0.0
    cpus = float(model.compute_threads) if placement.num_cpus is None else placement.num_cpus
    return Demand(cpus, gpus, placement.memory, placement.resources)


def unsuitable(model: ModelSettings, placement: Placement) -> str | None:
    """Why a model cannot be placed like this, or None."""
    gpus = demand_of(model, placement).gpus
    if model.device is Device.CUDA and not gpus:
        return "placement.num_gpus must be above 0 for device cuda: Ray hides all GPUs from who asks for none"
    if model.device is Device.CPU and gpus:
        return "placement.num_gpus is for device cuda: a model on a CPU would only keep others from the GPU"
    if gpus > 1:
        return f"placement.num_gpus must not exceed 1: a model, or a rank of it, runs on one GPU, not on {gpus:g}"
    if model.tensor_parallel > 1 and placement.max_replicas_per_node is not None:
        return "placement.max_replicas_per_node cannot be combined with tensor_parallel: use rank_placement"
    return None


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels is one that the selector means; an absent label is like no value."""
    return all(_fits(wanted, labels.get(key)) for key, wanted in selector.items())


def _fits(wanted: str, value: str | None) -> bool:
    found = _SET.fullmatch(wanted)
    if found is not None:
        allowed = [word.strip() for word in found[2].split(",")]
    else:
        found = _ONE.fullmatch(wanted)
        allowed = [found[2]] if found is not None else []
    negated = found is not None and found[1] == "!"
    return (value in allowed) != negated
