"""One sequence of one model for rules that verify trees: rows by path, and only the path that is kept stays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ssd_cluster.model.batch import CausalSpan, ForwardBatch, MaskedSpan
from ssd_cluster.model.runner import ModelRunner

Path = tuple[int, ...]
"""Tokens from behind the committed ones to a node of a token tree; () is the root, the last committed token itself."""


class ModelSequence:
    """Committed tokens, and the tree of the present round behind them.

    Args:
        runner: the model.
        prompt: committed tokens, at least one.
        room: most tokens that will be committed, and nodes that one round will have.

    Attributes:
        tokens: committed tokens.
        forwards: forwards over nodes so far.

    Raises:
        OutOfBlocks: there are no pages for so many tokens.
    """

    def __init__(self, runner: ModelRunner, prompt: Sequence[int], room: int) -> None:
        self.tokens = list(prompt)
        self.forwards = 0
        self._runner = runner
        self._table = runner.pool.allocate(-(-(len(prompt) + room) // runner.pool.block_size))
        self._length = 0  # positions whose keys and values are in the pages
        self._nodes: dict[Path, int] = {}
        self._parents: list[int] = []
        self._rows: list[Tensor] = []

    def logits(self, paths: Sequence[Path]) -> Tensor:
        """Rows of the tokens that follow ``paths``, float32 ``[n, V_out]``; what was not run yet is run in one forward.

        A path's own prefixes are run with it.
        """
        self._run(paths)
        return torch.stack([self._rows[self._nodes[path]] for path in paths])

    def commit(self, tokens: Sequence[int]) -> None:
        """Append ``tokens``; of the tree stay the keys and values of the nodes on their path."""
        if self._nodes:
            prefixes = [tuple(tokens[:n]) for n in range(len(tokens) + 1)]
            known = next((n for n, path in enumerate(prefixes) if path not in self._nodes), len(prefixes))
            kept = [self._nodes[path] for path in prefixes[:known]]
            self._runner.keep(self._table, self._length, kept)
            self._length += len(kept)
        self.tokens += tokens
        self._nodes, self._parents, self._rows = {}, [], []

    def close(self) -> None:
        """Give the pages back."""
        self._runner.pool.free(self._table)
        self._table = []

    def _run(self, paths: Iterable[Path]) -> None:
        missing = {path[:n] for path in paths for n in range(len(path) + 1)} - self._nodes.keys()
        if not missing:
            return
        if not self._nodes:
            self._catch_up()
        new = sorted(missing, key=len)
        for path in new:
            self._parents.append(self._nodes[path[:-1]] if path else -1)
            self._nodes[path] = len(self._nodes)
        tokens = [path[-1] if path else self.tokens[-1] for path in new]
        span = MaskedSpan(tokens, self._length, self._table, list(self._parents))
        self._rows += self._runner.forward(ForwardBatch([span])).unbind(0)
        self.forwards += 1

    def _catch_up(self) -> None:
        """Run committed tokens before the last one that are not in the pages: the prompt, or a token never fed."""
        behind = self.tokens[self._length : -1]
        if behind:
            self._runner.forward(ForwardBatch([CausalSpan(behind, self._length, self._table, len(behind))]))
            self._length += len(behind)
