"""Inputs for the kernels of ratio mode, and a plain-Python oracle of the two chain rules."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

Chain = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""P, Q, x, n, u, E as the verification kernels take them."""

SHAPES = [
    (3, 1, 5),
    (48, 4, 7),
    (4, 7, 1023),
    (5, 15, 130),
    (2, 0, 7),
    (2, 3, 1),
    (2, 3, 2049),
    (1, 4, 49152),
    (1, 2, 151936),
]
"""(B, g, V): vocabularies that are no power of two, every kind of length, the two real sizes with few rows."""


def exponential(*shape: int, gen: torch.Generator) -> Tensor:
    return -torch.rand(*shape, generator=gen).clamp_(min=2.0**-24).log()


def laws(*shape: int, gen: torch.Generator, temperature: float = 0.5) -> Tensor:
    return torch.softmax(torch.randn(*shape, generator=gen) / temperature, -1)


def chain(B: int, g: int, V: int, seed: int = 0) -> Chain:
    """A ragged batch; sequences draft nearer and less near to the target. Padding is poisoned with NaN."""
    gen = torch.Generator().manual_seed(seed + 1000 * g + V)
    P = laws(B, g + 1, V, gen=gen, temperature=1.0)
    nearness = torch.linspace(0.9, 0.1, B)[:, None, None]
    Q = (1 - nearness) * laws(B, g, V, gen=gen, temperature=1.0) + nearness * P[:, :g]
    x = torch.stack([torch.multinomial(rows, 1, generator=gen)[:, 0] for rows in Q.unbind(1)], 1) if g else None
    x = torch.zeros(B, 0, dtype=torch.int64) if x is None else x
    n = torch.randint(0, g + 1, (B,), generator=gen)
    n[0] = g
    u = torch.rand(B, g, generator=gen)
    for b, length in enumerate(n.tolist()):
        P[b, length + 1 :] = math.nan
        Q[b, length:] = math.nan
        u[b, length:] = math.nan
        x[b, length:] = -1
    return P, Q, x, n, u, exponential(B, V, gen=gen)


def edge_cases() -> dict[str, Chain]:
    """Rows of the table of edge cases: zeros, one-hot laws, equal laws, a uniform of 0, ties, nothing to draw."""
    gen = torch.Generator().manual_seed(5)
    P, Q, x, n, u, E = chain(4, 3, 6, seed=9)
    P, Q, u, x = (t.clone() for t in (laws(4, 4, 6, gen=gen), laws(4, 3, 6, gen=gen), torch.rand(4, 3), x))
    n = torch.tensor([3, 2, 1, 0])
    x = torch.tensor([[1, 2, 3], [0, 0, 5], [4, 1, 1], [0, 0, 0]])
    E = exponential(4, 6, gen=gen)
    zero = torch.zeros_like(u)
    unreachable = P.clone()
    unreachable.scatter_(2, torch.cat([x, x[:, :1]], 1).unsqueeze(-1), 0.0)
    one_hot = torch.nn.functional.one_hot
    greedy = one_hot(torch.tensor([[1, 2, 0, 0], [0, 0, 1, 2], [3, 0, 0, 0], [5, 0, 0, 0]]), 6).float()
    point = one_hot(x, 6).float()
    return {
        "u = 0": (P, Q, x, n, zero, E),
        "p(x) = 0 and u = 0": (unreachable, Q, x, n, zero, E),
        "p one-hot": (greedy, Q, x, n, u, E),
        "q one-hot": (P, point, x, n, u, E),
        "both one-hot": (greedy, point, x, n, u, E),
        "p = q": (P, P[:, :3].clone(), x, n, u, E),
        "p = q and u = 1": (P, P[:, :3].clone(), x, n, torch.ones_like(u), E),
        "equal quotients": (torch.full_like(P, 1 / 6), Q, x, n, u, torch.ones_like(E)),
        "nothing to draw": (torch.full_like(P, math.nan), Q, x, n, u, E),
        "all zero": (torch.zeros_like(P), Q, x, n, u, E),
        "tiny q": (P, Q.clone().fill_(1e-42), x, n, u, E),
    }


