"""RMSNorm against torch's own, small values included, where epsilon matters."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ssd_cluster.model.norm import RMSNorm


@pytest.mark.parametrize("scale", [1.0, 1e-3, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_torch(scale: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(5, 48, generator=generator) * scale).to(dtype)
    weight = torch.randn(48, generator=generator).to(dtype)
    y = RMSNorm(weight, 1e-5)(x)
    assert y.dtype == dtype
    expected = F.rms_norm(x.float(), (48,), weight.float(), 1e-5).to(dtype)
    torch.testing.assert_close(y, expected, rtol=1e-6 if dtype == torch.float32 else 8e-3, atol=1e-7)


def test_heads_may_have_weights_of_their_own() -> None:
    x, weight = torch.randn(5, 3, 8), torch.randn(3, 8)
    y = RMSNorm(weight, 1e-6)(x)
    for head in range(3):
        expected = F.rms_norm(x[:, head], (8,), weight[head], 1e-6)
        torch.testing.assert_close(y[:, head], expected, rtol=1e-5, atol=1e-6)
