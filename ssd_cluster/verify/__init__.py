"""Proposal kinds and the rules that verify them; pure functions on tensors."""

from ssd_cluster.verify.batch import Outcome, VerifyBatch
from ssd_cluster.verify.block import block, block_core
from ssd_cluster.verify.equality import equality, match
from ssd_cluster.verify.laws import DenseLaw, DraftLaw, SparseLaw
from ssd_cluster.verify.rules import (
    RATIO_KINDS,
    RULES,
    RULES_FOR_SERVICE,
    Rule,
    default_rule,
    rule_for,
    rules_for,
    select,
    verify,
)
from ssd_cluster.verify.tokenwise import token, tokenwise

__all__ = [
    "RATIO_KINDS",
    "RULES",
    "RULES_FOR_SERVICE",
    "DenseLaw",
    "DraftLaw",
    "Outcome",
    "Rule",
    "SparseLaw",
    "VerifyBatch",
    "block",
    "block_core",
    "default_rule",
    "equality",
    "match",
    "rule_for",
    "rules_for",
    "select",
    "token",
    "tokenwise",
    "verify",
]