def pointed_cases() -> dict[str, tuple[Chain, tuple[int, int]]]:
    """Chains of two tokens on which a wrong block rule shows, with their (kept, next)."""

    def case(P: list[list[float]], Q: list[list[float]], x: list[int], u: list[float], E: list[float]) -> Chain:
        rows = (torch.tensor([P]), torch.tensor([Q]), torch.tensor([x]), torch.tensor([2]))
        return *rows, torch.tensor([u]), torch.tensor([E])

    even, last = [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]
    # rho_1 = 0.5: the residual is (0.125, 0, 0), not (P - Q)+ = (0.35, 0.25, 0); S_1 = 0.125, h_1 = 0.2.
    falls = ([[0.3, 0.7, 0.0], [0.45, 0.55, 0.0], last], [[0.6, 0.4, 0.0], [0.1, 0.3, 0.6]])
    # rho_1 = 1 although r_1 = 2, so rho_2 = 0.5.
    rises = ([[0.8, 0.2, 0.0], [0.4, 0.3, 0.3], last], [[0.4, 0.6, 0.0], [0.8, 0.1, 0.1]])
    # rho_1 = 0.5, then r_2 = 2: rho_2 = 1, kept although h_1 fails.
    recovers = ([[0.3, 0.7, 0.0], [0.8, 0.1, 0.1], last], [[0.6, 0.4, 0.0], [0.4, 0.3, 0.3]])
    return {
        "residual at rho below 1": (case(*falls, [0, 2], [0.1, 0.0], [1.0, 0.1, 1.0]), (1, 0)),
        "h_1 just above u": (case(*falls, [0, 2], [0.199, 0.0], [1.0, 0.1, 1.0]), (1, 0)),
        "h_1 just below u": (case(*falls, [0, 2], [0.201, 0.0], [1.0, 0.1, 1.0]), (0, 1)),
        "cap before the end": (case(*rises, [0, 0], [0.0, 0.7], [1.0, 0.5, 1.0]), (1, 1)),
        "later token kept after a failing one": (case(*recovers, [0, 0], [0.99, 0.99], [1.0, 9.0, 0.1]), (2, 2)),
        "residual of nothing at p = q": (
            case([even, even, last], [even, even], [0, 1], [1.0, 1.0], [1.0, 0.1, 1.0]),
            (0, 1),
        ),
    }


def chains() -> Iterator[tuple[str, Chain]]:
    for shape in SHAPES:
        for seed in range(2 if shape == (5, 15, 130) else 1):
            yield f"{shape} #{seed}", chain(*shape, seed=seed)
    yield from edge_cases().items()
    for name, (case, _) in pointed_cases().items():
        yield name, case


def oracle_block(case: Chain, b: int) -> int:
    """Tokens kept of sequence b, from the definition with products instead of logarithms, in Python floats."""
    P, Q, x, n, u, _ = (t[b].double() if t.is_floating_point() else t[b] for t in case)
    length = int(n)
    rho, kept = 1.0, 0
    for t in range(1, length + 1):
        token = int(x[t - 1])
        rho = min(1.0, rho * float(P[t - 1, token]) / float(Q[t - 1, token]))
        h = rho
        if t < length:
            mass = float((rho * P[t] - Q[t]).clamp(min=0).sum())
            h = mass / (mass + 1 - rho) if mass + 1 - rho > 0 else 1.0
        kept = t if float(u[t - 1]) < h else kept
    return kept


def oracle_token(case: Chain, b: int) -> int:
    P, Q, x, n, u, _ = (t[b] for t in case)
    for t in range(int(n)):
        if not float(u[t]) * float(Q[t, x[t]]) < float(P[t, x[t]]):
            return t
    return int(n)


def oracle_next(case: Chain, b: int, kept: int, rho: float) -> int:
    """Winner of the race over (rho P - Q)+ at the stop, over P after full acceptance."""
    P, Q, _, n, _, E = case
    law = P[b, kept].double()
    weights = law if kept == int(n[b]) else (rho * law - Q[b, kept].double()).clamp(min=0)
    quotients = torch.where(weights > 0, E[b].double() / weights, math.inf)
    return int(quotients.argmin())


def rho_at(case: Chain, b: int, kept: int) -> float:
    P, Q, x, *_ = case
    rho = 1.0
    for t in range(kept):
        rho = min(1.0, rho * float(P[b, t, x[b, t]]) / float(Q[b, t, x[b, t]]))
    return rho
