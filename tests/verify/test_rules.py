"""The registry: one rule per kind, mixed kinds in one batch, refusal of what is not there."""

from __future__ import annotations

import pytest
import torch

from ssd_cluster.errors import ConfigError
from ssd_cluster.types import Proposal, ProposalKind
from ssd_cluster.verify import (
    RULES,
    RULES_FOR_SERVICE,
    Outcome,
    VerifyBatch,
    block,
    default_rule,
    equality,
    rule_for,
    rules_for,
    token,
    verify,
)


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


RATIO = [ProposalKind.SPARSE, ProposalKind.DENSE]
OTHERS = [ProposalKind.NONE, ProposalKind.COUPLED, ProposalKind.DELTA]


def test_rules_by_name() -> None:
    for kind in RATIO:
        for name, rule in (("token", token), ("block", block), ("hsd", block)):
            rules = rules_for(kind, name)
            assert [rules[one] for one in RATIO] == [rule, rule]
            assert [rules[one] for one in OTHERS] == [equality] * 3
        assert default_rule(kind) == "block"
    for kind in (ProposalKind.COUPLED, ProposalKind.DELTA):
        assert rules_for(kind, "equality") == RULES
        assert default_rule(kind) == "equality"


@pytest.mark.parametrize(
    ("kind", "rule", "why"),
    [
        (ProposalKind.COUPLED, "block", "'block' needs the draft's law, which kind 'coupled' does not send"),
        (ProposalKind.COUPLED, "token", "needs the draft's law"),
        (ProposalKind.DELTA, "hsd", "needs the draft's law"),
        (ProposalKind.SPARSE, "equality", "use one of token, block, hsd"),
        (ProposalKind.DENSE, "equality", "cannot verify kind 'dense'"),
        (ProposalKind.DENSE, "hsd_uncapped_lossy", "cannot be served: it is not lossless"),
        (ProposalKind.DENSE, "naive_hsd", "cannot be served: it needs further target calls"),
        (ProposalKind.DENSE, "blok", "unknown rule 'blok'; there are equality, token, block, hsd"),
    ],
)
def test_what_does_not_fit_is_refused(kind: ProposalKind, rule: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        rules_for(kind, rule)


def test_the_lossy_variant_is_not_for_service() -> None:
    assert RULES_FOR_SERVICE == ("equality", "token", "block", "hsd")


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
