"""Documents as training batches: laws mapped to head columns, documents of like length padded together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ssd_cluster.distill.shards import Document


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded documents and the targets of their positions.

    Attributes:
        tokens: [B, S] int64, padded on the right.
        lengths: [B] document lengths.
        rows: [N] flat indices b * S + s whose next token has a law.
        columns: [N, m] int64 head columns of the law's ids (0 where the id is not in the head).
        p: [N, m] float32 probabilities; 0 where the id is not in the head.
        all_p: [N, m] float32 probabilities, also of ids that are not in the head.
        next_column: [N] int64 head column of the token that follows, -1 if it is not in the head.
    """

    tokens: Tensor
    lengths: Tensor
    rows: Tensor
    columns: Tensor
    p: Tensor
    all_p: Tensor
    next_column: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on ``device``."""
        return self if device.type == "cpu" else Batch(*(getattr(self, name).to(device) for name in Batch.__slots__))


class Batches:
    """Batches of about ``batch_tokens`` tokens from documents, in an order that a seed decides."""

    def __init__(self, documents: Sequence[Document], head_ids: np.ndarray | None, vocabulary: int, batch_tokens: int):
        self._documents = documents
        self._budget = batch_tokens
        self._column = np.arange(vocabulary) if head_ids is None else np.full(vocabulary, -1)
        if head_ids is not None:
            self._column[head_ids] = np.arange(len(head_ids))

    def split(self) -> list[list[int]]:
        """Indices of documents, grouped by length so that little is padding."""
        order = sorted(range(len(self._documents)), key=lambda i: (len(self._documents[i]), i))
        groups: list[list[int]] = []
        for index in order:
            longest = len(self._documents[index])
            if groups and (len(groups[-1]) + 1) * longest <= self._budget:
                groups[-1].append(index)
            else:
                groups.append([index])
        return groups

    def epoch(self, seed: int) -> Iterator[Batch]:
        """Every document once, batches in random order."""
        groups = self.split()
        random.Random(seed).shuffle(groups)
        for group in groups:
            yield self.of(group)

    def of(self, group: Sequence[int]) -> Batch:
        """The batch of a group from ``split``."""
        return self.batch([self._documents[i] for i in group])

    def batch(self, documents: Sequence[Document]) -> Batch:
        longest = max(len(d) for d in documents)
        tokens = np.zeros((len(documents), longest), np.int64)
        rows, columns, p, all_p, following = [], [], [], [], []
        for b, document in enumerate(documents):
            tokens[b, : len(document)] = document.tokens
            at = np.flatnonzero(document.has_law[1:]) + 1  # the law at position i is predicted from position i - 1
            mapped = self._column[document.law_ids[at]]
            rows.append(b * longest + at - 1)
            columns.append(np.maximum(mapped, 0))
            all_p.append(document.law_p[at].astype(np.float32))
            p.append(np.where(mapped >= 0, all_p[-1], np.float32(0)))
            following.append(self._column[document.tokens[at]])
        return Batch(
            torch.from_numpy(tokens),
            torch.tensor([len(d) for d in documents]),
            torch.from_numpy(np.concatenate(rows)),
            torch.from_numpy(np.concatenate(columns)),
            torch.from_numpy(np.concatenate(p)),
            torch.from_numpy(np.concatenate(all_p)),
            torch.from_numpy(np.concatenate(following)),
        )
