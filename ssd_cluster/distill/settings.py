"""Configuration of a distillation: what is collected, which draft is built, how it is trained."""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import Field, model_validator

from ssd_cluster.config import Device, DType, Settings


class CollectSettings(Settings):
    """Stage 1. The target writes chats (prompt and answer) in ``shards`` of ``lanes_per_shard * lane_width``.

    ``lanes``: lanes decoded together, ``lane_width`` chats each. ``top_m``: probabilities stored per position.
    ``temperatures``: of the answers, used in turn. Of the user turns ``whole_prompt_share`` are whole: one of
    ``prompts`` or (``code_prompts``) the head of a library function, each of at most ``whole_prompt_tokens``;
    ``own_prompt_share`` are the target's own from the first word; the rest complete one of our openings.
    """

    shards: int = Field(default=40, ge=1)
    lanes_per_shard: int = Field(default=8, ge=1)
    lane_width: int = Field(default=32, ge=1)
    lanes: int = Field(default=9, ge=1)
    top_m: int = Field(default=16, ge=1, le=256)
    prompt_tokens: int = Field(default=72, ge=2)
    whole_prompt_tokens: int = Field(default=112, ge=1)
    answer_tokens: int = Field(default=160, ge=1)
    prompt_temperature: float = Field(default=0.8, gt=0)
    temperatures: tuple[float, ...] = Field(default=(0.0, 0.0, 0.7, 1.0), min_length=1)
    whole_prompt_share: float = Field(default=0.3, ge=0, le=1)
    own_prompt_share: float = Field(default=0.1, ge=0, le=1)
    code_prompts: bool = True
    prompts: tuple[str, ...] = ()


class ScoreSettings(Settings):
    """Stage 1, first part: text that is at hand is scored by the target, one pass each, until ``tokens`` are there.

    ``sources``: "library" (Python's standard library), "packages" (installed Python packages) and "debian"
    (/usr/share/doc), as far as they state a permissive licence; ``folders``: your own files, not asked for a licence.
    ``window``: tokens of a text that are used. ``documents_per_shard``: texts in a shard.
    """

    tokens: int = Field(default=0, ge=0)
    sources: tuple[Literal["library", "packages", "debian"], ...] = ("library", "packages", "debian")
    folders: tuple[str, ...] = ()
    window: int = Field(default=240, ge=16)
    documents_per_shard: int = Field(default=256, ge=1)


class DraftShape(Settings):
    """Stage 2. Layers of the target that start the draft, and the size of its output head (None: all ids).

    ``start``: an earlier draft of the same shape to go on from, for example with more data; its head ids are kept.
    """

    layers: tuple[int, ...] = (0, 1, 2, 3, 8, 16, 24, 29)
    head: int | None = Field(default=8192, ge=16)
    start: str | None = None

    def key(self) -> str:
        """Names the untrained draft of this shape."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:8]

    @model_validator(mode="after")
    def _has_layers(self) -> DraftShape:
        if not self.layers:
            raise ValueError("layers must name at least one layer of the target")
        return self


class TrainSettings(Settings):
    """Stage 3. AdamW with warm-up and cosine decay; early stop on the held-out loss.

    ``passes`` over what the target wrote; in the first ``bulk_passes`` of them scored text is mixed in.
    ``max_minutes`` bounds one call of the stage; calling it again goes on from the last checkpoint.
    """

    passes: float = Field(default=4.0, gt=0)
    bulk_passes: int = Field(default=1, ge=0)
    batch_tokens: int = Field(default=4096, ge=128)
    learning_rate: float = Field(default=1e-3, gt=0)
    warmup_steps: int = Field(default=50, ge=0)
    weight_decay: float = Field(default=0.01, ge=0)
    cross_entropy: float = Field(default=0.1, ge=0)
    held_out: float = Field(default=0.02, gt=0, lt=0.5)
    evaluate_every: int = Field(default=100, ge=1)
    patience: int = Field(default=8, ge=1)
    max_minutes: float | None = Field(default=None, gt=0)


class ReportSettings(Settings):
    """Stage 4. Tokens generated per prompt, temperature and mode."""

    max_tokens: int = Field(default=64, ge=1)


class DistillSettings(Settings):
    """Everything that decides the draft; ``seed`` makes all stages repeatable on one kind of machine."""

    target: str
    seed: int = 1
    device: Device = Device.CPU
    dtype: DType = DType.AUTO
    threads: int = Field(default=1, ge=1)
    score: ScoreSettings = ScoreSettings()
    collect: CollectSettings = CollectSettings()
    shape: DraftShape = DraftShape()
    train: TrainSettings = TrainSettings()
    report: ReportSettings = ReportSettings()

    def collect_key(self) -> str:
        """Names the data that these settings collect; a folder with another key is not resumed."""
        text = f"{self.target}|{self.seed}|{self.collect.model_dump_json(exclude={'shards', 'lanes'})}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def score_key(self) -> str:
        """Names the scored text of these settings, as ``collect_key`` names what the target wrote."""
        scored = self.score.model_dump_json(exclude={"tokens"})
        text = f"{self.target}|{self.seed}|{scored}|{self.collect.top_m}|{self.collect.whole_prompt_tokens}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]
