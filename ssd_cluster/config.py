"""The configuration tree: validated at the edge, frozen inside. Only this module reads environment variables."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ssd_cluster.config_base import Settings as Settings
from ssd_cluster.config_controller import ControllerSettings as ControllerSettings
from ssd_cluster.config_http import HttpAccess as HttpAccess
from ssd_cluster.config_http import HttpSettings as HttpSettings
from ssd_cluster.config_link import LawTransport as LawTransport
from ssd_cluster.config_link import LinkSettings as LinkSettings
from ssd_cluster.config_link import TargetLimits, unfit_for_draft
from ssd_cluster.config_link import TensorBackend as TensorBackend
from ssd_cluster.config_link import TensorSettings as TensorSettings
from ssd_cluster.config_model import Device as Device
from ssd_cluster.config_model import DType as DType
from ssd_cluster.config_model import ModelSettings as ModelSettings
from ssd_cluster.types import RATIO_KINDS, Mode, ProposalKind

TrustDomain = Annotated[str, Field(min_length=1, max_length=256)]


class FanoutLaw(StrEnum):
    UNIFORM = "uniform"
    GEOMETRIC = "geometric"
    MEASURED = "measured"


class MissPolicy(StrEnum):
    """What a row without a usable block does (speculation.md section 5)."""

    RULE = "rule"
    ALWAYS_WAIT = "always_wait"
    NEVER_WAIT = "never_wait"
    THRESHOLD = "threshold"


class Fallback(StrEnum):
    """Local proposer of a row that does not wait."""

    NGRAM = "ngram"
    NONE = "none"


class VerifyRule(StrEnum):
    """How drafted tokens are verified. ``HSD`` is another name of ``BLOCK``."""

    EQUALITY = "equality"
    TOKEN = "token"
    BLOCK = "block"
    HSD = "hsd"


class SaguaroSettings(Settings):
    """SAGUARO sampling (Kumar et al. 2026): a draft draws its ``f`` likeliest tokens with ``c`` times their weight.

    ``c`` = 1 switches it off. Below 1 more outcomes are guessed right and fewer drafted tokens are kept.
    """

    c: float = Field(default=1.0, ge=0, le=1)
    f: int = Field(default=4, ge=1, le=256)


DEFAULT_TOP_M = 64


class SpeculationSettings(Settings):
    """How a target speculates.

    ``k``: drafted tokens per round (0 turns speculation off). ``rows``: branches per sequence and round that the draft
    may build. ``wait_ms``: longest wait for a just-in-time chain; a late block is overdue after it. ``chain_k``: most
    tokens of such a chain, None: ``k``. Branches are drafted while the target verifies, a chain while it waits; in mode
    ``sd`` every proposal is a chain.

    ``kind``: how drafted tokens are drawn. ``coupled`` needs nothing but the tokens; for ``sparse`` and ``dense`` the
    laws they were drawn from travel too, and the draft must be trusted (``trust_domain``). ``rule``: None takes
    ``equality`` for ``coupled`` and ``block`` for the others. ``top_m``: entries of a sparse law.

    ``shards``: draft replicas that share the guesses of one sequence by kept length, each with ``rows`` of its own
    (docs/pool.md).

    ``controller``: on, it chooses k, rows and waiting by what it measures, up to these values, and stops speculation
    where it does not pay.
    """

    k: int = Field(default=5, ge=0, le=64)
    rows: int = Field(default=16, ge=0, le=256)
    kind: Literal[ProposalKind.COUPLED, ProposalKind.SPARSE, ProposalKind.DENSE] = ProposalKind.COUPLED
    rule: VerifyRule = VerifyRule.EQUALITY
    top_m: int = Field(default=DEFAULT_TOP_M, ge=1, le=4096)
    saguaro: SaguaroSettings = SaguaroSettings()
    miss_policy: MissPolicy = MissPolicy.RULE
    fallback: Fallback = Fallback.NGRAM
    wait_ms: float = Field(default=100.0, gt=0, le=10_000)
    chain_k: int | None = Field(default=None, ge=1, le=64)
    trie_nodes: int = Field(default=400, ge=16)
    ngram_min: int = Field(default=2, ge=1)
    ngram_max: int = Field(default=5, ge=1)
    shards: int = Field(default=1, ge=1, le=8)
    controller: ControllerSettings = ControllerSettings()

    IN_PLACE: ClassVar[tuple[str, ...]] = (
        *("k", "rows", "rule", "miss_policy", "fallback", "wait_ms", "chain_k", "controller"),
    )
    """What a running target takes over between two rounds."""

    @model_validator(mode="before")
    @classmethod
    def _rule_of_the_kind(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("rule") is None:
            ratio = data.get("kind") in RATIO_KINDS
            data = data | {"rule": VerifyRule.BLOCK if ratio else VerifyRule.EQUALITY}
        return data

    @property
    def ratio(self) -> bool:
        """Whether drafted tokens are verified against the laws they were drawn from."""
        return self.kind in RATIO_KINDS

    @model_validator(mode="after")
    def _rule_fits_kind(self) -> SpeculationSettings:
        if self.ratio == (self.rule is VerifyRule.EQUALITY):
            fitting = "token, block or hsd" if self.ratio else "equality"
            raise ValueError(f"rule {self.rule.value!r} cannot verify kind {self.kind.value!r}: use {fitting}")
        if self.saguaro.c < 1 and not self.ratio:
            raise ValueError(f"saguaro.c below 1 needs kind sparse or dense, not {self.kind.value!r}")
        if self.shards > 1 and self.ratio:
            raise ValueError("shards above 1 needs kind coupled: a law is asked for where it was drawn")
        if self.top_m != DEFAULT_TOP_M and self.kind is not ProposalKind.SPARSE:
            raise ValueError(f"top_m belongs to kind sparse, not {self.kind.value!r}")
        return self

    @model_validator(mode="after")
    def _ngram_order(self) -> SpeculationSettings:
        if self.ngram_min > self.ngram_max:
            raise ValueError(f"ngram_min ({self.ngram_min}) must not exceed ngram_max ({self.ngram_max})")
        return self


class BreakerSettings(Settings):
    """Per draft replica: opens at more than ``late_share`` late of the last ``window`` rounds or on a stream error."""

    window: int = Field(default=16, ge=1)
    late_share: float = Field(default=0.5, gt=0, le=1)
    retry_s: float = Field(default=1.0, gt=0)


class TargetSettings(Settings):
    """A target replica: the model that verifies, its scheduler, and how it speculates.

    ``stall_s``: an engine with work that finishes no step for this long is unhealthy. ``trust_domain``: name that
    target and draft must share where the draft's laws are used (kinds ``sparse`` and ``dense``). ``trace``: file that
    every round is recorded in; ``{pid}`` in its name stands for the process, where there are several replicas.
    """

    model: ModelSettings
    served_name: str | None = None
    mode: Mode = Mode.SSD
    max_batch: int = Field(default=16, ge=1)
    max_waiting: int = Field(default=256, ge=1)
    prefill_chunk: int = Field(default=256, ge=1)
    step_tokens: int = Field(default=512, ge=1)
    default_max_tokens: int = Field(default=512, ge=1)
    stall_s: float = Field(default=60.0, gt=0)
    trust_domain: TrustDomain | None = None
    trace: Path | None = None
    speculation: SpeculationSettings = SpeculationSettings()
    link: LinkSettings = LinkSettings()
    breaker: BreakerSettings = BreakerSettings()

    @property
    def uses_laws(self) -> bool:
        """Whether this target verifies against laws that a draft sends, and so must trust it."""
        return self.mode is not Mode.AR and self.speculation.k > 0 and self.speculation.ratio

    @model_validator(mode="after")
    def _weights_are_named(self) -> TargetSettings:
        if self.model.weights == "auto":
            raise ValueError("model.weights auto is for drafts: a target's text must not depend on a compiler")
        return self

    @model_validator(mode="after")
    def _laws_need_trust(self) -> TargetSettings:
        if self.uses_laws and self.trust_domain is None:
            raise ValueError(
                f"kind {self.speculation.kind.value!r} takes the draft's laws on trust: "
                "set the same trust_domain on the target and its draft"
            )
        if self.link.laws is LawTransport.TENSOR and not self.uses_laws:
            raise ValueError("link.laws = 'tensor' carries draft laws: set kind sparse or dense, or remove it")
        return self

    @property
    def name(self) -> str:
        return self.served_name or Path(self.model.path).name


class DraftSettings(Settings):
    """A draft replica: sessions of all its targets share one model, one KV budget and one batch.

    ``target_weights``: share of each replica of a target (by its name) relative to others, 1 where it is not named.
    ``idle_s``: a session without a commit for this long may lose its KV pages to another. ``load_interval_s``: longest
    time between two Load messages. ``trust_domain``: must equal that of a target that uses this draft's laws.
    ``max_streams``: most connected targets; ``limits``: of each of them. ``trace``: file that forwards and pushed
    blocks are recorded in.
    """

    model: ModelSettings
    k_max: int = Field(default=8, ge=1, le=64)
    row_credit: int = Field(default=256, ge=1)
    session_credit: int = Field(default=64, ge=1)
    max_step_rows: int = Field(default=64, ge=1)
    prefill_chunk: int = Field(default=256, ge=1)
    fanout: FanoutLaw = FanoutLaw.MEASURED
    target_weights: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})
    idle_s: float = Field(default=1.0, gt=0)
    load_interval_s: float = Field(default=1.0, gt=0)
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    trust_domain: TrustDomain | None = None
    trace: Path | None = None
    max_streams: int = Field(default=256, ge=1)
    limits: TargetLimits = TargetLimits()
    link: LinkSettings = LinkSettings()

    @model_validator(mode="after")
    def _one_rank(self) -> DraftSettings:
        if self.model.tensor_parallel > 1:
            raise ValueError("tensor_parallel is for targets: a draft is a small model on one device")
        return self

    @model_validator(mode="after")
    def _protected_beyond_loopback(self) -> DraftSettings:
        if (reason := unfit_for_draft(self.host, self.link)) is not None:
            raise ValueError(reason)
        return self


def distrust(target: TargetSettings, draft: DraftSettings) -> str | None:
    """Why this target may not use the laws of this draft, or None."""
    if not target.uses_laws or target.trust_domain == draft.trust_domain:
        return None
    return (
        f"kind {target.speculation.kind.value!r} takes the draft's laws on trust, but the target's trust_domain is "
        f"{target.trust_domain!r} and the draft's {draft.trust_domain!r}"
    )


def cache_dir() -> Path:
    """Folder of downloaded and converted weights: $SSD_CLUSTER_CACHE, or ``ssd_cluster`` in the user's cache folder."""
    explicit = os.environ.get("SSD_CLUSTER_CACHE")
    if explicit:
        return Path(explicit).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "ssd_cluster"


