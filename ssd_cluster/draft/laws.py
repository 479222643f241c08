"""Ratio mode on the draft: tokens drawn from laws that are kept, and sent once the target says what it verifies.

The law that is sent is the one that was sampled from, after every processor: temperature, top_k and top_p of the
request, then for kind ``sparse`` the restriction to the row's own ``top_m`` likeliest ids, then SAGUARO.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ssd_cluster.errors import NumericalError
from ssd_cluster.link.laws import pack_law
from ssd_cluster.link.messages import CommitRow, Law, Open
from ssd_cluster.sampling.ratio_noise import DraftDraws, ratio_key
from ssd_cluster.sampling.selection import largest
from ssd_cluster.types import ProposalKind, fingerprint

if TYPE_CHECKING:
    from ssd_cluster.draft.builds import Build

_BUILDS_KEPT = 2


@dataclass(frozen=True, slots=True)
class LawRow:
    """The law of one drafted token.

    Attributes:
        probabilities: float32, ``[m]`` of a sparse row, ``[V_out]`` of a dense one (columns of a reduced head).
        ids: int64 ``[m]``, target ids of a sparse row's entries; None: one entry per column.
    """

    probabilities: Tensor
    ids: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LawTerms:
    """How a session of a ratio kind draws.

    Attributes:
        kind: sparse or dense.
        top_m: entries of a sparse row; every row has so many (or all columns), zeros included, so that neither the size
            of a frame nor the time it takes says anything about the tokens.
        c, f: SAGUARO: the ``f`` likeliest tokens weigh ``c`` times as much; 1 leaves the law as it is.
        draws: noise of this session and epoch.
    """

    kind: ProposalKind
    top_m: int
    c: float
    f: int
    draws: DraftDraws

    @classmethod
    def of(cls, message: Open, vocabulary: int, device: torch.device, capacity: int) -> LawTerms:
        """Terms of a new session. The key changes with the epoch: a new one counts its rounds from 0 again."""
        key = ratio_key(message.epoch, message.seed)
        draws = DraftDraws(key, vocabulary, device, capacity=capacity)
        return cls(message.kind, message.top_m, message.saguaro_c, message.saguaro_f, draws)


def draw(probs: Tensor, terms: LawTerms, position: int, round_word: int, names: Tensor | None) -> tuple[int, LawRow]:
    """Draw one token and keep its law.

    Args:
        probs: float32 ``[V_out]``, the processed row.
        terms: of the session.
        position: index of the token in prompt + output.
        round_word: of the tree or chain that the token belongs to.
        names: int64 ``[V_out]`` target id of each column of a reduced head; None: a column is its id.

    Returns:
        The token's target id, and the law it was drawn from.

    Raises:
        NumericalError: the row leaves nothing to draw.
    """
    row = _sparse(probs, terms.top_m, names) if terms.kind is ProposalKind.SPARSE else LawRow(probs.clone())
    weights = row.probabilities
    _reshape(weights, terms.c, terms.f)
    weights.div_(weights.sum(dtype=torch.float64))
    noise = terms.draws.row(position, round_word)
    ids = row.ids if row.ids is not None else names
    quotients = (noise if ids is None else noise[ids.to(noise.device)]).to(weights.device) / weights
    winner = int(quotients.argmin())
    if not torch.isfinite(quotients[winner]):
        raise NumericalError("a row of a draft has no token with positive probability")
    return winner if ids is None else int(ids[winner]), row


def _sparse(probs: Tensor, top_m: int, names: Tensor | None) -> LawRow:
    """The ``top_m`` likeliest ids of a row; exact for whatever ids these are, since the law is renormalised."""
    if probs.device.type == "cpu":
        columns = torch.from_numpy(largest(probs.numpy(), top_m))
        values = probs[columns]
    else:
        top = probs.topk(min(top_m, probs.shape[0]))
        values, columns = top.values.cpu(), top.indices.cpu()
    return LawRow(values, columns if names is None else names.to(columns.device)[columns])


def _reshape(weights: Tensor, c: float, f: int) -> None:
    """SAGUARO sigma_{F,C} in place; at C = 0 a row whose whole support is among the F likeliest stays as it is."""
    if c >= 1 or f < 1:
        return
    best = weights.topk(min(f, weights.shape[0])).indices
    if c > 0 or bool((weights.index_fill(0, best, 0.0) > 0).any()):
        weights[best] *= c


class LawShelf:
    """The newest pushed builds of a session: a commit may name a branch of the one before the current."""

    def __init__(self) -> None:
        self._builds: dict[int, Build] = {}

    def put(self, block_seq: int, build: Build) -> None:
        """A block of ``build`` was pushed."""
        self._builds[block_seq] = build
        while len({id(one) for one in self._builds.values()}) > _BUILDS_KEPT:
            del self._builds[next(iter(self._builds))]

    def law(self, row: CommitRow, vocabulary: int, names: Tensor | None) -> Law | None:
        """The law of the proposal that a commit names, or None: its tokens are not those of the branch it names.

        Args:
            row: its proposal is of a ratio kind.
            vocabulary: entries of a dense row.
            names: target ids of a reduced head's columns.
        """
        build = self._builds.get(row.origin.block_seq) if row.origin is not None else None
        if build is None or row.origin is None:
            return None
        tokens, laws = build.drafted(row.origin.branch)
        span = slice(row.origin.offset, row.origin.offset + len(row.proposal))
        rows = laws[span]
        if not row.proposal or tuple(tokens[span]) != row.proposal or len(rows) != len(row.proposal):
            return None
        name = fingerprint(row.base_len, row.proposal)
        kind = ProposalKind.DENSE if rows[0].ids is None else ProposalKind.SPARSE
        if kind is not row.proposal_kind:
            return None
        probabilities = [_on_host(one, vocabulary, names) for one in rows]
        ids = [one.ids.numpy() for one in rows if one.ids is not None]
        return pack_law(row.session, row.epoch, name, kind, probabilities, ids)


def _on_host(row: LawRow, vocabulary: int, names: Tensor | None) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """The entries of a row to send; a dense one by target id, 0 outside a reduced head."""
    values = row.probabilities.cpu()
    if row.ids is None and names is not None:
        values = torch.zeros(vocabulary).scatter_(0, names.cpu(), values)
    return values.numpy()


def frame_bytes(message: Open, k: int, vocabulary: int) -> int:
    """Bytes of the largest Law frame of a session, envelope included."""
    entries = vocabulary * 4 if message.kind is ProposalKind.DENSE else min(message.top_m, vocabulary) * 8
    return k * (entries + 4) + 64


def drafted_prefix(tokens: Sequence[int], stop_ids: Collection[int]) -> tuple[int, ...]:
    """The tokens up to the first stop id, that included."""
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tuple(tokens[: index + 1])
    return tuple(tokens)
