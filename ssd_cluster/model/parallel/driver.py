"""Rank 0: what engines use instead of a ``ModelRunner`` when the model is split over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssd_cluster.config import ModelSettings
from ssd_cluster.errors import ConfigError
from ssd_cluster.model.batch import ForwardBatch
from ssd_cluster.model.checkpoint import open_checkpoint, resolve_checkpoint
from ssd_cluster.model.decoder_config import DecoderConfig
from ssd_cluster.model.device import resolve_device
from ssd_cluster.model.parallel.crew import Crew
from ssd_cluster.model.parallel.launcher import LocalRanks, RankLauncher
from ssd_cluster.model.parallel.layers import RankLayout
from ssd_cluster.model.parallel.sharding import shard_of
from ssd_cluster.model.parallel.wire import Keep
from ssd_cluster.model.runner import ModelRunner, RunnerParts, load_part, parse

START_TIMEOUT_S = 600.0


class ParallelRunner(ModelRunner):
    """A model whose forwards run on this rank and, in lockstep, on the others."""

    def __init__(self, parts: RunnerParts, config: DecoderConfig, crew: Crew) -> None:
        super().__init__(parts)
        self.config = config
        self._crew = crew

    @property
    def failure(self) -> str | None:
        return self._crew.failure

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> Tensor:
        """As ``ModelRunner.forward``.

        Raises:
            ValueError, RuntimeError: as there.
            RankError: another rank is gone or does not answer; nothing can run any more.
        """
        with self._crew.running(batch):
            logits = super().forward(batch)
            self._crew.group.settle()
            return logits

    @torch.inference_mode()
    def keep(self, block_table: list[int], start: int, nodes: Sequence[int]) -> None:
        """As ``ModelRunner.keep``.

        Raises:
            RankError: another rank is gone.
        """
        with self._crew.running(Keep(block_table, start, list(nodes))):
            super().keep(block_table, start, nodes)

    def close(self) -> None:
        """End the other ranks and drop the memory of this one; safe to call twice."""
        self._crew.close()
        super().close()


def load_parallel(
    settings: ModelSettings,
    launcher: RankLauncher | None = None,
    *,
    tail_slots: int = 0,
    tail_depth: int = 0,
    start_timeout_s: float = START_TIMEOUT_S,
) -> ParallelRunner:
    """Load a model as rank 0 of ``settings.tensor_parallel``, and start the other ranks.

    ``launcher``: None takes child processes of this one.

    Raises:
        CheckpointError, ConfigError: as ``load_runner``, or the model cannot be split so; no rank was started.
        StartupError: a rank did not come up; none is left.
    """
    launcher = launcher if launcher is not None else LocalRanks()
    checkpoint = open_checkpoint(resolve_checkpoint(settings.path))
    whole = parse(checkpoint)
    shard = shard_of(whole, 0, settings.tensor_parallel)
    device = _first_device(settings, launcher)
    crew = Crew(
        settings, launcher, device, start_timeout_s=start_timeout_s, tail_slots=tail_slots, tail_depth=tail_depth
    )
    try:
        layout = RankLayout(shard, crew.group)
        own = settings.of_rank(0)
        parts = load_part(own, checkpoint, shard.config, layout, tail_slots=tail_slots, tail_depth=tail_depth)
        crew.await_ready(checkpoint.hash)
    except BaseException:
        crew.close()
        raise
    return ParallelRunner(parts, whole, crew)


def _first_device(settings: ModelSettings, launcher: RankLauncher) -> torch.device:
    device = resolve_device(settings.device)
    if device.type != "cuda":
        return device
    if not launcher.own_devices and torch.cuda.device_count() < settings.tensor_parallel:
        raise ConfigError(
            f"tensor_parallel {settings.tensor_parallel} needs as many GPUs; this process sees "
            f"{torch.cuda.device_count()}",
            param="tensor_parallel",
        )
    return torch.device("cuda", torch.cuda.current_device())
