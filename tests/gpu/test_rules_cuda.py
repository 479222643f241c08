"""Rules and coupled sampling on a CUDA device, through their kernels, against the CPU; the tensor channel over NCCL."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest
import torch
from support.law_links import Ends, dense_law, entries, link_settings
from support.ratio_batches import random_batch

from ssd_cluster.sampling.coupled import coupled_sample
from ssd_cluster.types import ProposalKind
from ssd_cluster.verify import Outcome, VerifyBatch, block, token

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs a GPU for each end")


@needs_triton
@pytest.mark.parametrize("vocabulary", [130, 49_152])
@pytest.mark.parametrize("rule", [token, block], ids=["token", "block"])
def test_rules_say_the_same_on_both_devices(rule: Callable[[VerifyBatch], list[Outcome]], vocabulary: int) -> None:
    for seed in range(10):
        assert rule(random_batch(seed, vocabulary, device="cuda")) == rule(random_batch(seed, vocabulary))


@needs_triton
def test_coupled_draws_are_the_same_on_both_devices() -> None:
    gen = torch.Generator().manual_seed(3)
    probs = torch.softmax(3 * torch.randn(64, 49_152, generator=gen), -1)
    noise = torch.rand(64, 49_152, generator=gen).clamp_(min=2.0**-24).log().neg()
    assert coupled_sample(probs.cuda(), noise.cuda()).tolist() == coupled_sample(probs, noise).tolist()


@needs_two
def test_laws_over_nccl_arrive_bit_for_bit() -> None:
    link = link_settings(backend="nccl", trusted_network=True, timeout_s=30.0)
    ends = Ends(ProposalKind.DENSE, 8, 151_936, draft=link, target=link, devices=("cuda:0", "cuda:1"))
    ends.inlet.attach(ends.target)
    ends.up()
    for number in range(3):
        law = dense_law(number, 8, 151_936)
        assert ends.post.send(ends.draft, law)
        assert torch.equal(entries(ends.next_law())[1].cpu(), torch.stack(law.probabilities))
    ends.close()
