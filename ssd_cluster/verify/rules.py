"""The rule for each kind of proposal; mixed kinds in one batch are split by rule and put together again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from ssd_cluster.errors import ConfigError
from ssd_cluster.types import RATIO_KINDS, ProposalKind
from ssd_cluster.verify.batch import Outcome, VerifyBatch
from ssd_cluster.verify.block import block
from ssd_cluster.verify.equality import equality
from ssd_cluster.verify.tokenwise import token

Rule = Callable[[VerifyBatch], list[Outcome]]
"""Verifies the sequences of a batch; outcomes in the order of its proposals."""

RATIO_RULES: Mapping[str, Rule] = MappingProxyType({"token": token, "block": block, "hsd": block})
"""Rules that compare p with q. Block verification and capped HSD are one rule with two names."""

RULES_FOR_SERVICE: tuple[str, ...] = ("equality", *RATIO_RULES)
"""Names that a configuration may use."""

RULES: Mapping[ProposalKind, Rule] = MappingProxyType(
    {
        ProposalKind.NONE: equality,
        ProposalKind.COUPLED: equality,
        ProposalKind.DELTA: equality,
    }
)
"""The rules of a target whose draft sends no laws."""

NOT_FOR_SERVICE = {
    "hsd_uncapped_lossy": "it is not lossless and is there to reproduce a published table only",
    "naive_hsd": "it needs further target calls within a round",
}


def default_rule(kind: ProposalKind) -> str:
    """The rule of a configuration that names none: ``block`` for the ratio kinds, ``equality`` for all others."""
    return "block" if kind in RATIO_KINDS else "equality"


def rules_for(kind: ProposalKind, rule: str) -> Mapping[ProposalKind, Rule]:
    """The rules of a target whose draft proposes ``kind`` and whose configuration names ``rule``.

    Proposals of other origin (n-gram guesses, none at all) are verified by equality beside them.

    Raises:
        ConfigError: the rule is unknown, not for service, or cannot verify this kind.
    """
    if rule in NOT_FOR_SERVICE:
        raise ConfigError(f"rule '{rule}' cannot be served: {NOT_FOR_SERVICE[rule]}", param="rule")
    if rule not in RULES_FOR_SERVICE:
        raise ConfigError(f"unknown rule '{rule}'; there are {', '.join(RULES_FOR_SERVICE)}", param="rule")
    if kind in RATIO_KINDS:
        if rule not in RATIO_RULES:
            raise ConfigError(
                f"rule '{rule}' cannot verify kind '{kind}', whose tokens are drawn independently of the target's "
                f"noise; use one of {', '.join(RATIO_RULES)}",
                param="rule",
            )
        return MappingProxyType({**RULES, **dict.fromkeys(sorted(RATIO_KINDS), RATIO_RULES[rule])})
    if rule != "equality":
        raise ConfigError(f"rule '{rule}' needs the draft's law, which kind '{kind}' does not send", param="rule")
    return RULES


def rule_for(kind: ProposalKind, rules: Mapping[ProposalKind, Rule] = RULES) -> Rule:
    """The rule among ``rules`` that verifies proposals of ``kind``.

    Raises:
        ConfigError: there is none.
    """
    try:
        return rules[kind]
    except KeyError:
        raise ConfigError(f"proposals of kind '{kind}' need a ratio rule, and none is configured") from None


def verify(batch: VerifyBatch, rules: Mapping[ProposalKind, Rule] = RULES) -> list[Outcome]:
    """Outcomes of a batch in the order of its proposals, each by the rule of its kind among ``rules``.

    Raises:
        ConfigError: a proposal's kind has no rule.
        NumericalError: a row leaves nothing to draw.
        ValueError: a ratio rule has no draws for a row that is not one-hot.
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
    laws = [batch.laws[i] for i in chosen] if batch.laws else ()
    draws = [batch.draws[i] for i in chosen] if batch.draws else ()
    return VerifyBatch(proposals, batch.probs[index], noise, laws, draws)
