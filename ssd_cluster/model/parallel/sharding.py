"""Which part of a model a rank holds: heads, columns of the MLP, rows of the vocabulary (Megatron-LM's scheme)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ssd_cluster.errors import CheckpointError, ConfigError
from ssd_cluster.model.decoder_config import DecoderConfig
from ssd_cluster.model.weights import HEAD_IDS

_MOST_NAMED = 64


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of rank ``rank`` of ``size``.

    Key and value heads are held by several ranks where there are fewer heads than ranks. The vocabulary is cut into
    equal parts, of which the last may be shorter.
    """

    whole: DecoderConfig
    rank: int
    size: int

    @property
    def config(self) -> DecoderConfig:
        """What this rank's decoder computes; its vocabulary is still the whole one."""
        whole, size = self.whole, self.size
        return dataclasses.replace(
            whole,
            n_heads=whole.n_heads // size,
            n_kv_heads=max(1, whole.n_kv_heads // size),
            intermediate=whole.intermediate // size,
        )

    @property
    def columns(self) -> int:
        """Rows of the vocabulary per rank; the last one may have fewer."""
        return -(-self.whole.vocab_size // self.size)

    @property
    def vocabulary(self) -> range:
        """Token ids whose embedding and logits this rank holds."""
        return range(self.rank * self.columns, min((self.rank + 1) * self.columns, self.whole.vocab_size))

    def cut(self, name: str, shape: tuple[int, ...]) -> tuple[slice, ...] | None:
        """The part of a checkpoint's tensor to read; None: none of it.

        Raises:
            CheckpointError: the tensor has not the size that config.json says, or belongs to a reduced head.
        """
        if name == HEAD_IDS:
            raise CheckpointError("a model with a reduced head cannot be split over ranks; use tensor_parallel 1")
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            return self._part(name, shape, 0, self.whole.vocab_size, self.vocabulary)
        module, _, kind = name.rpartition(".")
        match module.rpartition(".")[2]:
            case "q_proj":
                return self._part(name, shape, 0, *self._heads())
            case "k_proj" | "v_proj":
                return self._part(name, shape, 0, *self._kv_heads())
            case "gate_proj" | "up_proj":
                return self._part(name, shape, 0, *self._inner())
            case "o_proj" | "down_proj" if kind == "bias":
                return tuple(map(slice, shape)) if self.rank == 0 else None  # the ranks' results are added up
            case "o_proj":
                return self._part(name, shape, 1, *self._heads())
            case "down_proj":
                return self._part(name, shape, 1, *self._inner())
        return tuple(map(slice, shape))

    def _heads(self) -> tuple[int, range]:
        width, part = self.whole.n_heads * self.whole.head_dim, self.config.n_heads * self.whole.head_dim
        return width, range(self.rank * part, (self.rank + 1) * part)

    def _kv_heads(self) -> tuple[int, range]:
        whole, held = self.whole, self.config.n_kv_heads
        first = self.rank * whole.n_kv_heads // self.size
        return whole.n_kv_heads * whole.head_dim, range(first * whole.head_dim, (first + held) * whole.head_dim)

    def _inner(self) -> tuple[int, range]:
        part = self.config.intermediate
        return self.whole.intermediate, range(self.rank * part, (self.rank + 1) * part)

    @staticmethod
    def _part(name: str, shape: tuple[int, ...], axis: int, width: int, part: range) -> tuple[slice, ...]:
        if len(shape) <= axis or shape[axis] != width:
            raise CheckpointError(f"tensor {name} has shape {list(shape)}, config.json asks for {width} on axis {axis}")
        slices = list(map(slice, shape))
        slices[axis] = slice(part.start, part.stop)
        return tuple(slices)


def shard_of(config: DecoderConfig, rank: int, size: int) -> Shard:
    """The part of a rank.

    Raises:
        ConfigError: the model cannot be split into ``size`` parts; the message names numbers that it can be split into.
    """
    reason = _misfit(config, size)
    if reason is not None:
        fitting = ", ".join(str(n) for n in range(1, _MOST_NAMED + 1) if _misfit(config, n) is None)
        raise ConfigError(
            f"tensor_parallel {size}: {reason}; this model runs on {fitting} ranks", param="tensor_parallel"
        )
    return Shard(config, rank, size)


def _misfit(config: DecoderConfig, size: int) -> str | None:
    """Why the model cannot be split into ``size`` parts, or None."""
    for what, number in (("query heads", config.n_heads), ("MLP columns", config.intermediate)):
        if number % size:
            return f"{number} {what} cannot be split evenly"
    if config.n_kv_heads % size and size % config.n_kv_heads:
        return f"{config.n_kv_heads} key/value heads can neither be split nor repeated evenly"
    if not Shard(config, size - 1, size).vocabulary:
        return f"a vocabulary of {config.vocab_size} leaves nothing for the last rank"
    return None
