"""top_k, min_p and top_p on rows: where the support ends, and renormalised probabilities."""

from ssd_kernels.truncation.api import Cut, renormalise, support_cut

__all__ = ["Cut", "renormalise", "support_cut"]
