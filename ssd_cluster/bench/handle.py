"""What the benchmark asks of an engine and what it gets back; knows no engine."""

from __future__ import annotations

from typing import Protocol

from pydantic import Field

from ssd_cluster.config import Settings
from ssd_cluster.types import Mode

VERIFY_PHASES = ("target_forward", "noise", "process", "verify")
"""What makes up T_v; ``verify`` is the rule alone."""
PHASES = (*VERIFY_PHASES, "draft_wait", "link", "other")


class Workload(Settings):
    """Prompts answered in one run, at most ``batch`` at a time, each with the seed ``seed`` + its index.

    ``raw``: prompts are text to continue; otherwise each is the user's turn of a chat. ``keep_text``: records hold the
    token ids.
    """

    prompts: tuple[str, ...] = Field(min_length=1)
    max_tokens: int = Field(ge=1)
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    seed: int = 0
    batch: int = Field(default=1, ge=1)
    raw: bool = False
    ignore_eos: bool = False
    keep_text: bool = False


class RequestRecord(Settings):
    """One answered prompt. Times are seconds of one clock; token counts are the engine's usage.

    ``spec_steps``, ``draft_tokens``, ``accepted_tokens``: rounds with a proposal, tokens proposed, and those emitted.
    ``output_crc``: CRC-32 of the token ids, to compare modes. ``submitted_s``: when it was asked; 0: not known.
    ``first_tokens``: tokens that were there at ``first_token_s``. ``text``: the token ids of prompt and answer, if the
    workload keeps them.
    """

    first_token_s: float
    finished_s: float
    prompt_tokens: int
    completion_tokens: int
    spec_steps: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    output_crc: int = 0
    submitted_s: float = 0.0
    first_tokens: int = Field(default=1, ge=1)
    text: tuple[tuple[int, ...], tuple[int, ...]] | None = None


class PlannedRounds(Settings):
    """Rounds in which a controller allowed ``k`` tokens and ``rows`` branches, and misses to ``wait``; k = 0: plain."""

    k: int
    rows: int
    wait: bool
    rounds: int


class RunRecord(Settings):
    """One run of a workload on one engine.

    ``rounds`` and ``phase_s`` (sums, seconds) cover pure decoding rounds; ``hit_path_s`` are samples of the time from
    the end of one target forward to the start of the next where no row missed. ``hit_round_s``: samples of the time of
    whole rounds in which every row hit. ``plans``: what a controller planned,
    with the decoding rounds of each.
    """

    requests: tuple[RequestRecord, ...]
    rounds: int
    phase_s: dict[str, float]
    hit_path_s: tuple[float, ...] = ()
    hit_round_s: tuple[float, ...] = ()
    plans: tuple[PlannedRounds, ...] = ()


class EngineHandle(Protocol):
    """An engine of one mode, ready to run workloads; used by one thread."""

    @property
    def mode(self) -> Mode: ...

    @property
    def name(self) -> str:
        """What its results are called."""
        ...

    def run(self, workload: Workload) -> RunRecord:
        """Answer every prompt.

        Raises:
            SsdClusterError: a request failed, or the engine stopped or made no progress within its deadline.
        """
        ...

    def close(self) -> None:
        """Stop the engine and everything it started; safe to call twice."""
        ...