def dashboard_address() -> str:
    """Of the Ray cluster that commands talk to: $RAY_DASHBOARD_ADDRESS, as for Ray's own, or this machine's."""
    return os.environ.get("RAY_DASHBOARD_ADDRESS") or "http://127.0.0.1:8265"


def set_ray_environment() -> None:
    """Settings of a Ray that serves this machine only; they are read when ray is imported and by its child processes.

    Loopback addresses, no telemetry, no token in the home folder, nothing to wait for at the end.
    """
    os.environ.update(
        RAY_AUTH_MODE="disabled",
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # despite its name: 0 makes the node's address 127.0.0.1 on any system
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
        RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S="0",
        RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S="0.5",  # the pool of drafts grows in seconds
        RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S="0.5",
    )
    os.environ.pop("RAY_ADDRESS", None)


def keep_nccl_from_ending_the_process() -> None:
    """Before the first NCCL group: by default its watchdog ends a process whose peer is gone; we have deadlines."""
    for name in ("ASYNC_ERROR_HANDLING", "ENABLE_MONITORING", "DUMP_ON_TIMEOUT"):
        os.environ.setdefault(f"TORCH_NCCL_{name}", "0")


def child_environment(threads: int) -> dict[str, str]:
    """Environment of a model process that this one starts: ours, with its own number of compute threads."""
    return dict(os.environ) | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
