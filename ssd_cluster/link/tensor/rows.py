"""A law as tensors, and its layout in the one flat buffer that is sent.

The buffer is int32 ``[entries]``: for a sparse law the ids of all rows, then the bits of their float32 probabilities;
for a dense law the bits alone; last a seal of two, which says that the transfer was whole and which one it was. All
rows of a law have one width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_cluster.errors import InvalidFrame
from ssd_cluster.link.laws import pack_law
from ssd_cluster.link.messages import Law
from ssd_cluster.types import ProposalKind

SEAL = 2
_POSITIVE = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class LawRows:
    """A law as a draft holds it, not copied yet.

    Attributes:
        session, epoch, fingerprint: whose proposal it is.
        probabilities: float32 ``[width]`` per proposed token, on any device; not written to any more.
        ids: int64 ``[width]`` target ids of the entries, of a sparse law; empty: dense.
        vocabulary: entries of a dense row that is sent.
        names: int64, ascending: target id of each entry of a dense row of a reduced head; None: all in order.
    """

    session: int
    epoch: int
    fingerprint: int
    probabilities: tuple[Tensor, ...]
    vocabulary: int
    ids: tuple[Tensor, ...] = ()
    names: Tensor | None = None

    @property
    def kind(self) -> ProposalKind:
        return ProposalKind.SPARSE if self.ids else ProposalKind.DENSE

    @property
    def width(self) -> int:
        """Entries of each row that is sent."""
        if not self.ids and self.names is not None:
            return self.vocabulary
        return self.probabilities[0].shape[0]

    @property
    def even(self) -> bool:
        """Whether all rows have one width, as the tensor channel wants it."""
        return len({row.shape[0] for row in (*self.probabilities, *self.ids)}) == 1

    def announcement(self, channel: int, transfer: int) -> Law:
        """The message that says what follows on a tensor channel."""
        sizes = (self.width,) * len(self.probabilities)
        return Law(self.session, self.epoch, self.fingerprint, self.kind, sizes, b"", b"", channel, transfer)

    def packed(self) -> Law:
        """The message with all entries in it."""
        rows = [self._row(row).cpu().numpy() for row in self.probabilities]
        ids = [row.cpu().numpy() for row in self.ids]
        return pack_law(self.session, self.epoch, self.fingerprint, self.kind, rows, ids)

    @property
    def entries(self) -> int:
        """Length of the buffer that takes this law."""
        return entries_of(self.kind, len(self.probabilities), self.width)

    def write(self, buffer: Tensor, transfer: int) -> None:
        """Fill a buffer of ``entries`` of this law."""
        n, width = len(self.probabilities), self.width
        buffer, seal = buffer[:-SEAL], buffer[-SEAL:]
        seal.copy_(seal_of(transfer, self.fingerprint))
        if self.ids:
            for target, row in zip(buffer[: n * width].view(n, width), self.ids, strict=True):
                target.copy_(row)
        probabilities = buffer[-n * width :].view(torch.float32).view(n, width)
        for target, row in zip(probabilities, self.probabilities, strict=True):
            if self.ids or self.names is None:
                target.copy_(row)
            else:
                target.zero_()[self.names.to(target.device)] = row.to(target.device)

    def _row(self, row: Tensor) -> Tensor:
        if self.ids or self.names is None:
            return row
        return torch.zeros(self.vocabulary, device=row.device).index_copy_(0, self.names.to(row.device), row)


def entries_of(kind: ProposalKind, rows: int, width: int) -> int:
    """Length of the buffer of a law."""
    return rows * width * (2 if kind is ProposalKind.SPARSE else 1) + SEAL


def seal_of(transfer: int, fingerprint: int) -> Tensor:
    """What stands behind the entries; int32 ``[2]``, never all -1."""
    return torch.tensor([transfer & _POSITIVE, fingerprint], dtype=torch.int64).to(torch.int32)


@dataclass(frozen=True, slots=True)
class LawShape:
    """The largest law that a target takes, and the only kind of it: ``rows`` tokens of ``width`` entries each."""

    kind: ProposalKind
    rows: int
    width: int

    @property
    def entries(self) -> int:
        """Length of the buffer that takes any of them."""
        return entries_of(self.kind, self.rows, self.width)

    def check(self, law: Law) -> None:
        """Refuse what does not fit.

        Raises:
            InvalidFrame: another kind, no rows, too many or too long ones, or rows of several lengths.
        """
        sizes = set(law.row_size)
        if law.kind is not self.kind or not 0 < len(law.row_size) <= self.rows:
            raise InvalidFrame(f"a law of {len(law.row_size)} rows of kind {law.kind} on a tensor channel")
        if len(sizes) != 1 or not 0 < max(sizes) <= self.width:
            raise InvalidFrame("rows of a law on a tensor channel are empty, too long, or of several lengths")


def break_seal(buffer: Tensor) -> None:
    """Before a transfer into it: what an earlier one left must not pass for this one."""
    buffer[-SEAL:] = -1


def read(law: Law, buffer: Tensor) -> tuple[Tensor | None, Tensor]:
    """Ids (int32, None: dense) and probabilities (float32) of a received law, ``[n, width]`` views of its buffer.

    Raises:
        InvalidFrame: what came is not what was announced: another transfer, or one of another length.
    """
    n, width = len(law.row_size), law.row_size[0]
    if not torch.equal(buffer[-SEAL:].cpu(), seal_of(law.transfer, law.fingerprint)):
        raise InvalidFrame("a transfer was not what had been announced")
    buffer = buffer[:-SEAL]
    ids = buffer[: n * width].view(n, width) if law.kind is ProposalKind.SPARSE else None
    return ids, buffer[-n * width :].view(torch.float32).view(n, width)
