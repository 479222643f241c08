"""The draft as a trainable module, and how near its law is to the target's recorded one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from ssd_cluster.distill.data import Batch
from ssd_cluster.distill.initialise import EMBEDDING, HEAD, HEAD_IDS, write_draft


class Student(nn.Module):
    """Decoder layers from a draft checkpoint with a head of its own; input embeddings stay those of the target.

    Frozen embeddings let the shipped draft leave them out: they are the target's.
    """

    def __init__(self, checkpoint: Path) -> None:
        super().__init__()
        tensors = load_file(checkpoint / "model.safetensors")
        self._checkpoint = checkpoint
        self.head_ids = tensors.pop(HEAD_IDS, None)
        head = tensors.pop(HEAD)
        self.base = AutoModel.from_config(AutoConfig.from_pretrained(checkpoint), dtype=torch.float32)
        self.base.load_state_dict({name.removeprefix("model."): tensor.float() for name, tensor in tensors.items()})
        self.base.get_input_embeddings().weight.requires_grad_(False)
        self.head = nn.Linear(head.shape[1], head.shape[0], bias=False)
        self.head.weight.data.copy_(head)

    def forward(self, batch: Batch) -> Tensor:
        """[N, V_head] float32 logits at ``batch.rows``."""
        S = batch.tokens.shape[1]
        mask = torch.arange(S, device=batch.tokens.device) < batch.lengths[:, None]
        hidden = self.base(input_ids=batch.tokens, attention_mask=mask.long(), use_cache=False).last_hidden_state
        logits: Tensor = self.head(hidden.flatten(0, 1)[batch.rows])
        return logits.float()

    def save(self, out: Path, dtype: torch.dtype = torch.bfloat16) -> None:
        """Write a checkpoint that loads like any other."""
        tensors = {f"model.{name}": t.detach().to(dtype) for name, t in self.base.state_dict().items()}
        tensors[EMBEDDING] = load_file(self._checkpoint / "model.safetensors")[EMBEDDING]
        tensors[HEAD] = self.head.weight.detach().to(dtype)
        if self.head_ids is not None:
            tensors[HEAD_IDS] = self.head_ids
        config = json.loads((self._checkpoint / "config.json").read_text(encoding="utf-8"))
        write_draft(self._checkpoint, out, config, tensors)


def law_loss(logits: Tensor, batch: Batch, cross_entropy: float) -> Tensor:
    """Mean over rows of -sum_i p_i log q_i (KL up to a constant) + ``cross_entropy`` * -log q(next token).

    Mass of the target outside the head or outside its top m is left out: it cannot be drafted.
    """
    log_q = F.log_softmax(logits, -1)
    loss = -(batch.p * log_q.gather(1, batch.columns)).sum(1).mean()
    known = batch.next_column >= 0
    if cross_entropy and bool(known.any()):
        loss = loss + cross_entropy * F.nll_loss(log_q[known], batch.next_column[known])
    return loss


@dataclass(slots=True)
class Agreement:
    """Sums over positions of how well draft and target agree; divide by ``rows``."""

    rows: int = 0
    loss: float = 0.0
    greedy: float = 0.0
    overlap: float = 0.0
    top4: float = 0.0

    def add(self, logits: Tensor, batch: Batch) -> None:
        """Count one batch: same argmax; 1 - TV over the recorded law; target's argmax among the draft's four best."""
        q = logits.softmax(-1)
        best = torch.where(batch.p[:, 0] > 0, batch.columns[:, 0], -1)
        top4 = q.topk(4, dim=-1).indices
        self.rows += len(best)
        self.loss += float(law_loss(logits, batch, 0.0)) * len(best)
        self.greedy += float((top4[:, 0] == best).sum())
        self.top4 += float((top4 == best[:, None]).any(1).sum())
        self.overlap += float(torch.minimum(q.gather(1, batch.columns), batch.p).sum())

    def means(self) -> dict[str, float]:
        n = max(self.rows, 1)
        return {
            "loss": self.loss / n,
            "greedy_match": self.greedy / n,
            "overlap": self.overlap / n,
            "top4": self.top4 / n,
        }
