"""Measures a target-draft pair: acceptance, hit rate and step times, and what the speed model makes of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import Any, TypeVar

from ssd_cluster.bench.local import LocalEngine
from ssd_cluster.bench.spec import EngineSpec, PairOptions, default_cores, engine_spec
from ssd_cluster.config import ModelSettings
from ssd_cluster.errors import PairMismatch
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan
from ssd_cluster.model.checkpoint import resolve_checkpoint
from ssd_cluster.model.runner import ModelRunner, load_runner
from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.speculation.speed import PairTimes, Prediction, acceptance_from_tokens, predict
from ssd_cluster.target.request import SpeculationStats
from ssd_cluster.text.tokenizer import Tokenizer, compare, remarks
from ssd_cluster.types import Mode

PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "A shop sells 12 apples a day for 5 days. How many apples does it sell in all? Show your steps.",
    "Write a short story about a lighthouse keeper and a lost boat.",
)
A = TypeVar("A")
T = TypeVar("T")

_CONTEXT = 256
_REPEATS = 15


@dataclass(slots=True)
class Acceptance:
    """What the draft's proposals were worth at one temperature.

    Attributes:
        kept: ``kept[j]``: share of rounds with a proposal of more than j tokens that kept more than j of them.
        tokens_per_round: mean of kept + 1 over rounds with a proposal.
        hit_rate: share of cache lookups that hit, in mode ``ssd``.
    """

    temperature: float
    kept: list[float]
    tokens_per_round: float
    hit_rate: float


@dataclass(slots=True)
class PairReport:
    """Everything ``check-pair`` says; ``as_json`` for machines."""

    k: int
    rows: int
    remarks: list[str]
    times: PairTimes
    acceptance: list[Acceptance] = field(default_factory=list)
    predictions: dict[float, Prediction] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "k": self.k,
            "rows": self.rows,
            "remarks": self.remarks,
            "times_ms": {name: value * 1e3 for name, value in asdict(self.times).items()},
            "acceptance": [asdict(a) for a in self.acceptance],
            "predicted": {
                f"{t:g}": asdict(p) | {"sd_ratio": p.sd_ratio, "ssd_ratio": p.ssd_ratio}
                for t, p in self.predictions.items()
            },
        }


def on_own_thread(work: Callable[[A], T], argument: A) -> T:
    """``work(argument)`` on a thread that ends with it: what it pins does not stay with the caller."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work, argument).result()


def compare_tokenizers(target: str, draft: str) -> list[str]:
    """Remarks on differences that do no harm.

    Raises:
        PairMismatch: token ids do not mean the same; the message names the first difference.
    """
    tokenizers = [Tokenizer.load(resolve_checkpoint(path)) for path in (target, draft)]
    difference = compare(*tokenizers)
    if difference is not None:
        raise PairMismatch(f"{draft} cannot draft for {target}: {difference}")
    return remarks(*tokenizers)


def measure_pair(
    options: PairOptions,
    temperatures: Sequence[float],
    max_tokens: int = 64,
    prompts: Sequence[str] = PROMPTS,
    progress: Callable[[str], None] = lambda line: None,
) -> PairReport:
    """Compare, time and try out a pair on ``prompts``.

    Raises:
        PairMismatch: the tokenizers differ.
        CheckpointError: a model is missing or broken.
    """
    notes = compare_tokenizers(options.target, options.draft)
    own, other = default_cores(options.tensor_parallel)
    shared = options.model_copy(update={"draft_cores": options.draft_cores or other or own})
    specs = {mode: engine_spec(mode, shared) for mode in (Mode.SD, Mode.SSD)}
    progress("timing forward passes")
    k = options.speculation.k
    times = on_own_thread(_times, specs[Mode.SSD])
    report = PairReport(k, options.speculation.rows, notes, times)
    stats: dict[Mode, dict[float, SpeculationStats]] = {}
    for mode, spec in specs.items():
        progress(f"answering {len(prompts)} prompts in mode {mode.value}")
        stats[mode] = try_out(spec, prompts, temperatures, max_tokens)
    for temperature in temperatures:
        sd, ssd = stats[Mode.SD][temperature], stats[Mode.SSD][temperature]
        lookups = ssd.cache_hits + ssd.cache_misses
        found = Acceptance(
            temperature,
            kept_shares(sd.acceptance_histogram),
            sd.mean_acceptance_length,
            ssd.cache_hits / lookups if lookups else 0.0,
        )
        report.acceptance.append(found)
        a = acceptance_from_tokens(found.tokens_per_round, k)
        report.predictions[temperature] = predict(report.times, a, found.hit_rate, k)
    return report


