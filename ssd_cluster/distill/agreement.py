"""How near a draft's law is to the target's recorded one: what speculative decoding makes of each position."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssd_cluster.distill.data import Batch
from ssd_cluster.distill.loss import law_loss

TEMPERATURES = (0.7, 1.0)


@dataclass(slots=True)
class Agreement:
    """Sums over positions; ``means`` divides them.

    Attributes:
        loss: the training loss without cross-entropy.
        greedy: positions where both have the same argmax: acceptance at temperature 0.
        top4: positions where the target's argmax is among the draft's four best.
        in_head: positions where the target's argmax has a column in the draft's head: an upper bound of ``greedy``.
        overlap: by temperature, sum of min(p, q) = 1 - TV over the recorded law: acceptance with a ratio rule.
    """

    rows: int = 0
    loss: float = 0.0
    greedy: float = 0.0
    top4: float = 0.0
    in_head: float = 0.0
    overlap: dict[float, float] = field(default_factory=lambda: dict.fromkeys(TEMPERATURES, 0.0))

    def add(self, logits: Tensor, batch: Batch) -> None:
        """Count one batch."""
        logits = logits.float()
        best = torch.where(batch.p[:, 0] > 0, batch.columns[:, 0], -1)
        top4 = logits.topk(min(4, logits.shape[-1]), dim=-1).indices
        self.rows += len(best)
        self.loss += float(law_loss(logits, batch, 0.0)) * len(best)
        self.greedy += float((top4[:, 0] == best).sum())
        self.top4 += float((top4 == best[:, None]).any(1).sum())
        self.in_head += float((best >= 0).sum())
        for temperature in TEMPERATURES:
            q = (logits / temperature).softmax(-1).gather(1, batch.columns)
            self.overlap[temperature] += float(torch.minimum(q, heated(batch, temperature)).sum())

    def means(self) -> dict[str, Any]:
        """Per position; ``overlap`` by temperature with text keys, as JSON wants them."""
        n = max(self.rows, 1)
        return {
            "loss": self.loss / n,
            "greedy_match": self.greedy / n,
            "top4": self.top4 / n,
            "in_head": self.in_head / n,
            "overlap": {f"{t:g}": total / n for t, total in self.overlap.items()},
        }


def heated(batch: Batch, temperature: float) -> Tensor:
    """The recorded law at another temperature, [N, m]: exact at 1; below 1 the mass beyond the top m is left out.

    Ids outside the head stay at 0, but their mass counts in the normalisation.
    """
    if temperature == 1.0:
        return batch.p
    weights = batch.all_p.pow(1 / temperature)
    return torch.where(batch.p > 0, weights / weights.sum(1, keepdim=True), 0.0)
