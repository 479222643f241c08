"""Merging of two attention states: outputs and log-sum-exps over disjoint sets of keys."""

from ssd_kernels.merge.api import merge_state

__all__ = ["merge_state"]
