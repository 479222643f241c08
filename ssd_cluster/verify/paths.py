"""Token trees, and what verifying several drafts or a tree says: a path and the token after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PathOutcome:
    """How a verification with branches ended.

    Attributes:
        tokens: proposed tokens that stay, from the root on.
        next_token: the token after them, drawn from the target.
    """

    tokens: tuple[int, ...]
    next_token: int


@dataclass(frozen=True, slots=True)
class TokenTree:
    """N proposed tokens below a root that is the last committed token.

    Node 0 is the root, node i the i-th token; a parent comes before its children, siblings in the order drawn.

    Attributes:
        tokens: tokens of nodes 1..N.
        parents: parents of nodes 1..N.

    Raises:
        ValueError: lengths differ, a parent does not come first, or siblings have the same token.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"{len(self.tokens)} tokens, but {len(self.parents)} parents")
        if any(not 0 <= parent <= i for i, parent in enumerate(self.parents)):
            raise ValueError("a parent must come before its children")
        if len(set(zip(self.parents, self.tokens, strict=True))) < len(self.tokens):
            raise ValueError("siblings must differ")

    @property
    def children(self) -> list[list[int]]:
        """Children of nodes 0..N."""
        found: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for i, parent in enumerate(self.parents):
            found[parent].append(i + 1)
        return found

    def path(self, node: int) -> tuple[int, ...]:
        """Tokens from the root to ``node``."""
        reversed_path = []
        while node:
            reversed_path.append(self.tokens[node - 1])
            node = self.parents[node - 1]
        return tuple(reversed(reversed_path))


def follow(tree: TokenTree, sampled: Sequence[int]) -> PathOutcome:
    """Sample-and-follow: from the root along children that carry the token drawn at their parent.

    For trees whose tokens are not random given their context, such as the top-k trees of EAGLE: they are point masses,
    for which every lossless rule accepts the same tokens.

    Args:
        tree: N nodes below the root.
        sampled: N + 1 draws, one from the target's law at every node, all made in one call of
            :func:`ssd_cluster.sampling.coupled.coupled_sample` (nodes of one depth may share their noise).

    Raises:
        ValueError: not N + 1 draws.
    """
    if len(sampled) != len(tree.tokens) + 1:
        raise ValueError(f"{len(tree.tokens) + 1} draws needed, got {len(sampled)}")
    node_of = {(parent, tree.tokens[i]): i + 1 for i, parent in enumerate(tree.parents)}
    node, token = 0, sampled[0]
    while (below := node_of.get((node, token))) is not None:
        node, token = below, sampled[below]
    return PathOutcome(tree.path(node), token)
