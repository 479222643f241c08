"""Proposal kinds and the rules that verify them; pure functions on tensors."""

from ssd_cluster.verify.batch import Outcome, VerifyBatch
from ssd_cluster.verify.equality import equality, match
from ssd_cluster.verify.rules import RULES, Rule, rule_for, select, verify

__all__ = ["RULES", "Outcome", "Rule", "VerifyBatch", "equality", "match", "rule_for", "select", "verify"]
