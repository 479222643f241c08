"""Random batches for the ratio rules, on any device: ragged, all kinds of laws, foreign and missing, greedy rows."""

from __future__ import annotations

import torch

from ssd_cluster.sampling.ratio_noise import RoundDraws
from ssd_cluster.types import Proposal, ProposalKind
from ssd_cluster.verify import DenseLaw, DraftLaw, SparseLaw, VerifyBatch


def random_batch(seed: int, vocabulary: int, sequences: int = 8, k: int = 7, device: str = "cpu") -> VerifyBatch:
    """Laws near the target's, so that every kept length occurs."""
    gen = torch.Generator().manual_seed(seed)
    proposals, rows, laws, draws = [], [], [], []
    for b in range(sequences):
        n = k if b == 0 else int(torch.randint(0, k + 1, (1,), generator=gen))
        p = torch.softmax(2 * torch.randn(n + 1, vocabulary, generator=gen), -1)
        q = 0.8 * p[:n] + 0.2 * torch.softmax(2 * torch.randn(n, vocabulary, generator=gen), -1)
        x = torch.multinomial(q, 1, generator=gen)[:, 0] if n else torch.zeros(0, dtype=torch.int64)
        law: DraftLaw | None = DenseLaw(q.to(device))
        kind = ProposalKind.DENSE
        if b % 4 == 1:
            kind, top = ProposalKind.SPARSE, q.topk(min(5, vocabulary))
            x = top.indices[:, 0] if n else x
            law = SparseLaw(top.indices.to(device), (top.values / top.values.sum(-1, keepdim=True)).to(device))
        elif b % 4 == 2:
            law = None
        elif b % 4 == 3 and n:
            law = DenseLaw(q.clone().scatter_(1, x[:, None], 0.0).to(device))  # cannot have been drawn from
        greedy = b % 5 == 4
        if greedy:
            p = torch.nn.functional.one_hot(p.argmax(-1), vocabulary).float()
        proposals.append(Proposal(10, tuple(x.tolist()), kind))
        rows.append(p)
        laws.append(law)
        draws.append(None if greedy else RoundDraws(seed, b, 0, vocabulary, device))
    probs = torch.cat(rows).to(device)
    return VerifyBatch(proposals, probs, [None] * len(probs), laws, draws)
