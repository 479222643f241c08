"""What each mode's engine consists of, worked out from the command line; plain data that crosses to the workers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from ssd_cluster.config import (
    DraftSettings,
    DType,
    FanoutLaw,
    ModelSettings,
    Settings,
    SpeculationSettings,
    TargetSettings,
    distrust,
)
from ssd_cluster.errors import ConfigError
from ssd_cluster.types import Mode


class LinkBackend(StrEnum):
    """Where the draft of a local engine runs: on a thread of this process, or in a process of its own over gRPC."""

    INPROCESS = "inprocess"
    GRPC = "grpc"


class EngineSpec(Settings):
    """One engine and, unless it decodes plainly, its draft and how it is reached.

    Benchmarks only: ``random_fallback``: rows that miss and do not wait verify random tokens; ``script``: file of what
    a synthetic draft says (``bench.synthetic``).
    """

    target: TargetSettings
    draft: DraftSettings | None = None
    link: LinkBackend = LinkBackend.INPROCESS
    random_fallback: bool = False
    script: Path | None = None

    @model_validator(mode="after")
    def _laws_come_from_a_trusted_draft(self) -> EngineSpec:
        reason = distrust(self.target, self.draft) if self.draft is not None else None
        if reason is not None:
            raise ValueError(reason)
        return self

    @property
    def mode(self) -> Mode:
        return self.target.mode


class PairOptions(Settings):
    """The pair and the machine, the same for all modes.

    ``target_cores``, ``draft_cores``: None takes the first and the second core that this process may use.
    ``speculation``: of the target; its ``rows`` also size the draft. ``tensor_parallel``: ranks of the target, in
    processes of their own; its cores are divided among them. ``int8``: whose weights are rounded to 8 bits.
    """

    target: str
    draft: str
    speculation: SpeculationSettings
    fanout: FanoutLaw = FanoutLaw.MEASURED
    dtype: DType = DType.AUTO
    target_cores: tuple[int, ...] | None = None
    draft_cores: tuple[int, ...] | None = None
    kv_tokens: int = 16384
    max_batch: int = 1
    tensor_parallel: int = Field(default=1, ge=1)
    int8: Literal["target", "draft", "both"] | None = None


def engine_spec(mode: Mode, options: PairOptions, link: LinkBackend | None = None) -> EngineSpec:
    """The engine of one mode: the target on its cores; the draft on the same (``sd``) or on its own (``ssd``).

    ``link``: None takes the in-process link for ``sd`` and gRPC for ``ssd``.

    Raises:
        ConfigError: mode ``ssd`` has only one core for both and none were named, or ``sd`` is to use gRPC.
    """
    if link is None:
        link = LinkBackend.GRPC if mode is Mode.SSD else LinkBackend.INPROCESS
    if mode is Mode.SD and link is LinkBackend.GRPC:
        raise ConfigError("mode sd drafts on the target's own cores, over the in-process link only", param="link")
    own, other = default_cores(options.tensor_parallel)
    target_cores = options.target_cores or own
    draft_cores = target_cores if mode is Mode.SD else options.draft_cores or other
    trust = "bench" if options.speculation.ratio and mode is not Mode.AR else None
    target = TargetSettings(
        model=_model("target", options, target_cores, options.tensor_parallel),
        mode=mode,
        max_batch=options.max_batch,
        speculation=options.speculation,
        trust_domain=trust,
    )
    if mode is Mode.AR:
        return EngineSpec(target=target)
    if draft_cores is None:
        raise ConfigError(
            "mode ssd needs a second core for the draft; name one with --draft-cores", param="draft_cores"
        )
    draft = DraftSettings(
        model=_model("draft", options, draft_cores),
        k_max=max(1, options.speculation.k),
        row_credit=max(1, options.speculation.rows * options.max_batch),
        fanout=options.fanout,
        session_credit=max(1, 2 * options.max_batch),
        trust_domain=trust,
    )
    return EngineSpec(target=target, draft=draft, link=link)


def traced(spec: EngineSpec, path: Path | None) -> EngineSpec:
    """The same engine, its target's rounds recorded in ``path`` and its draft's forwards in ``path`` + ".draft"."""
    if path is None:
        return spec
    target = spec.target.model_copy(update={"trace": path})
    draft = spec.draft and spec.draft.model_copy(update={"trace": path.with_name(path.name + ".draft")})
    return spec.model_copy(update={"target": target, "draft": draft})


def default_cores(ranks: int = 1) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """One core per rank of the target and another for the draft, of those this process may use; None where too few."""
    if not hasattr(os, "sched_getaffinity"):
        return None, None
    cores: Sequence[int] = sorted(os.sched_getaffinity(0))
    own = tuple(cores[:ranks]) if len(cores) >= ranks else None
    return own, ((cores[ranks],) if len(cores) > ranks else None)


def _model(
    role: Literal["target", "draft"], options: PairOptions, cores: tuple[int, ...] | None, ranks: int = 1
) -> ModelSettings:
    """
    Raises:
        ConfigError: the cores cannot be divided among the ranks, or ranks and int8 weights are asked for at once.
    """
    try:
        return ModelSettings(
            path=options.target if role == "target" else options.draft,
            dtype=options.dtype,
            weights="int8" if options.int8 in (role, "both") else "dtype",
            cores=cores,
            kv_tokens=options.kv_tokens,
            tensor_parallel=ranks,
        )
    except ValidationError as error:
        raise ConfigError(error.errors()[0]["msg"], param="tensor_parallel") from error
