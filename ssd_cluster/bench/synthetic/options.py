"""Options of synthetic acceptance, recording plain decoding for it, and what it is checked by."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssd_cluster.bench.engines import start_engines
from ssd_cluster.bench.handle import VERIFY_PHASES, RunRecord, Workload
from ssd_cluster.bench.spec import EngineSpec
from ssd_cluster.bench.summary import ModeResult
from ssd_cluster.bench.synthetic.script import RecordedText, ScriptFile
from ssd_cluster.errors import ConfigError
from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.types import Mode


def add_synthetic(parser: argparse.ArgumentParser) -> None:
    """``--synthetic-acceptance`` and ``--synthetic-hit``."""
    add = parser.add_argument
    add("--synthetic-acceptance", type=_probability, default=None, metavar="P", help="replace drafted tokens: each is "
        "the right one with this probability; forwards stay real, and the table says so")  # fmt: skip
    add("--synthetic-hit", type=_probability, default=None, metavar="P", help="with it: t* is among the guesses with "
        "this probability")  # fmt: skip


def wanted(arguments: argparse.Namespace) -> bool:
    """Whether a synthetic draft is asked for.

    Raises:
        ConfigError: only one of the two probabilities was given, or they do not fit the other options.
    """
    acceptance, hit = arguments.synthetic_acceptance, arguments.synthetic_hit
    if (acceptance is None) != (hit is None):
        raise ConfigError("--synthetic-acceptance and --synthetic-hit belong together", param="synthetic_acceptance")
    if acceptance is not None and set(arguments.modes.split(",")) <= {"ar"}:
        raise ConfigError("--synthetic-acceptance needs mode sd or ssd", param="synthetic_acceptance")
    if acceptance is not None and arguments.kind != "coupled":
        raise ConfigError("--synthetic-acceptance is for --kind coupled", param="synthetic_acceptance")
    return acceptance is not None


def write_script(
    path: Path,
    plain: EngineSpec,
    drafted: Sequence[EngineSpec],
    workloads: Sequence[Workload],
    script: ScriptFile,
    progress: Callable[[str], None],
) -> None:
    """Decode every prompt plainly, write what was said as a script, and add how drafted rounds put it.

    In bfloat16 a verification over k + 1 rows may settle a near tie otherwise than a plain step, and the text goes on
    from there. What every ``drafted`` engine says with the script so far is therefore recorded too.

    Args:
        path: file to write.
        plain: of mode ``ar``.
        drafted: in mode ``sd``, one per k that is to be measured.
        workloads: that are to be measured.
        script: its probabilities.
        progress: told what happens.
    """
    texts: dict[RecordedText, None] = {}
    for spec in (plain, *drafted):
        if texts:
            spec = spec.model_copy(update={"script": path})
        (engine,) = start_engines([spec], progress)
        try:
            for workload in workloads:
                progress(f"recording temperature {workload.temperature:g}, batch {workload.batch}")
                texts |= dict.fromkeys(recorded(workload, engine.run(workload.model_copy(update={"keep_text": True}))))
        finally:
            engine.close()
        path.write_text(script.model_copy(update={"texts": tuple(texts)}).model_dump_json(), encoding="utf-8")


def recorded(workload: Workload, record: RunRecord) -> list[RecordedText]:
    """The texts of a run that kept them."""
    texts = []
    for index, request in enumerate(record.requests):
        if request.text is None:
            raise ValueError("the run did not keep its text")
        prompt, tokens = request.text
        seed = SamplingParams(max_tokens=1).choice_seed(workload.seed + index, 0)
        texts.append(RecordedText(prompt=prompt, tokens=tokens, temperature=workload.temperature, seed=seed))
    return texts


def headline(arguments: argparse.Namespace) -> str:
    """What stands above a table of synthetic results."""
    return (
        f"SYNTHETIC draft in sd and ssd: real forwards; each drafted token is right with probability "
        f"{arguments.synthetic_acceptance:g}, t* is among the guesses with {arguments.synthetic_hit:g}"
    )


def round_check(result: ModeResult, info: Mapping[str, Any], k: int, rows: int) -> str | None:
    """Measured rounds beside max(T_v, T_draft) + hit path, for one result of mode ssd; None without what it takes.

    Args:
        result: of a batch.
        info: of its engine: the draft's step time as measured at its start.
        k: tokens proposed per round.
        rows: guessed outcomes per round and sequence.
    """
    step, hit_path = info.get("draft_step_time"), result.round_ms["hit_path"]
    if result.mode is not Mode.SSD or step is None or hit_path is None or result.hit_round_ms is None:
        return None
    verify = sum(result.round_ms[phase] or 0.0 for phase in VERIFY_PHASES)
    draft = draft_ms(step, k, rows, result.batch)
    expected = max(verify, draft) + hit_path
    return (
        f"ssd T={result.temperature:g} batch {result.batch}: rounds that hit take {result.hit_round_ms:.2f} ms, "
        f"max(T_v {verify:.2f}, T_draft {draft:.2f}) + hit path {hit_path:.2f} = {expected:.2f} ms "
        f"({100 * (result.hit_round_ms / expected - 1):+.1f} %); all rounds {result.round_ms['total']:.2f} ms"
    )


def draft_ms(step: Mapping[str, float], k: int, rows: int, batch: int) -> float:
    """Time of one block for every sequence: the forward over t* and the proposal, then k forwards over all branches."""

    def forward(n: int) -> float:
        return (step["base_us"] + step["per_row_us"] * n) / 1e3

    return forward(batch * (k + 1)) + k * forward(batch * rows)


def _probability(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value
