"""A loaded model with its KV memory: the one thing that engines run forwards on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from ssd_kernels.cpu import CpuKernels
from torch import Tensor

from ssd_cluster.config import ModelSettings
from ssd_cluster.errors import CheckpointError, ConfigError
from ssd_cluster.model.batch import ForwardBatch
from ssd_cluster.model.checkpoint import Checkpoint, open_checkpoint, resolve_checkpoint
from ssd_cluster.model.cpu_kernels import attention, cpu_kernels, layers, rounded, row_ops
from ssd_cluster.model.decoder import Decoder
from ssd_cluster.model.decoder_config import DecoderConfig, parse_config
from ssd_cluster.model.device import pin_thread, resolve_device, resolve_dtype, set_threads
from ssd_cluster.model.huge_pages import HUGE_PAGE, use_huge_pages
from ssd_cluster.model.kv import BlockPool, PagedKV, TailPool
from ssd_cluster.model.paged import as_tensor, page_slots
from ssd_cluster.model.weights import WHOLE, load_weights

if TYPE_CHECKING:
    from ssd_cluster.model.parallel.launcher import RankLauncher
    from ssd_cluster.model.parallel.layers import RankLayout


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """What a ``ModelRunner`` is made of; see its attributes."""

    settings: ModelSettings
    config: DecoderConfig
    decoder: Decoder
    kv: PagedKV
    max_context: int
    pool: BlockPool
    tails: TailPool | None
    output_ids: Tensor | None
    model_hash: str
    kernels: CpuKernels | None
    device: torch.device
    dtype: torch.dtype


class ModelRunner:
    """Runs forwards of one model. Used by one thread at a time; that thread calls ``pin`` once before it starts.

    Attributes:
        config: shape of the model.
        max_context: positions a sequence may have here: limited by the model, the settings and the KV pool.
        pool: bookkeeping of the KV pages.
        tails: slots for speculation branches, or None.
        output_ids: [V_out] int64, target id of each column of the logits, or None if column and id are the same.
        model_hash: names the checkpoint; equal for equal weights, as they were rounded.
        kernels: the compiled CPU kernels that it runs with, or None.
        device: where it runs.
        dtype: of weights and KV pages.
    """

    def __init__(self, parts: RunnerParts) -> None:
        self.config = parts.config
        self.max_context = parts.max_context
        self.pool = parts.pool
        self.tails = parts.tails
        self.output_ids = parts.output_ids
        self.model_hash = parts.model_hash
        self.kernels = parts.kernels
        self.device = parts.device
        self.dtype = parts.dtype
        self._settings = parts.settings
        self._kv: PagedKV | None = parts.kv
        self._decoder: Decoder | None = parts.decoder

    @property
    def failure(self) -> str | None:
        """Why no forward can run any more although nothing has been tried, or None."""
        return None

    def pin(self) -> None:
        """Give the calling thread this model's cores and compute threads.

        Raises:
            ConfigError: the cores cannot be used.
        """
        if self._settings.cores is not None:
            pin_thread(self._settings.cores)
        set_threads(self._settings.compute_threads)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> Tensor:
        """Run every token of every span; writes their keys and values.

        Returns:
            [n_logits, V_out] float32 on ``device``, in span order, then row order.

        Raises:
            ValueError: a span does not fit its block table, its tails, or the context.
            RuntimeError: the runner is closed.
        """
        if self._decoder is None:
            raise RuntimeError("the model runner is closed")
        return self._decoder.forward(batch)

    @torch.inference_mode()
    def keep(self, block_table: list[int], start: int, nodes: Sequence[int]) -> None:
        """Make a path of a tree (``MaskedSpan``) part of its sequence: its keys and values go to places ``start`` on.

        Args:
            block_table: of the span.
            start: of the span.
            nodes: the path, from the root on.

        Raises:
            RuntimeError: the runner is closed.
        """
        if self._kv is None:
            raise RuntimeError("the model runner is closed")
        slots = as_tensor(page_slots(block_table, start, start + max(nodes) + 1, self.pool.block_size))
        slots = slots.to(self.device)
        path = slots[torch.tensor(nodes, device=self.device)]
        self._kv.data.index_copy_(1, slots[: len(path)], self._kv.data.index_select(1, path))

    def close(self) -> None:
        """Drop weights and KV memory; safe to call twice."""
        self._decoder = self._kv = None
        self.tails = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def load_runner(
    settings: ModelSettings, *, tail_slots: int = 0, tail_depth: int = 0, launcher: RankLauncher | None = None
) -> ModelRunner:
    """Load a model and reserve its KV memory.

    ``tail_slots`` and ``tail_depth`` size the memory of speculation branches (slots, tokens per slot); 0: none.
    ``launcher`` starts the other ranks of a model with ``tensor_parallel``; None: in child processes.

    Raises:
        CheckpointError: the checkpoint is missing, broken, or needs a feature that the decoder does not have.
        ConfigError: device, context or KV size do not fit the model.
        StartupError: another rank did not come up.
    """
    if settings.tensor_parallel > 1:
        from ssd_cluster.model.parallel.driver import load_parallel

        return load_parallel(settings, launcher, tail_slots=tail_slots, tail_depth=tail_depth)
    checkpoint = open_checkpoint(resolve_checkpoint(settings.path))
    config = parse(checkpoint)
    return ModelRunner(load_part(settings, checkpoint, config, tail_slots=tail_slots, tail_depth=tail_depth))


def parse(checkpoint: Checkpoint) -> DecoderConfig:
    """The shape of a checkpoint's model."""
    return parse_config(checkpoint.config, checkpoint.generation_config)


