"""Whether this process runs the compiled CPU kernels: loaded (and compiled, the first time) and checked, or not."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

import torch
from ssd_kernels.backends import KernelUnavailable
from ssd_kernels.cpu import CpuKernels
from ssd_kernels.philox import exponential_noise

from ssd_cluster.config import ModelSettings, cache_dir
from ssd_cluster.errors import ConfigError
from ssd_cluster.model.attention import AttentionBackend, attention_backend
from ssd_cluster.model.compiled_attention import CompiledAttention, agrees
from ssd_cluster.model.decoder_config import DecoderConfig
from ssd_cluster.model.kv import PagedKV, TailPool
from ssd_cluster.model.linear import (
    Int8Linear,
    LinearFactory,
    TiledLinear,
    int8_agrees,
    linear_backend,
    tiles_agree,
)
from ssd_cluster.model.row_ops import CompiledRowOps, EagerRowOps, RowOps, agree

log = logging.getLogger(__name__)


def cpu_kernels(settings: ModelSettings, dtype: torch.dtype, device: torch.device) -> CpuKernels | None:
    """The kernels for a model with these settings, or None: it runs in torch. The log says so if it was to run them."""
    if device.type != "cpu" or settings.cpu_kernels == "off":
        return None
    try:
        return _checked(cache_dir(), dtype)
    except KernelUnavailable as reason:
        log.warning("the model runs without compiled CPU kernels: %s", reason)
        return None


@functools.lru_cache(maxsize=4)
def _checked(folder: Path, dtype: torch.dtype) -> CpuKernels:
    kernels = CpuKernels(folder)
    right = agree(CompiledRowOps(kernels), EagerRowOps(), dtype) and agrees(kernels, dtype) and int8_agrees(kernels)
    if not right or not _draws_agree(kernels) or (kernels.tiles and not tiles_agree(kernels)):
        raise KernelUnavailable("they compute something else than torch here")
    return kernels


def _draws_agree(kernels: CpuKernels) -> bool:
    """Whether noise and the race are those of torch, on a small example."""
    noise = kernels.exponential(-3, 7, 99, 1, 2)
    exact = exponential_noise([-3], [7], 99, domain=1, rounds=[2])[0]
    law = torch.linspace(1, 0, 99)
    won = kernels.race(noise, law) == int((noise / law).argmin()) and kernels.largest(noise) == int(noise.argmax())
    return won and torch.allclose(noise, exact, rtol=1e-6, atol=0)


def rounded(settings: ModelSettings, kernels: CpuKernels | None) -> bool:
    """Whether linear layers have int8 weights."""
    return kernels is not None if settings.weights == "auto" else settings.weights == "int8"


def layers(
    settings: ModelSettings, kernels: CpuKernels | None, dtype: torch.dtype, device: torch.device
) -> LinearFactory:
    """What makes the linear layers.

    Raises:
        ConfigError: int8 weights are asked for, and the kernels for them are not there.
    """
    if not rounded(settings, kernels):
        if kernels is not None and kernels.tiles and dtype is torch.bfloat16:
            return functools.partial(TiledLinear, kernels)
        return linear_backend(dtype, device)
    if kernels is None:
        raise ConfigError(
            "weights int8 need the compiled CPU kernels, and a line of the log above says why they cannot run here; "
            "install a C compiler or use weights dtype",
            param="weights",
        )
    return functools.partial(Int8Linear, kernels)


def row_ops(kernels: CpuKernels | None) -> RowOps:
    """The operations between linear layers."""
    return EagerRowOps() if kernels is None else CompiledRowOps(kernels)


def attention(
    name: str, kernels: CpuKernels | None, config: DecoderConfig, kv: PagedKV, tails: TailPool | None
) -> AttentionBackend:
    """The backend of a name; ``sdpa`` with the compiled kernel where there is one for the model.

    Raises:
        ConfigError: there is no such backend.
    """
    backend = attention_backend(name)
    if name == "sdpa" and kernels is not None and CompiledAttention.fits(config):
        return CompiledAttention(config, kv, tails, kernels)
    return backend(config, kv, tails)
