"""From logits to outcomes: processors, noise at absolute positions, and the rule of each proposal's kind."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from ssd_cluster.errors import NumericalError
from ssd_cluster.sampling.processors import RowParams, process
from ssd_cluster.target.scheduler import Row
from ssd_cluster.types import Proposal
from ssd_cluster.verify import Outcome, VerifyBatch, match, verify


def proposal_of(row: Row) -> Proposal:
    """The proposal that a row really verifies: the choice's own, shortened to what was run."""
    return row.choice.proposal.shortened(row.n_proposed)


def outcomes(rows: Sequence[Row], logits: Tensor, valid_vocab: int) -> list[Outcome]:
    """Verify the deciding rows of a forward.

    Args:
        rows: rows that decide, in the order of the forward.
        logits: float32 [sum(n_proposed + 1), V].
        valid_vocab: ids from here on are padding and are never drawn.

    Raises:
        NumericalError: a row leaves nothing to draw.
    """
    if logits.device.type == "cpu" and logits.shape[1] == valid_vocab and all(_greedy(row) for row in rows):
        return match([row.proposed for row in rows], _argmax(logits))
    params: list[RowParams] = []
    noise: list[Tensor | None] = []
    for row in rows:
        choice = row.choice
        base = len(choice.tokens)
        for position in range(base, base + row.n_proposed + 1):
            params.append(choice.row_params(position))
            noise.append(None if choice.noise is None else choice.noise.row(position))
    probs = process(logits, params, valid_vocab)
    return verify(VerifyBatch([proposal_of(row) for row in rows], probs, noise))


def _greedy(row: Row) -> bool:
    """Whether the row's draws are plain argmaxes of its logits: temperature 0 and nothing masked."""
    choice = row.choice
    return choice.noise is None and not choice.row_params(len(choice.tokens)).banned_ids


def _argmax(logits: Tensor) -> list[int]:
    """Lowest id of the largest logit of each row; what every rule says of greedy rows, without their laws."""
    drawn = []
    for row in logits.numpy():
        best = int(row.argmax())
        if not math.isfinite(row[best]):
            raise NumericalError("a row of logits holds nothing finite to choose")
        drawn.append(best)
    return drawn
