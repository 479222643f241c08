"""From logits to outcomes: processors, the noise that a row's rule needs, and the rule of each proposal's kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from ssd_kernels.cpu import CpuKernels
from torch import Tensor

from ssd_cluster.sampling.coupled import highest, winner
from ssd_cluster.sampling.processors import RowParams, process
from ssd_cluster.sampling.ratio_noise import RoundDraws
from ssd_cluster.target.laws import LawDesk
from ssd_cluster.target.scheduler import Row
from ssd_cluster.types import RATIO_KINDS, Proposal, ProposalKind
from ssd_cluster.verify import DraftLaw, Outcome, Rule, VerifyBatch, equality, match_drawn, rule_for, verify


def proposal_of(row: Row) -> Proposal:
    """The proposal that a row really verifies: the choice's own, shortened to what was run."""
    return row.choice.proposal.shortened(row.n_proposed)


class Verifier:
    """Verifies the deciding rows of a forward, each by the rule of its proposal's kind.

    Args:
        rules: by kind; may be exchanged between rounds.
        valid_vocab: ids from here on are padding and are never drawn.
        laws: where the laws of ratio kinds are counted.
        kernels: the model's compiled CPU kernels, or None.
    """

    def __init__(
        self,
        rules: Mapping[ProposalKind, Rule],
        valid_vocab: int,
        laws: LawDesk,
        kernels: CpuKernels | None = None,
    ) -> None:
        self.rules = rules
        self._valid_vocab = valid_vocab
        self._laws = laws
        self._kernels = kernels
        self._law: Tensor | None = None  # [1, V], memory of the row that is being drawn

    def outcomes(self, rows: Sequence[Row], logits: Tensor, lap: Callable[[str], None]) -> list[Outcome]:
        """Outcomes of rows that decide.

        Args:
            rows: in the order of the forward.
            logits: float32 [sum(n_proposed + 1), V].
            lap: told the phase that has just ended.

        Raises:
            NumericalError: a row leaves nothing to draw.
        """
        if logits.device.type == "cpu" and all(rule_for(_kind(row), self.rules) is equality for row in rows):
            return self._draw_one_by_one(rows, logits, lap)
        params: list[RowParams] = []
        noise: list[Tensor | None] = []
        for row in rows:
            choice = row.choice
            base = len(choice.tokens)
            shared = choice.noise if not by_ratio(row) else None
            for position in range(base, base + row.n_proposed + 1):
                params.append(choice.row_params(position))
                noise.append(None if shared is None else shared.row(position))
        draws = [_draws(row) for row in rows]
        lap("noise")
        probs = process(logits, params, self._valid_vocab)
        lap("process")
        laws = [_law(row) if by_ratio(row) else None for row in rows]
        proposals = [proposal_of(row) for row in rows]
        results = verify(VerifyBatch(proposals, probs, noise, laws, draws, self._kernels), self.rules)
        lap("verify")
        for row, law, outcome in zip(rows, laws, results, strict=True):
            if by_ratio(row):
                self._laws.count(row.choice.session, law, refused=outcome.law_refused)
        return results

    def _draw_one_by_one(self, rows: Sequence[Row], logits: Tensor, lap: Callable[[str], None]) -> list[Outcome]:
        """The equality rule on a CPU: laws and noise only of the positions that a proposal agrees up to."""
        places = [(row.choice, len(row.choice.tokens) + t) for row in rows for t in range(row.n_proposed + 1)]
        whole = logits.shape[1] == self._valid_vocab
        if self._law is None or self._law.shape[1] != logits.shape[1]:
            self._law = torch.empty(1, logits.shape[1])
        memory = self._law

        def draw(index: int) -> int:
            choice, position = places[index]
            params = choice.row_params(position)
            if params.greedy and whole and not params.banned_ids:
                token = highest(logits[index], self._kernels)  # without its one-hot law
            else:
                lap("verify")
                noise = None if choice.noise is None else choice.noise.row(position)
                lap("noise")
                law = process(logits[index : index + 1], [params], self._valid_vocab, out=memory)
                lap("process")
                token = winner(law[0], noise, self._kernels)
            return token

        results = match_drawn([row.proposed for row in rows], draw)
        lap("verify")
        return results


def _kind(row: Row) -> ProposalKind:
    return row.choice.proposal.kind if row.n_proposed else ProposalKind.NONE


def by_ratio(row: Row) -> bool:
    """Whether the row verifies tokens of a ratio kind."""
    return _kind(row) in RATIO_KINDS


def _draws(row: Row) -> RoundDraws | None:
    """Fresh randomness of a row that is verified by ratios, drawn now if it was not drawn ahead."""
    if not by_ratio(row):
        return None
    draws = row.choice.take_draws()
    draws.prefetch(row.n_proposed)
    return draws


def _law(row: Row) -> DraftLaw | None:
    """The law of the row's proposal, if it has come: it belongs to the whole of it, also where less is verified."""
    session, proposal = row.choice.session, row.choice.proposal
    return session.law if session is not None and session.inflight == proposal else None
