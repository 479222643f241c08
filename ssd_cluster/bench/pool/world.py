"""From the options of ``bench pool`` to what its targets share and to the drafts that serve them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ssd_cluster.bench.pool.cells import ROOMY, SECOND, TIGHT, WITHIN, Cell
from ssd_cluster.bench.pool.clients import GREED
from ssd_cluster.bench.pool.crowd import World
from ssd_cluster.bench.pool.outcomes import read_outcomes
from ssd_cluster.bench.simulator.times import StepTime
from ssd_cluster.bench.spec import default_cores
from ssd_cluster.config import ControllerSettings, DraftSettings, DType, MissPolicy, ModelSettings, SpeculationSettings
from ssd_cluster.errors import ConfigError
from ssd_cluster.model.checkpoint import open_checkpoint, resolve_checkpoint
from ssd_cluster.model.runner import parse
from ssd_cluster.text.pairs import require_same_ids
from ssd_cluster.text.tokenizer import Tokenizer

_SPARE_TOKENS = 64


def chosen_cores(arguments: argparse.Namespace) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Cores of the targets and of the draft, which share none unless that is asked for.

    Raises:
        ConfigError: there is only one core and none were named.
    """
    own, other = default_cores()
    targets, draft = arguments.target_cores or own, arguments.draft_cores or other
    if targets is None or draft is None:
        raise ConfigError("the draft needs a core of its own; name one with --draft-cores", param="draft_cores")
    return targets, draft


def build_world(arguments: argparse.Namespace, targets: tuple[int, ...]) -> World:
    """What all targets share.

    Raises:
        ConfigError: the outcomes cannot be used, or T_v cannot be read.
        CheckpointError: the recorded target's tokenizer or configuration is missing.
        PairMismatch: the draft has another tokenizer.
    """
    outcomes = read_outcomes(arguments.outcomes, _one_temperature(arguments.temperature))
    require_same_ids(outcomes.target, arguments.draft)
    checkpoint = resolve_checkpoint(outcomes.target)
    tokenizer = Tokenizer.load(checkpoint)
    if tokenizer.hash != outcomes.tokenizer:
        raise ConfigError(
            f"{arguments.outcomes} was recorded with another tokenizer than that of {outcomes.target}: record it again",
            param="outcomes",
        )
    return World(
        outcomes=outcomes,
        config=parse(open_checkpoint(checkpoint)),
        tokenizer=tokenizer,
        model=ModelSettings(path=outcomes.target, cores=targets, threads=1),
        speculation=SpeculationSettings(
            k=arguments.k,
            rows=arguments.rows,
            miss_policy=MissPolicy(arguments.miss_policy),
            wait_ms=arguments.wait_ms,
            chain_k=arguments.chain_k,
            controller=ControllerSettings(enabled=arguments.controller),
        ),
        verify=StepTime.parse(arguments.verify_ms),
    )


def drafts_of(
    arguments: argparse.Namespace, world: World, cells: Sequence[Cell], cores: tuple[int, ...]
) -> dict[str, DraftSettings]:
    """Settings of the drafts that cells name; the tight ones grant a tenth of what the overload's targets want."""
    longest = max(len(text.prompt) + len(text.output) for text in world.outcomes.texts) + _SPARE_TOKENS
    sequences = max(cell.sequences for cell in cells)
    held = max(len(cell.plans) * max(plan.batch for plan in cell.plans) for cell in cells)
    default = DraftSettings.model_fields["session_credit"].default
    wanted = arguments.overload_targets * arguments.overload_batch * arguments.rows
    roomy = DraftSettings(
        model=ModelSettings(
            path=arguments.draft,
            dtype=DType(arguments.dtype),
            weights=arguments.weights,
            cores=cores,
            kv_tokens=max(ModelSettings.model_fields["kv_tokens"].default, sequences * longest),
        ),
        k_max=max(1, arguments.k),
        row_credit=arguments.row_credit,
        session_credit=max(default, held),
        max_step_rows=arguments.max_step_rows,
    )
    spare = arguments.second_draft_cores or arguments.target_cores or default_cores()[0]
    second = roomy.model_copy(update={"model": roomy.model.model_copy(update={"cores": spare})})
    tight = roomy.model_copy(update={"row_credit": max(1, wanted // GREED)})
    return {ROOMY: roomy, SECOND: second, WITHIN: roomy, **dict.fromkeys(TIGHT, tight)}


def _one_temperature(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"--outcomes replays one temperature, got {text!r}", param="temperature") from error