def kept_shares(histogram: Sequence[int]) -> list[float]:
    """Share of rounds that kept more than j tokens, for each j, from a histogram of kept lengths."""
    total = sum(histogram)
    return [sum(histogram[j + 1 :]) / total for j in range(len(histogram) - 1)] if total else []


def try_out(
    spec: EngineSpec, prompts: Sequence[str], temperatures: Sequence[float], max_tokens: int
) -> dict[float, SpeculationStats]:
    """What became of the proposals for ``prompts``, by temperature."""
    sums: dict[float, SpeculationStats] = {}
    with LocalEngine(spec) as local:
        for temperature in temperatures:
            total = sums.setdefault(temperature, SpeculationStats())
            for seed, prompt in enumerate(prompts):
                params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
                _add(total, local.complete(local.encode(prompt, False), params).finished.speculation)
    return sums


def _add(total: SpeculationStats, one: SpeculationStats) -> None:
    for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "cache_hits", "cache_misses"):
        setattr(total, name, getattr(total, name) + getattr(one, name))
    width = max(len(total.acceptance_histogram), len(one.acceptance_histogram))
    padded = [h + [0] * (width - len(h)) for h in (total.acceptance_histogram, one.acceptance_histogram)]
    total.acceptance_histogram = [a + b for a, b in zip(*padded, strict=True)]


def _times(spec: EngineSpec) -> PairTimes:
    """Median forward times of both models, each pinned to its own cores."""
    if spec.draft is None:
        raise ValueError("the specification has no draft")
    return pair_times(spec.target.model, spec.draft.model, spec.target.speculation.k, spec.target.speculation.rows)


def pair_times(target_settings: ModelSettings, draft_settings: ModelSettings, k: int, rows: int) -> PairTimes:
    """Median forward times of two models, measured one after the other; each pins the calling thread to its cores.

    Args:
        target_settings, draft_settings: the pair.
        k: proposed tokens per round.
        rows: branches of a tree step.

    Raises:
        CheckpointError: a model is missing or broken.
    """
    target = load_runner(target_settings)
    try:
        target.pin()
        plain, verify = _causal_time(target, 1), _causal_time(target, k + 1)
    finally:
        target.close()
    draft = load_runner(draft_settings, tail_slots=rows, tail_depth=1)
    try:
        draft.pin()
        return PairTimes(
            plain=plain,
            verify=verify,
            draft_step=_causal_time(draft, 1),
            tree_step=tree_time(draft, rows),
            glue=_causal_time(draft, k + 1),
        )
    finally:
        draft.close()


def _causal_time(runner: ModelRunner, tokens: int) -> float:
    """Seconds of a forward over ``tokens`` tokens behind a context of 256."""
    table = runner.pool.allocate(-(-(_CONTEXT + tokens) // runner.pool.block_size))
    try:
        runner.forward(ForwardBatch([CausalSpan([0] * _CONTEXT, 0, table, _CONTEXT)]))
        return median_time(partial(runner.forward, ForwardBatch([CausalSpan([0] * tokens, _CONTEXT, table)])))
    finally:
        runner.pool.free(table)


def tree_time(runner: ModelRunner, rows: int) -> float:
    """Seconds of a forward over ``rows`` branches behind a context of 256."""
    if runner.tails is None:
        raise ValueError("the draft was loaded without tails")
    table = runner.pool.allocate(-(-_CONTEXT // runner.pool.block_size))
    tails = runner.tails.allocate(rows)
    try:
        runner.forward(ForwardBatch([CausalSpan([0] * _CONTEXT, 0, table, _CONTEXT)]))
        span = TreeSpan([0] * rows, table, [_CONTEXT] * rows, tails, [0] * rows)
        return median_time(partial(runner.forward, ForwardBatch([span])))
    finally:
        runner.tails.free(tails)
        runner.pool.free(table)


def median_time(work: Callable[[], object]) -> float:
    """Median seconds of repeated calls."""
    samples = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        work()
        samples.append(time.perf_counter() - began)
    return median(samples)
