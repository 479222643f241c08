"""Coupled sampling: from logits to tokens in one pass, with the noise that target and draft share."""

from ssd_kernels.coupled.api import coupled_sample

__all__ = ["coupled_sample"]
