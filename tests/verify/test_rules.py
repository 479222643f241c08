"""The registry: one rule per kind, mixed kinds in one batch, refusal of what is not there."""

from __future__ import annotations

import pytest
import torch

from ssd_cluster.errors import ConfigError
from ssd_cluster.types import Proposal, ProposalKind
from ssd_cluster.verify import RULES, Outcome, VerifyBatch, equality, rule_for, verify


def one_hot(*ids: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(ids), 10).float()


@pytest.mark.parametrize("kind", [ProposalKind.NONE, ProposalKind.COUPLED, ProposalKind.DELTA])
def test_kinds_without_a_law_use_equality(kind: ProposalKind) -> None:
    assert rule_for(kind) is equality


@pytest.mark.parametrize("kind", [ProposalKind.SPARSE, ProposalKind.DENSE])
def test_ratio_kinds_are_refused(kind: ProposalKind) -> None:
    with pytest.raises(ConfigError, match=f"'{kind}' need a ratio rule, and none is configured"):
        rule_for(kind)
    batch = VerifyBatch([Proposal(3), Proposal(3, (1,), kind)], one_hot(1, 2, 3), [None] * 3)
    with pytest.raises(ConfigError):
        verify(batch)


def test_mixed_kinds_go_to_their_rules_and_come_back_in_order() -> None:
    seen: list[VerifyBatch] = []

    def other(batch: VerifyBatch) -> list[Outcome]:
        seen.append(batch)
        return [Outcome(0, 100 + int(batch.probs[i].argmax())) for i in (0, 2)]

    proposals = [
        Proposal(5, (1, 2), ProposalKind.COUPLED),
        Proposal(5, (6,), ProposalKind.SPARSE),
        Proposal(5),
        Proposal(5, (), ProposalKind.SPARSE),
    ]
    probs = one_hot(1, 2, 3, 6, 7, 8, 9)
    noise = torch.arange(1, 8, dtype=torch.float32).unsqueeze(1).expand(7, 10)
    for rows in (noise, list(noise)):
        seen.clear()
        outcomes = verify(VerifyBatch(proposals, probs, rows), {**RULES, ProposalKind.SPARSE: other})
        assert outcomes == [Outcome(2, 3), Outcome(0, 106), Outcome(0, 8), Outcome(0, 109)]
        assert [p.tokens for p in seen[0].proposals] == [(6,), ()]
        assert torch.equal(seen[0].probs, probs[[3, 4, 6]])
        assert [row[0].item() for row in seen[0].noise if row is not None] == [4.0, 5.0, 7.0]


def test_an_empty_batch() -> None:
    assert verify(VerifyBatch([], torch.empty(0, 4), [])) == []


def test_rows_must_fit_the_proposals() -> None:
    with pytest.raises(ValueError, match="3 rows needed, got probs 2 and noise 3"):
        VerifyBatch([Proposal(0, (1, 2), ProposalKind.DELTA)], one_hot(1, 2), [None] * 3)
    with pytest.raises(ValueError, match="3 rows needed, got probs 3 and noise 2"):
        VerifyBatch([Proposal(0, (1, 2), ProposalKind.DELTA)], one_hot(1, 2, 3), [None] * 2)
