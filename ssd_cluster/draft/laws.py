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
from ssd_cluster.link.messages import CommitRow, Open
from ssd_cluster.link.tensor.rows import LawRows
from ssd_cluster.sampling.ratio_noise import DraftDraws, draft_noise_at, ratio_key
from ssd_cluster.sampling.selection import largest
from ssd_cluster.speculation import saguaro
from ssd_cluster.types import ProposalKind, fingerprint

if TYPE_CHECKING:
    from ssd_cluster.draft.builds import Build

_BUILDS_KEPT = 2
_NOTHING = "a row of a draft has no token with positive probability"


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


@dataclass(frozen=True, slots=True)
class LawDraw:
    """One token to draw: for whom, at which index in prompt + output, in which tree or chain."""

    terms: LawTerms
    position: int
    round_word: int


def draw(probs: Tensor, draws: Sequence[LawDraw], names: Tensor | None) -> list[tuple[int, LawRow]]:
    """Draw tokens and keep their laws.

    Args:
        probs: float32 ``[n, V_out]``, processed rows; dense laws are made in place and share their memory.
        draws: n entries.
        names: int64 ``[V_out]`` target id of each column of a reduced head; None: a column is its id.

    Returns:
        Per row the token's target id, and the law it was drawn from.

    Raises:
        NumericalError: a row leaves nothing to draw.
    """
    groups: dict[tuple[ProposalKind, int, float, int], list[int]] = {}
    for i, one in enumerate(draws):
        groups.setdefault((one.terms.kind, one.terms.top_m, one.terms.c, one.terms.f), []).append(i)
    drawn: dict[int, tuple[int, LawRow]] = {}
    for (kind, top_m, c, f), which in groups.items():
        rows, wanted = probs[which] if len(which) < len(draws) else probs, [draws[i] for i in which]
        if kind is ProposalKind.SPARSE:
            results = _sparse(rows, wanted, top_m, c, f, names)
        else:
            results = [_dense(row, one, c, f, names) for row, one in zip(rows.unbind(0), wanted, strict=True)]
        drawn.update(zip(which, results, strict=True))
    return [drawn[i] for i in range(len(draws))]


def _sparse(
    probs: Tensor, draws: Sequence[LawDraw], top_m: int, c: float, f: int, names: Tensor | None
) -> list[tuple[int, LawRow]]:
    """Laws of the ``top_m`` likeliest ids of each row: exact whatever ids these are, since they are renormalised."""
    m = min(top_m, probs.shape[1])
    if probs.device.type == "cpu":
        columns = torch.from_numpy(np.stack([largest(row, m) for row in probs.numpy()]))
        q = probs.gather(1, columns)
    else:
        top = probs.topk(m)
        q, columns = top.values.cpu(), top.indices.cpu()
    ids = columns if names is None else names.to(columns.device)[columns]
    saguaro.reshape(q.numpy(), c, f)
    q /= q.sum(dim=-1, keepdim=True, dtype=torch.float64)
    noise = draft_noise_at(
        [one.terms.draws for one in draws], [one.position for one in draws], [one.round_word for one in draws], ids
    )
    quotients = (noise / q).numpy()
    winners = quotients.argmin(axis=1)
    if not np.isfinite(quotients[np.arange(len(draws)), winners]).all():
        raise NumericalError(_NOTHING)
    tokens = ids.gather(1, torch.from_numpy(winners).unsqueeze(1)).squeeze(1).tolist()
    return [(token, LawRow(q[i], ids[i])) for i, token in enumerate(tokens)]


def _dense(q: Tensor, one: LawDraw, c: float, f: int, names: Tensor | None) -> tuple[int, LawRow]:
    if c < 1 and q.device.type == "cpu":
        saguaro.reshape(q.numpy()[None], c, f)
    elif c < 1:
        best = q.topk(min(f, q.shape[0])).indices
        if c > 0 or bool((q.index_fill(0, best, 0.0) > 0).any()):
            q[best] *= c
    q /= q.sum(dtype=torch.float64)
    noise = one.terms.draws.row(one.position, one.round_word)
    quotients = (noise if names is None else noise[names]) / q
    winner = int(quotients.numpy().argmin()) if q.device.type == "cpu" else int(quotients.argmin())
    if not bool(quotients[winner].isfinite()):
        raise NumericalError(_NOTHING)
    return winner if names is None else int(names[winner]), LawRow(q)


class LawShelf:
    """The newest pushed builds of a session: a commit may name a branch of the one before the current."""

    def __init__(self) -> None:
        self._builds: dict[int, Build] = {}

    def put(self, block_seq: int, build: Build) -> None:
        """A block of ``build`` was pushed."""
        self._builds[block_seq] = build
        while len({id(one) for one in self._builds.values()}) > _BUILDS_KEPT:
            del self._builds[next(iter(self._builds))]

    def law(self, row: CommitRow, vocabulary: int, names: Tensor | None) -> LawRows | None:
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
        probabilities = tuple(one.probabilities for one in rows)
        ids = tuple(one.ids for one in rows if one.ids is not None)
        law = LawRows(row.session, row.epoch, name, probabilities, vocabulary, ids, names)
        return law if law.kind is row.proposal_kind else None


def drafted_prefix(tokens: Sequence[int], stop_ids: Collection[int]) -> tuple[int, ...]:
    """The tokens up to the first stop id, that included."""
    if stop_ids:
        for index, token in enumerate(tokens):
            if token in stop_ids:
                return tuple(tokens[: index + 1])
    return tuple(tokens)
