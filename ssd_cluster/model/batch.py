"""What one forward pass runs: causal spans of sequences and tree rows of speculation branches, ragged, in one batch.

Spans with an ancestor mask, for token trees verified in one forward, are for the benchmark: servers verify chains only.

Shape letters used in this package: T tokens in a forward, R rows, H query heads, G key/value heads, D head size,
E model width, L context length, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class CausalSpan:
    """Consecutive tokens of one sequence.

    Attributes:
        tokens: ids to run; their keys and values are written to the pages.
        start: absolute position of ``tokens[0]``; keys and values of [0, start) are in the pages already.
        block_table: page ids covering positions [0, start + len(tokens)).
        logits_from: logits are returned for ``tokens[logits_from:]``; ``len(tokens)`` asks for none.
    """

    tokens: list[int]
    start: int
    block_table: list[int]
    logits_from: int = 0

    @property
    def n_logits(self) -> int:
        return len(self.tokens) - self.logits_from


@dataclass(slots=True)
class TreeSpan:
    """One token for each of R branches of one session; all branches share the session's pages as prefix.

    Row r attends to positions [0, visible[r]) of the pages and to entries [0, depths[r]] of its own tail; its keys and
    values go to entry ``depths[r]`` of tail slot ``tails[r]``, never to the pages. Its absolute position is
    ``visible[r] + depths[r]``. Logits are returned for every row.

    Attributes:
        tokens: R ids.
        block_table: the session's pages, shared by all rows.
        visible: R visible prefix lengths.
        tails: R tail slots (see ``TailPool``).
        depths: R tail entries to write.
    """

    tokens: list[int]
    block_table: list[int]
    visible: list[int]
    tails: list[int]
    depths: list[int]

    @property
    def n_logits(self) -> int:
        return len(self.tokens)


@dataclass(slots=True)
class MaskedSpan:
    """Nodes of a token tree behind the first ``start`` positions of one sequence.

    Node i attends to positions [0, start), to its ancestors and to itself; its keys and values go to place
    ``start + i`` of the pages, while its absolute position is ``start`` plus its depth. Logits are returned for every
    token that is run. What is kept of a tree is moved together with ``ModelRunner.keep``.

    Attributes:
        tokens: ids of the nodes to run, which are the last ``len(tokens)`` nodes.
        start: positions before the tree; their keys and values are in the pages already.
        block_table: page ids covering places [0, start + len(parents)).
        parents: parent of each node of the tree, those of earlier forwards included; -1 for roots. Parents come first.
    """

    tokens: list[int]
    start: int
    block_table: list[int]
    parents: list[int]

    @property
    def first(self) -> int:
        """The first node that is run."""
        return len(self.parents) - len(self.tokens)

    @property
    def n_logits(self) -> int:
        return len(self.tokens)

    @property
    def positions(self) -> list[int]:
        """Absolute position of each node that is run."""
        positions: list[int] = []
        for parent in self.parents:
            positions.append(self.start if parent < 0 else positions[parent] + 1)
        return positions[self.first :]


Span = CausalSpan | TreeSpan | MaskedSpan


@dataclass(slots=True)
class ForwardBatch:
    """Spans of one forward; logits come back in span order, then row order."""

    spans: list[Span] = field(default_factory=list)

    @property
    def n_tokens(self) -> int:
        return sum(len(span.tokens) for span in self.spans)

    @property
    def n_logits(self) -> int:
        return sum(span.n_logits for span in self.spans)
