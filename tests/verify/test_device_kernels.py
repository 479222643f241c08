"""What runs where the rows are on a GPU, here on the CPU through the kernels' torch references: the same outcomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from support.ratio_batches import random_batch

from ssd_cluster.errors import NumericalError
from ssd_cluster.sampling import coupled
from ssd_cluster.verify import Outcome, VerifyBatch, block, token
from ssd_cluster.verify import chain as chain_module

RULES = pytest.mark.parametrize("rule", [token, block], ids=["token", "block"])
Rule = Callable[[VerifyBatch], list[Outcome]]


@pytest.fixture
def padded(monkeypatch: pytest.MonkeyPatch) -> Callable[[Rule, VerifyBatch], list[Outcome]]:
    """Runs a rule as it runs off the CPU."""

    def run(rule: Rule, batch: VerifyBatch) -> list[Outcome]:
        with monkeypatch.context() as patch:
            patch.setattr(chain_module, "chain_by_chain", lambda device: False)
            return rule(batch)

    return run


@RULES
@pytest.mark.parametrize("vocabulary", [5, 130, 2049])
def test_kernels_say_what_the_rules_say(
    padded: Callable[[Rule, VerifyBatch], list[Outcome]], rule: Rule, vocabulary: int
) -> None:
    seen: set[int] = set()
    for seed in range(20):
        batch = random_batch(seed, vocabulary)
        wanted = rule(batch)
        found = padded(rule, batch)
        assert found == wanted
        assert [o.law_refused for o in found] == [o.law_refused for o in wanted]
        seen.update(o.kept for o in wanted)
    assert len(seen) > 5, "the batches do not try enough lengths"


@RULES
def test_kernels_that_find_nothing_to_draw_are_an_error(
    padded: Callable[[Rule, VerifyBatch], list[Outcome]], rule: Rule
) -> None:
    batch = random_batch(1, 17)
    broken = replace(batch, probs=torch.full_like(batch.probs, float("nan")))
    with pytest.raises(NumericalError):
        padded(rule, broken)


def test_coupled_draws_by_kernel_are_those_of_the_cpu() -> None:
    gen = torch.Generator().manual_seed(3)
    probs = torch.softmax(3 * torch.randn(64, 1023, generator=gen), -1)
    probs[::3, 100:] = 0.0
    probs[5] = torch.full((1023,), 1 / 1023)
    noise = torch.rand(64, 1023, generator=gen).clamp_(min=2.0**-24).log().neg()
    noise[7] = 1.0  # greedy
    noise[5] = 1.0  # all equal: the lowest id
    found = coupled._sample_on_device(probs, noise)
    assert found.tolist() == coupled.coupled_sample(probs, noise).tolist()
    assert found[5] == 0
    assert found.dtype == torch.int64
    assert coupled._sample_on_device(probs[:0], noise[:0]).tolist() == []


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_coupled_draws_by_kernel_from_nothing_are_an_error(value: float) -> None:
    probs = torch.full((3, 7), 1 / 7)
    probs[1] = value
    with pytest.raises(NumericalError):
        coupled._sample_on_device(probs, torch.ones(3, 7))
