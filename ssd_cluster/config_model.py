"""Settings of a model: where it lies and what it runs on."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ssd_cluster.config_base import Settings

Cores = Annotated[tuple[int, ...], Field(min_length=1)]
RANK_TIMEOUT_S = 30.0


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


class DType(StrEnum):
    """``AUTO``: bfloat16 on CUDA and on CPUs with native bf16 instructions, float32 otherwise."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class ModelSettings(Settings):
    """One model on one device, or on one per rank.

    ``path``: a Hugging Face folder, a .gguf file, a hub id, or a name of the embedded default ("smollm2-135m-instruct",
    "smollm2-135m-draft"). ``cores``: CPU cores this replica pins itself to (None: no pinning); ``threads``: compute
    threads (None: one per core, or 1). ``kv_tokens``: capacity of the KV pool in tokens. ``attention``: "sdpa" runs
    everywhere, "flashinfer" on CUDA in bfloat16. ``cpu_kernels``: "auto" compiles kernels in C once where a compiler is
    installed and runs them on the CPU; "off" keeps to torch. ``weights``: "int8" rounds weights and inputs of linear
    layers to 8 bits (CPU, one rank); the text is then that of the rounded model. "auto", for drafts, does so where the
    kernels for it run: a draft never changes the text.

    ``tensor_parallel``: ranks that share every layer (docs/tensor-parallel.md). ``cores`` are then divided among them,
    ``threads`` are per rank. ``rank_timeout_s``: longest wait of a rank for another within a forward.
    """

    path: str
    device: Device = Device.CPU
    dtype: DType = DType.AUTO
    cores: Cores | None = None
    threads: int | None = Field(default=None, ge=1)
    max_context: int | None = Field(default=None, ge=16)
    kv_tokens: int = Field(default=16384, ge=64)
    block_size: int = Field(default=16, ge=1, le=256)
    attention: Literal["sdpa", "flashinfer"] = "sdpa"
    cpu_kernels: Literal["auto", "off"] = "auto"
    weights: Literal["dtype", "int8", "auto"] = "dtype"
    prefix_cache: bool = True
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    rank_timeout_s: float = Field(default=RANK_TIMEOUT_S, gt=0)

    @model_validator(mode="after")
    def _ranks_fit(self) -> ModelSettings:
        if self.tensor_parallel == 1 and self.rank_timeout_s != RANK_TIMEOUT_S:
            raise ValueError("rank_timeout_s needs tensor_parallel above 1: with one rank there is none to wait for")
        if self.cores is not None and len(self.cores) % self.tensor_parallel:
            raise ValueError(f"{len(self.cores)} cores cannot be divided among {self.tensor_parallel} ranks")
        return self

    @model_validator(mode="after")
    def _attention_fits_the_device(self) -> ModelSettings:
        if self.attention == "flashinfer" and (self.device is not Device.CUDA or self.dtype is DType.FLOAT32):
            raise ValueError(
                f"attention flashinfer needs device cuda and dtype bfloat16, not {self.device} and {self.dtype}; "
                "use attention sdpa"
            )
        return self

    @model_validator(mode="after")
    def _int8_can_run(self) -> ModelSettings:
        if self.weights != "int8":
            return self
        if self.device is not Device.CPU or self.cpu_kernels == "off":
            raise ValueError("weights int8 need device cpu and cpu_kernels auto; use weights dtype elsewhere")
        if self.tensor_parallel > 1:
            raise ValueError("weights int8 need tensor_parallel 1: each rank would round its part by itself")
        return self

    @property
    def compute_threads(self) -> int:
        """Of each rank."""
        return self.threads or (len(self.cores) // self.tensor_parallel if self.cores else 1)

    def of_rank(self, rank: int) -> ModelSettings:
        """The settings of one rank by itself: its part of the cores, as the only rank."""
        n = len(self.cores or ()) // self.tensor_parallel
        cores = self.cores and self.cores[rank * n : (rank + 1) * n]
        return self.model_copy(update={"cores": cores, "tensor_parallel": 1, "rank_timeout_s": RANK_TIMEOUT_S})
