"""Shapes, memory and spans on which attention backends are compared."""

from __future__ import annotations

import pytest
import torch

from ssd_cluster.model.batch import CausalSpan, Span, TreeSpan
from ssd_cluster.model.decoder_config import DecoderConfig, parse_config
from ssd_cluster.model.kv import BlockPool, PagedKV, TailPool

CPU = torch.device("cpu")
SCATTERED = [5, 2, 9, 3, 11, 0]
ASCENDING = [4, 5, 6, 7, 8, 9]

TREES = [
    pytest.param([20], [0], id="one"),
    pytest.param([20] * 4, [0] * 4, id="same"),
    pytest.param([17, 18, 20, 20, 1], [0, 3, 2, 0, 1], id="ragged"),
    pytest.param([9, 9, 9], [3, 3, 3], id="deep"),
]
"""(visible, depths) of tree rows."""

SPANS: list[Span] = [
    TreeSpan([0] * 2, [0], [5, 8], [2, 0], [1, 0]),
    CausalSpan([0] * 3, 4, [3]),
    CausalSpan([0], 10, [5, 6]),
    TreeSpan([0], [4], [7], [5], [3]),
    CausalSpan([0] * 36, 0, [7, 8, 9, 10, 11]),
    CausalSpan([0] * 5, 9, [2, 1]),
    TreeSpan([0] * 3, [4], [7, 8, 6], [6, 7, 4], [0, 1, 0]),
    CausalSpan([], 9, []),
]
"""A batch of both kinds: short and long spans, several sessions, an empty one."""


def config(heads: int = 6, kv_heads: int = 2, head_dim: int = 16) -> DecoderConfig:
    return parse_config(
        {
            "model_type": "llama",
            "hidden_size": heads * head_dim,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "num_hidden_layers": 2,
            "intermediate_size": 8,
            "vocab_size": 8,
            "max_position_embeddings": 64,
        }
    )


def memory(
    shape: DecoderConfig, dtype: torch.dtype = torch.float32, tail_depth: int = 4, device: torch.device = CPU
) -> tuple[DecoderConfig, PagedKV, TailPool]:
    """A backend's arguments: random pages and tails, 12 blocks of 8, 8 tails; the same numbers on every device."""
    torch.manual_seed(0)
    kv = PagedKV(2, BlockPool(12, 8), shape.n_kv_heads, shape.head_dim, dtype, device)
    tails = TailPool(8, tail_depth, 2, shape.n_kv_heads, shape.head_dim, device)
    for data in (kv.data, tails.data):
        data.copy_(torch.randn(data.shape))
    return shape, kv, tails


def inputs(
    shape: DecoderConfig, n: int, dtype: torch.dtype = torch.float32, device: torch.device = CPU
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys/values as the decoder hands them over: slices of one fused projection."""
    torch.manual_seed(1)
    heads = torch.randn(n, shape.n_heads + 2 * shape.n_kv_heads, shape.head_dim).to(device, dtype)
    return heads[:, : shape.n_heads], heads[:, shape.n_heads :].view(n, 2, shape.n_kv_heads, shape.head_dim)
