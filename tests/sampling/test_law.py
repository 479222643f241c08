"""Statistics over fixed seeds: coupled draws follow the processed law, coupled drafts are accepted as often as due.

Seeds are fixed, so a run either always passes or always fails. Family-wise level: all chi-square tests of this file
together reject a correct sampler with probability 1e-3 (Bonferroni over ``FAMILY``).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from ssd_kernels.philox import exponential_noise

from ssd_cluster.sampling.coupled import coupled_sample
from ssd_cluster.sampling.processors import RowParams, process

DRAWS = 20_000
LOGITS = torch.tensor([1.2, -0.3, 0.4, 1.2, -2.0, 0.0, 0.9, -1.1, 0.4])
CASES = [
    RowParams(1.0),
    RowParams(0.7),
    RowParams(1.7),
    RowParams(1.0, top_k=4),
    RowParams(0.7, top_p=0.8),
    RowParams(1.0, min_p=0.3),
    RowParams(1.3, top_k=7, top_p=0.9, min_p=0.1),
    RowParams(1.0, banned_ids=(0, 3)),
]
# Per case: over seeds, over positions, pairs of positions; and the three below the cases.
FAMILY = 3 * len(CASES) + 3
LEVEL = 1e-3 / FAMILY


def draw(law: torch.Tensor, seeds: list[int], positions: list[int]) -> np.ndarray:
    noise = exponential_noise(seeds, positions, len(law), backend="torch")
    return coupled_sample(law.expand(len(seeds), -1), noise).numpy()


def p_value(observed: np.ndarray, expected: np.ndarray) -> float:
    possible = expected > 0
    assert observed[~possible].sum() == 0
    return float(stats.chisquare(observed[possible], expected[possible]).pvalue)


@pytest.mark.parametrize("params", CASES, ids=str)
def test_draws_follow_the_processed_law(params: RowParams) -> None:
    law = process(LOGITS.unsqueeze(0), [params])[0]
    wanted = law.double().numpy()
    wanted /= wanted.sum()
    by_seed = draw(law, list(range(DRAWS)), [17] * DRAWS)
    by_position = draw(law, [2**63 + 5] * DRAWS, list(range(DRAWS)))
    for drawn in (by_seed, by_position):
        assert p_value(np.bincount(drawn, minlength=len(law)), wanted * DRAWS) > LEVEL
    pairs = np.bincount(by_position[0::2] * len(law) + by_position[1::2], minlength=len(law) ** 2)
    joint = np.outer(wanted, wanted).ravel()
    frequent = joint * DRAWS / 2 >= 5
    observed = np.append(pairs[frequent], pairs[~frequent].sum())
    expected = np.append(joint[frequent], joint[~frequent].sum()) * DRAWS / 2
    assert p_value(observed, expected) > LEVEL


def test_a_wrong_law_is_noticed() -> None:
    """The test above has power: the law at temperature 1 is refused for draws at 1.1."""
    drawn = draw(process(LOGITS.unsqueeze(0), [RowParams(1.1)])[0], list(range(DRAWS)), [17] * DRAWS)
    wanted = process(LOGITS.unsqueeze(0), [RowParams(1.0)])[0].double().numpy()
    assert p_value(np.bincount(drawn, minlength=len(LOGITS)), wanted / wanted.sum() * DRAWS) < LEVEL


def test_neighbouring_seeds_are_independent() -> None:
    """Choice c of n uses seed + c."""
    law = torch.full((4,), 0.25)
    first, second = (draw(law, [s + c for s in range(0, 2 * DRAWS, 2)], [3] * DRAWS) for c in (0, 1))
    table = np.bincount(first * 4 + second, minlength=16)
    assert p_value(table, np.full(16, DRAWS / 16)) > LEVEL


def test_every_word_of_a_block_is_uniform_and_exponential() -> None:
    noise = exponential_noise(list(range(5000)), [1] * 5000, 4, backend="torch").double()
    for column in noise.T:
        assert stats.kstest(column.numpy(), "expon").pvalue > LEVEL / 2


@pytest.mark.parametrize("concentration", [0.3, 1.0, 5.0])
def test_acceptance_lies_between_the_bounds_of_total_variation(concentration: float) -> None:
    """(1 - d) / (1 + d) <= P(x = y) <= 1 - d with d = TV(p, q), up to four standard errors."""
    draws = 4000
    rng = np.random.default_rng(int(concentration * 10))
    for round_ in range(6):
        p, q = (torch.from_numpy(rng.dirichlet([concentration] * 12)).float() for _ in range(2))
        if round_ == 5:
            q = p.clone()
        seeds, positions = list(range(draws)), [round_] * draws
        rate = float((draw(p, seeds, positions) == draw(q, seeds, positions)).mean())
        d = 0.5 * float((p - q).abs().sum())
        slack = 4 * math.sqrt(0.25 / draws) if d else 0.0
        assert (1 - d) / (1 + d) - slack <= rate <= 1 - d + slack
        assert d > 0.05 or rate == 1
