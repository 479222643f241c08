"""The rule for each kind of proposal; mixed kinds in one batch are split by rule and put together again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from ssd_cluster.errors import ConfigError
from ssd_cluster.types import ProposalKind
from ssd_cluster.verify.batch import Outcome, VerifyBatch
from ssd_cluster.verify.equality import equality

Rule = Callable[[VerifyBatch], list[Outcome]]
"""Verifies the sequences of a batch; outcomes in the order of its proposals."""

RULES: Mapping[ProposalKind, Rule] = MappingProxyType(
    {
        ProposalKind.NONE: equality,
        ProposalKind.COUPLED: equality,
        ProposalKind.DELTA: equality,
    }
)


def rule_for(kind: ProposalKind, rules: Mapping[ProposalKind, Rule] = RULES) -> Rule:
    """The rule among ``rules`` that verifies proposals of ``kind``.

    Raises:
        ConfigError: no rule for this kind is available yet.
    """
    try:
        return rules[kind]
    except KeyError:
        raise ConfigError(f"proposals of kind '{kind}' need a ratio rule, which is not available yet") from None


def verify(batch: VerifyBatch, rules: Mapping[ProposalKind, Rule] = RULES) -> list[Outcome]:
    """Outcomes of a batch in the order of its proposals, each by the rule of its kind among ``rules``.

    Raises:
        ConfigError: a proposal's kind has no rule.
        NumericalError: a row leaves nothing to draw.
    """
    members: dict[Rule, list[int]] = {}
    for i, proposal in enumerate(batch.proposals):
        members.setdefault(rule_for(proposal.kind, rules), []).append(i)
    if len(members) == 1:
        (rule,) = members
        return rule(batch)
    outcomes: dict[int, Outcome] = {}
    for rule, chosen in members.items():
        outcomes.update(zip(chosen, rule(select(batch, chosen)), strict=True))
    return [outcomes[i] for i in range(len(batch.proposals))]


def select(batch: VerifyBatch, chosen: list[int]) -> VerifyBatch:
    """The sub-batch of the given sequences, in the given order."""
    starts, row = [], 0
    for proposal in batch.proposals:
        starts.append(row)
        row += len(proposal.tokens) + 1
    proposals = [batch.proposals[i] for i in chosen]
    rows = [starts[i] + t for i in chosen for t in range(len(batch.proposals[i].tokens) + 1)]
    index = torch.tensor(rows, dtype=torch.int64, device=batch.probs.device)
    noise = batch.noise[index] if isinstance(batch.noise, Tensor) else [batch.noise[r] for r in rows]
    return VerifyBatch(proposals, batch.probs[index], noise)
