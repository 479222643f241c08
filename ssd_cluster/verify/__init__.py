"""Proposal kinds and the rules that verify them; pure functions on tensors."""

from ssd_cluster.verify.batch import Outcome, VerifyBatch
from ssd_cluster.verify.block import block, block_core
from ssd_cluster.verify.equality import equality, match, match_drawn
from ssd_cluster.verify.laws import DenseLaw, DraftLaw, SparseLaw
from ssd_cluster.verify.multidraft import multidraft_hsd, multidraft_tokenwise
from ssd_cluster.verify.naive_hsd import NaiveOutcome, naive_hsd
from ssd_cluster.verify.paths import PathOutcome, TokenTree, follow
from ssd_cluster.verify.rules import (
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
from ssd_cluster.verify.traversal import traverse
from ssd_cluster.verify.uncapped import hsd_uncapped_lossy

__all__ = [
    "RULES",
    "RULES_FOR_SERVICE",
    "DenseLaw",
    "DraftLaw",
    "NaiveOutcome",
    "Outcome",
    "PathOutcome",
    "Rule",
    "SparseLaw",
    "TokenTree",
    "VerifyBatch",
    "block",
    "block_core",
    "default_rule",
    "equality",
    "follow",
    "hsd_uncapped_lossy",
    "match",
    "match_drawn",
    "multidraft_hsd",
    "multidraft_tokenwise",
    "naive_hsd",
    "rule_for",
    "rules_for",
    "select",
    "token",
    "tokenwise",
    "traverse",
    "verify",
]
