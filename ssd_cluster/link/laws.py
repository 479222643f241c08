"""The rows of a Law message: packed from arrays, read back as arrays, and checked.

A sparse row lists ids and their probabilities, a dense row the probability of every id. Arrays share the message's
memory: a dense row of a large vocabulary is never copied or turned into Python numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from ssd_cluster.errors import InvalidFrame
from ssd_cluster.link.messages import Law
from ssd_cluster.types import RATIO_KINDS, ProposalKind

Ids = npt.NDArray[np.uint32]
Probabilities = npt.NDArray[np.float32]

SUM_TOLERANCE = 1e-3
"""A row of float32 probabilities sums to 1 within this."""

_WIDTH = 4
_ENVELOPE = 64


def pack_law(
    session: int,
    epoch: int,
    fingerprint: int,
    kind: ProposalKind,
    probabilities: Sequence[npt.ArrayLike],
    ids: Sequence[npt.ArrayLike] = (),
) -> Law:
    """A Law message of one row per proposed token.

    Args:
        session, epoch, fingerprint: whose proposal it is.
        kind: sparse or dense.
        probabilities: the rows.
        ids: target ids of their entries, row by row; none for a dense law.
    """
    rows = [np.asarray(row, dtype="<f4") for row in probabilities]
    return Law(
        session,
        epoch,
        fingerprint,
        kind,
        tuple(row.shape[0] for row in rows),
        b"".join(np.asarray(row, dtype="<u4").tobytes() for row in ids),
        b"".join(row.tobytes() for row in rows),
    )


def law_bytes(kind: ProposalKind, k: int, vocabulary: int, top_m: int) -> int:
    """Bytes of the largest frame with the law of ``k`` tokens, envelope included."""
    entries = vocabulary * _WIDTH if kind is ProposalKind.DENSE else min(top_m, vocabulary) * 2 * _WIDTH
    return k * (entries + _WIDTH) + _ENVELOPE


def probability_rows(law: Law) -> list[Probabilities]:
    """Probabilities of each row, float32, read-only."""
    values = np.frombuffer(law.probabilities, dtype="<f4")
    return [values[start:end] for start, end in _bounds(law)]


def id_rows(law: Law) -> list[Ids]:
    """Ids of each row of a sparse law, uint32, read-only."""
    values = np.frombuffer(law.ids, dtype="<u4")
    return [values[start:end] for start, end in _bounds(law)]


def check_law(law: Law, vocabulary: int) -> None:
    """A law is well-formed: its rows are probability distributions over ids below ``vocabulary``.

    Of a law whose entries follow on a tensor channel only the shape is looked at.

    Raises:
        InvalidFrame: what is wrong, without naming an id.
    """
    _check_shape(law, vocabulary)
    if law.channel:
        if law.ids or law.probabilities:
            raise InvalidFrame("a law of a tensor channel has entries in its frame")
        return
    entries = sum(law.row_size)
    if len(law.probabilities) != entries * _WIDTH:
        raise InvalidFrame(f"a law has {len(law.probabilities)} bytes for {entries} probabilities")
    if law.kind is ProposalKind.SPARSE:
        _check_ids(law, entries, vocabulary)
    elif law.ids:
        raise InvalidFrame("a dense law has ids")
    for row in probability_rows(law):
        # NaN fails both comparisons, an infinite entry the second
        if not (row.min(initial=np.inf) >= 0 and abs(row.sum(dtype=np.float64) - 1) <= SUM_TOLERANCE):
            raise InvalidFrame("a row of a law is no probability distribution")


def _check_shape(law: Law, vocabulary: int) -> None:
    if law.kind not in RATIO_KINDS:
        raise InvalidFrame(f"a law of kind {law.kind}")
    if max(law.row_size, default=0) > vocabulary:
        raise InvalidFrame(f"a row of a law has more than {vocabulary} entries")


def _check_ids(law: Law, entries: int, vocabulary: int) -> None:
    if len(law.ids) != entries * _WIDTH:
        raise InvalidFrame(f"a law has {len(law.ids)} bytes for {entries} ids")
    for row in id_rows(law):
        if row.max(initial=0) >= vocabulary:
            raise InvalidFrame(f"a law holds an id of {vocabulary} or more")
        if np.unique(row).shape[0] != row.shape[0]:
            raise InvalidFrame("an id stands twice in a row of a law")


def _bounds(law: Law) -> Iterable[tuple[int, int]]:
    return pairwise(accumulate(law.row_size, initial=0))
