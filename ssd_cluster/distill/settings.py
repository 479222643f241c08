"""Configuration of a distillation: what is collected, which draft is built, how it is trained."""

from __future__ import annotations

import hashlib

from pydantic import Field, model_validator

from ssd_cluster.config import Device, DType, Settings


class CollectSettings(Settings):
    """Stage 1. The target writes ``conversations`` chats (prompt and answer) in shards of ``shard_size``.

    ``top_m``: probabilities stored per position. ``temperatures``: mix of the answers' temperatures, used in turn.
    ``batch``: conversations decoded together. ``own_prompt_share``: prompts that the target starts from nothing; the
    rest begin with one of our openings or are one of ``prompts``, complete user turns, in equal parts.
    """

    conversations: int = Field(default=12288, ge=8)
    shard_size: int = Field(default=512, ge=1)
    batch: int = Field(default=96, ge=1)
    top_m: int = Field(default=16, ge=1, le=256)
    prompt_tokens: int = Field(default=96, ge=8)
    answer_tokens: int = Field(default=192, ge=8)
    prompt_temperature: float = Field(default=0.9, gt=0)
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.7, 1.0)
    own_prompt_share: float = Field(default=0.5, ge=0, le=1)
    prompts: tuple[str, ...] = ()

    @property
    def shards(self) -> int:
        return -(-self.conversations // self.shard_size)


class DraftShape(Settings):
    """Stage 2. Layers of the target that start the draft, and the size of its output head (None: all ids)."""

    layers: tuple[int, ...] = (0, 1, 2, 3, 8, 16, 24, 29)
    head: int | None = Field(default=8192, ge=256)

    @model_validator(mode="after")
    def _has_layers(self) -> DraftShape:
        if not self.layers:
            raise ValueError("layers must name at least one layer of the target")
        return self


class TrainSettings(Settings):
    """Stage 3. AdamW with warm-up and cosine decay; early stop on the held-out loss.

    ``max_minutes`` bounds one call of the stage; calling it again goes on from the last checkpoint.
    """

    passes: float = Field(default=4.0, gt=0)
    batch_tokens: int = Field(default=4096, ge=128)
    learning_rate: float = Field(default=1e-3, gt=0)
    warmup_steps: int = Field(default=50, ge=0)
    weight_decay: float = Field(default=0.01, ge=0)
    cross_entropy: float = Field(default=0.1, ge=0)
    held_out: float = Field(default=0.02, gt=0, lt=0.5)
    evaluate_every: int = Field(default=100, ge=1)
    patience: int = Field(default=8, ge=1)
    max_minutes: float | None = Field(default=None, gt=0)


class DistillSettings(Settings):
    """Everything that decides the draft; ``seed`` makes all stages repeatable on one kind of machine."""

    target: str
    seed: int = 1
    device: Device = Device.CPU
    dtype: DType = DType.AUTO
    threads: int = Field(default=1, ge=1)
    collect: CollectSettings = CollectSettings()
    shape: DraftShape = DraftShape()
    train: TrainSettings = TrainSettings()

    def collect_key(self) -> str:
        """Names the data that these settings collect; a folder with another key is not resumed."""
        text = f"{self.target}|{self.seed}|{self.collect.model_dump_json(exclude={'conversations', 'batch'})}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]
