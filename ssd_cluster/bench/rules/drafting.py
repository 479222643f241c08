"""What a draft proposes under each rule: chains, several chains, trees of samples, trees of the likeliest tokens.

Tokens of ratio rules are drawn and their laws kept by the draft's own code (``draft.laws``), SAGUARO included.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_cluster.bench.rules.sequence import ModelSequence, Path
from ssd_cluster.draft.laws import LawDraw, LawRow, LawTerms, draw
from ssd_cluster.sampling.coupled import coupled_sample, coupled_scores
from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.processors import RowParams, process
from ssd_cluster.verify import DenseLaw, DraftLaw, SparseLaw, TokenTree

MOST_DRAFTS = 64
"""Drafts of one round that have noise of their own."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """A chain and the law that each of its tokens was drawn from."""

    tokens: Path
    law: DraftLaw | None


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of the draft's logits: how many are ids that the tokenizer knows, and their ids (None: the same).

    ``vocabulary``: entries of a target row.
    """

    count: int
    names: Tensor | None
    vocabulary: int

    def ids(self, columns: Sequence[int]) -> list[int]:
        return list(columns) if self.names is None else [int(self.names[column]) for column in columns]


class Drafter:
    """A draft model that continues one sequence.

    Args:
        sequence: of the draft model.
        columns: of its logits.
        params: law of its rows.
        terms: how it draws under ratio rules.
        noise: noise shared with the target; None for greedy rows.
        stop_ids: nothing is drafted behind them.

    Attributes:
        proposed: the newest chain, where a round proposes one.
    """

    def __init__(
        self,
        sequence: ModelSequence,
        columns: Columns,
        params: RowParams,
        terms: LawTerms,
        noise: NoiseSource | None,
        stop_ids: Collection[int],
    ) -> None:
        self.sequence = sequence
        self._columns = columns
        self._params = params
        self._terms = terms
        self._noise = noise
        self.stop_ids = stop_ids
        self.proposed: Path = ()
        self._round = 0

    def commit(self, tokens: Sequence[int]) -> None:
        """The round has ended with ``tokens``; the next one draws with fresh noise."""
        self.sequence.commit(tokens)
        self._round += 1

    def coupled_chain(self, k: int) -> Drafted:
        """At most ``k`` tokens drawn with the target's own noise."""
        path: Path = ()
        while len(path) < k and not self.ended(path):
            probs, noise = self._probs([path]), self._shared(path)
            path += tuple(self._columns.ids(coupled_sample(probs, [noise]).tolist()))
        self.proposed = path
        return Drafted(path, None)

    def chains(self, k: int, drafts: int = 1) -> list[Drafted]:
        """Independent chains of at most ``k`` tokens each."""
        paths: list[Path] = [()] * drafts
        laws: list[list[DraftLaw]] = [[] for _ in paths]
        for _ in range(k):
            growing = [i for i, path in enumerate(paths) if not self.ended(path)]
            for i, (token, law) in zip(growing, self._draw([paths[i] for i in growing], growing), strict=True):
                paths[i] += (token,)
                laws[i].append(law)
        self.proposed = paths[0]
        return [Drafted(path, joined(found)) for path, found in zip(paths, laws, strict=True)]

    def branches(self, k: int, drafts: int) -> tuple[TokenTree, DraftLaw]:
        """Up to ``drafts`` different first tokens, drawn without replacement, and a chain behind each; and all laws."""
        first, law = self._siblings(drafts)
        paths: list[Path] = [(token,) for token in first]
        laws = [[law.without(first[:i])] for i in range(len(first))]
        for _ in range(k - 1):
            growing = [i for i, path in enumerate(paths) if not self.ended(path)]
            for i, (token, row) in zip(growing, self._draw([paths[i] for i in growing], growing), strict=True):
                paths[i] += (token,)
                laws[i].append(row)
        tokens: list[int] = []
        parents: list[int] = []
        for path in paths:
            parents += [0, *range(len(tokens) + 1, len(tokens) + len(path))]
            tokens += path
        return TokenTree(tuple(tokens), tuple(parents)), joined([row for rows in laws for row in rows])

    def top_tree(self, k: int, width: int) -> list[Path]:
        """Nodes of the ``k * width`` likeliest continuations, found ``width`` a level; parents come first.

        As EAGLE-2 does it: at each depth the ``width`` likeliest nodes are expanded, and of everything seen the best
        stay. The tokens are a function of the context: point masses. Greedy requests are guessed at temperature 1.
        """
        params = RowParams(temperature=self._params.temperature or 1.0)
        seen: dict[Path, float] = {}
        frontier: list[Path] = [()]
        for _ in range(k):
            found: dict[Path, float] = {}
            alive = [path for path in frontier if not self.ended(path)]
            for path, row in zip(alive, self._probs(alive, params) if alive else (), strict=True):
                best = row.topk(min(width, len(row)))
                ids = self._columns.ids(best.indices.tolist())
                scores = best.values.log().tolist()
                found |= {
                    (*path, token): seen.get(path, 0.0) + score
                    for token, score in zip(ids, scores, strict=True)
                    if score > -torch.inf
                }
            seen |= found
            frontier = sorted(found, key=lambda path: -found[path])[:width]
        return sorted(sorted(seen, key=lambda path: (-seen[path], len(path)))[: k * width], key=len)

    def law(self, path: Path) -> DraftLaw:
        """The law of the token behind ``path``."""
        return self._draw([path], [0])[0][1]

    def rank(self, path: Path, token: int, excluded: Collection[int], *, coupled: bool) -> int | None:
        """Place of ``token``, 0 first, among the draft's guesses of what the target draws behind ``path``.

        Guesses are the best of log q + g with shared noise, else the largest logits, lowest column first among equals,
        without ``excluded``. None: the draft cannot name the token.
        """
        if coupled:
            scores = coupled_scores(self._probs([path]), [self._shared(path)])[0]
        else:
            scores = self.sequence.logits([path])[0, : self._columns.count]
        column = self._column(token)
        if column is None or float(scores[column]) == -torch.inf:
            return None
        above = scores > scores[column]
        above[:column] |= scores[:column] == scores[column]
        skipped = [self._column(other) for other in set(excluded) - {token}]
        return int(above.sum()) - sum(bool(above[other]) for other in skipped if other is not None)

    def ended(self, path: Path) -> bool:
        """Whether nothing follows."""
        return bool(path) and path[-1] in self.stop_ids

    def _column(self, token: int) -> int | None:
        if self._columns.names is None:
            return token if token < self._columns.count else None
        at = int(torch.searchsorted(self._columns.names, token))
        return at if at < self._columns.count and int(self._columns.names[at]) == token else None

    def _probs(self, paths: Sequence[Path], params: RowParams | None = None) -> Tensor:
        rows = [params or self._params] * len(paths)
        return process(self.sequence.logits(paths)[:, : self._columns.count], rows)

    def _shared(self, path: Path) -> Tensor | None:
        """The target's noise of the token behind ``path``, at the draft's columns."""
        if self._noise is None:
            return None
        row = self._noise.row(len(self.sequence.tokens) + len(path))
        return row[: self._columns.count] if self._columns.names is None else row[self._columns.names]

    def _draw(self, paths: Sequence[Path], drafts: Sequence[int]) -> list[tuple[int, DraftLaw]]:
        """A token behind each path, each drawn with the noise of its draft, and its law."""
        if not paths:
            return []
        drawn = draw(
            self._probs(paths), [self._at(*one) for one in zip(paths, drafts, strict=True)], self._columns.names
        )
        return [(token, self._named(row)) for token, row in drawn]

    def _at(self, path: Path, draft: int) -> LawDraw:
        position = len(self.sequence.tokens) + len(path)
        return LawDraw(self._terms, position, self._round * MOST_DRAFTS + draft)

    def _siblings(self, most: int) -> tuple[list[int], DraftLaw]:
        """Up to ``most`` first tokens in the order of their race, which is drawing without replacement."""
        ((_, law),) = self._draw([()], [0])
        at = self._at((), 0)
        noise = at.terms.draws.row(at.position, at.round_word)
        quotients = noise / law.dense(self._columns.vocabulary)[0, : len(noise)]
        best = quotients.topk(min(most, len(quotients)), largest=False)
        return [
            token for token, q in zip(best.indices.tolist(), best.values.tolist(), strict=True) if q < torch.inf
        ], law

    def _named(self, row: LawRow) -> DraftLaw:
        """A law as the target sees it: over its own ids."""
        if row.ids is not None:
            return SparseLaw(row.ids.unsqueeze(0), row.probabilities.unsqueeze(0))
        dense = torch.zeros(1, self._columns.vocabulary)
        if self._columns.names is None:
            dense[0, : self._columns.count] = row.probabilities
        else:
            dense[0, self._columns.names] = row.probabilities
        return DenseLaw(dense)


def joined(laws: Sequence[DraftLaw]) -> DraftLaw:
    """One law of the rows of several of one kind."""
    if all(isinstance(law, SparseLaw) for law in laws) and laws:
        sparse = [law for law in laws if isinstance(law, SparseLaw)]
        return SparseLaw(torch.cat([law.ids for law in sparse]), torch.cat([law.probabilities for law in sparse]))
    dense = [law.rows for law in laws if isinstance(law, DenseLaw)]
    return DenseLaw(torch.cat(dense))
