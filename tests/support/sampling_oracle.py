"""Processing of logits in plain Python, one id after the other, as verification.md section 4 words it."""

from __future__ import annotations

import numpy as np
import torch

from ssd_cluster.sampling.processors import RowParams


def kept_ids(logits: torch.Tensor, params: RowParams, valid_vocab: int | None = None) -> list[int]:
    """Ascending ids that may be drawn; ``logits`` float32 ``[V]``."""
    ids = [i for i in range(len(logits)) if i not in params.banned_ids and (valid_vocab is None or i < valid_vocab)]
    values = logits.tolist()
    if params.temperature == 0:
        return [max(ids, key=lambda i: (values[i], -i))]
    peak = max(values[i] for i in ids)
    weights = ((logits - peak) / params.temperature).exp().tolist()
    if params.top_k > 0:
        ids = sorted(ids, key=lambda i: (-values[i], i))[: params.top_k]
    ids = [i for i in ids if weights[i] >= float(np.float32(params.min_p))]
    if params.top_p < 1:
        goal = params.top_p * sum(weights[i] for i in ids)
        ids.sort(key=lambda i: (-weights[i], i))
        mass, count = 0.0, 0
        while count < len(ids) and mass < goal:
            mass += weights[ids[count]]
            count += 1
        ids = ids[:count]
    return sorted(ids)


def law(logits: torch.Tensor, params: RowParams, valid_vocab: int | None = None) -> np.ndarray:
    """float64 ``[V]``."""
    out = np.zeros(len(logits))
    ids = kept_ids(logits, params, valid_vocab)
    if params.temperature == 0:
        out[ids] = 1
        return out
    values = logits.double().numpy()[ids]
    weights = np.exp((values - values.max()) / params.temperature)
    out[ids] = weights / weights.sum()
    return out