def load_part(
    settings: ModelSettings,
    checkpoint: Checkpoint,
    config: DecoderConfig,
    layout: RankLayout | None = None,
    *,
    tail_slots: int = 0,
    tail_depth: int = 0,
) -> RunnerParts:
    """Load a model, or with ``layout`` the part of it that has this ``config``, and reserve its KV memory.

    Raises:
        CheckpointError, ConfigError: as ``load_runner``.
    """
    set_threads(settings.compute_threads)
    max_context = _max_context(settings, config)
    device = resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype, device)
    tensors = checkpoint.tensors(None if layout is None else layout.shard.cut)
    kernels = cpu_kernels(settings, dtype, device)
    linear = layers(settings, kernels, dtype, device)
    weights = load_weights(config, tensors, linear, dtype, device, layout or WHOLE)
    pool = BlockPool(settings.kv_tokens // settings.block_size, settings.block_size, settings.prefix_cache)
    kv = PagedKV(config.n_layers, pool, config.n_kv_heads, config.head_dim, dtype, device)
    tails = None
    if tail_slots and tail_depth:
        tails = TailPool(tail_slots, tail_depth, config.n_layers, config.n_kv_heads, config.head_dim, device)
    backend = attention(settings.attention, kernels, config, kv, tails)
    if device.type == "cpu" and weights.embedding.table.nbytes >= HUGE_PAGE:  # smaller models stay in the caches
        use_huge_pages()
    return RunnerParts(
        settings,
        config,
        Decoder(config, weights, backend, max_context, row_ops(kernels)),
        kv,
        max_context=max_context,
        pool=pool,
        tails=tails,
        output_ids=weights.output_ids,
        model_hash=checkpoint.hash + ("-int8" if rounded(settings, kernels) else ""),
        kernels=kernels,
        device=device,
        dtype=dtype,
    )


def _max_context(settings: ModelSettings, config: DecoderConfig) -> int:
    asked = settings.max_context
    if asked is not None and asked > config.max_context:
        raise ConfigError(
            f"max_context {asked} is more than the {config.max_context} tokens that {settings.path} was made for",
            param="max_context",
        )
    context = asked or config.max_context
    if config.sliding_window is not None and config.sliding_window < context:
        raise CheckpointError(
            f"{settings.path} uses sliding-window attention over {config.sliding_window} tokens, which is not "
            f"supported; set max_context to at most {config.sliding_window}",
            param="max_context",
        )
    return min(context, settings.kv_tokens // settings.block_size * settings.block_size)
