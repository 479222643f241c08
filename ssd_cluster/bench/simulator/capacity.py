"""How many sequences one draft replica carries before its hit rate falls."""

from __future__ import annotations

from ssd_cluster.bench.simulator.laws import PowerLaws
from ssd_cluster.bench.simulator.run import Laws, simulate
from ssd_cluster.bench.simulator.settings import SimulationSettings
from ssd_cluster.types import Mode

_LOOKUPS = 10_000
_LEAST_ROUNDS = 20
_MOST = 4096


def carried_sequences(settings: SimulationSettings, laws: Laws = PowerLaws, *, fall: float = 0.1) -> int:
    """Most sequences, in targets of ``settings.batch``, with a hit rate of at least 1 - ``fall`` of a lone target's.

    Searched by doubling and halving, which takes the hit rate to fall with load. 0 if a single target has no hits; at
    most 4096 targets.
    """

    def hit_rate(targets: int) -> float:
        rounds = max(_LEAST_ROUNDS, min(settings.rounds, _LOOKUPS // (targets * settings.batch)))
        warm_up = min(settings.warm_up, 2 * _LEAST_ROUNDS)
        one = {"mode": Mode.SSD, "drafts": 1, "targets": targets, "rounds": rounds, "warm_up": warm_up}
        return simulate(settings.model_copy(update=one), laws).hit_rate or 0.0

    floor = (1 - fall) * hit_rate(1)
    if floor <= 0:
        return 0
    enough, too_many = 1, 2
    while too_many <= _MOST and hit_rate(too_many) >= floor:
        enough, too_many = too_many, 2 * too_many
    while too_many - enough > 1:
        middle = (enough + too_many) // 2
        if hit_rate(middle) >= floor:
            enough = middle
        else:
            too_many = middle
    return enough * settings.batch
