"""Traversal verification of token trees, from the leaves to the root; lossless, and block verification on a chain.

visit(v, rho): P = row at v; for each child (x, Q): visit(child, min(1, rho P(x) / Q(x))); if it failed, S = sum_y (rho
P(y) - Q(y))+ and (rho, P) <- (S / (S + 1 - rho), (rho P - Q)+ / S). Then v is kept with probability rho and the next
token drawn from P, or v fails. Q is the law that the child was really drawn from, given its earlier siblings.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_cluster.verify.chain import race, row_probability
from ssd_cluster.verify.laws import DraftLaw
from ssd_cluster.verify.paths import PathOutcome, TokenTree


def traverse(tree: TokenTree, rows: Tensor, law: DraftLaw, uniforms: Tensor, noise: Tensor | None) -> PathOutcome:
    """Verify a tree of N nodes below its root.

    Args:
        tree: the proposed tokens.
        rows: P at nodes 0..N, float32 ``[N + 1, V]``.
        law: what nodes 1..N were drawn from, N rows with Q(x) > 0: q for a first child; q without the earlier siblings
            (``law.without``) for a later one; a point mass for a token that was not drawn.
        uniforms: ``[N + 1]`` in [0, 1), one per node.
        noise: E of the token drawn, float32 ``[V]``; None for rows that are one-hot.

    Raises:
        ValueError: not N + 1 rows, N laws and N + 1 uniforms.
        NumericalError: a row leaves nothing to draw.
    """
    n = len(tree.tokens)
    if (rows.shape[0], law.n, len(uniforms)) != (n + 1, n, n + 1):
        raise ValueError(f"{n} nodes, but {rows.shape[0]} rows, {law.n} laws and {len(uniforms)} uniforms")
    u, children = uniforms.tolist(), tree.children
    tokens = torch.tensor(tree.tokens, dtype=torch.int64, device=rows.device)
    parents = torch.tensor(tree.parents, dtype=torch.int64, device=rows.device)
    qx = law.probability_of(tokens).tolist()
    at_parents = row_probability(rows[parents], tokens).tolist() if n else []

    def visit(node: int, rho: float) -> PathOutcome | None:
        row = rows[node]
        for i, child in enumerate(children[node]):
            x = child - 1
            px = at_parents[x] if i == 0 else float(row_probability(row.unsqueeze(0), tokens[x : x + 1])[0])
            found = visit(child, min(1.0, rho * (px / qx[x])))
            if found is not None:
                return found
            residual = law.residual(x, rho, row)
            mass = float(residual.sum(dtype=torch.float64))
            rho, row = (mass / (mass + 1.0 - rho), residual / mass) if mass > 0 else (float(rho == 1), row)
        if node == 0 or u[node] < rho:  # at the root rho is 1
            return PathOutcome(tree.path(node), race(row, noise, row))
        return None

    outcome = visit(0, 1.0)
    assert outcome is not None  # the root always ends in a draw or an error
    return outcome
