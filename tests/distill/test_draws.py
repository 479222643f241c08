"""Laws and draws of many rows against plain torch."""

from __future__ import annotations

import pytest
import torch

from ssd_cluster.distill.draws import draw, top_law


@pytest.mark.parametrize("vocabulary", [20, 320, 5000, 49152])
def test_top_law_is_that_of_a_plain_softmax(vocabulary: int) -> None:
    logits = 3 * torch.randn(7, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    ids, p = top_law(logits.clone(), 16)
    expected = logits.softmax(-1).topk(16, dim=-1)
    torch.testing.assert_close(p, expected.values)
    assert torch.equal(ids, expected.indices)


def test_temperature_zero_is_the_argmax() -> None:
    logits = torch.randn(5, 1000, generator=torch.Generator().manual_seed(1))
    drawn = draw(logits, torch.zeros(5), torch.full((5,), 0.99))
    assert torch.equal(drawn, logits.argmax(-1))


@pytest.mark.parametrize("vocabulary", [5, 320, 1000])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_draws_follow_the_law_at_every_number(vocabulary: int, temperature: float) -> None:
    """Evenly spread uniform numbers give every id as often as its probability says, to one draw or two."""
    n = 20_000
    logits = 2 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(2))
    uniform = (torch.arange(n) + 0.5) / n
    drawn = torch.cat(
        [draw(logits.expand(len(u), -1).clone(), torch.full((len(u),), temperature), u) for u in uniform.split(4000)]
    )
    counts = torch.bincount(drawn, minlength=vocabulary)
    expected = n * (logits.double() / temperature).softmax(-1)
    assert float((counts - expected).abs().max()) < 3


def test_ids_without_weight_are_never_drawn() -> None:
    logits = torch.full((2, 700), -torch.inf)
    logits[:, [3, 400]] = 0.0
    ends = torch.tensor([0.0, 1 - 2**-24])
    assert draw(logits, torch.ones(2), ends).tolist() == [3, 400]


def test_rows_keep_their_own_temperature() -> None:
    logits = torch.randn(4, 600, generator=torch.Generator().manual_seed(4))
    heat, uniform = torch.tensor([0.0, 0.7, 1.0, 0.7]), torch.rand(4, generator=torch.Generator().manual_seed(5))
    together = draw(logits.clone(), heat, uniform)
    apart = [int(draw(logits[i : i + 1].clone(), heat[i : i + 1], uniform[i : i + 1])) for i in range(4)]
    assert together.tolist() == apart
