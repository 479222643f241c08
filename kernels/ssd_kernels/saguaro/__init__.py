"""SAGUARO sampling: lower a draft's probability of the tokens that will be guessed next, and draw."""

from ssd_kernels.saguaro.api import saguaro_sample

__all__ = ["saguaro_sample"]
