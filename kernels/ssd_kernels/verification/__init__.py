"""Ratio rules on one chain: block verification (= capped HSD) and token-wise verification."""

from ssd_kernels.verification.api import block_verify, token_verify
from ssd_kernels.verification.flashinfer_binding import chain_verify

__all__ = ["block_verify", "chain_verify", "token_verify"]
