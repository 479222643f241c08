"""From logits to outcomes: processors, noise at absolute positions, and the rule of each proposal's kind."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ssd_cluster.sampling.processors import RowParams, process
from ssd_cluster.target.scheduler import Row
from ssd_cluster.types import Proposal
from ssd_cluster.verify import Outcome, VerifyBatch, verify


def proposal_of(row: Row) -> Proposal:
    """The proposal that a row really verifies: the choice's own, shortened to what was run."""
    proposal = row.choice.proposal
    if row.n_proposed == len(proposal.tokens):
        return proposal
    if row.n_proposed == 0:
        return Proposal(proposal.base_len)
    return Proposal(proposal.base_len, row.proposed, proposal.kind, proposal.source, proposal.origin)


def outcomes(rows: Sequence[Row], logits: Tensor, valid_vocab: int) -> list[Outcome]:
    """Verify the deciding rows of a forward.

    Args:
        rows: rows that decide, in the order of the forward.
        logits: float32 [sum(n_proposed + 1), V].
        valid_vocab: ids from here on are padding and are never drawn.

    Raises:
        NumericalError: a row leaves nothing to draw.
    """
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
