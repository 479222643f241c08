"""The verification rules in rational arithmetic, written from their definitions and sharing nothing with the package.

A verdict is the law of (kept, next token) for one proposal; its pieces can be replaced, to see that errors are caught.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction

from support.exact_world import ONE, ZERO, Law, Text, TextLaw, World

Verdict = Callable[[list[Law], list[Law], Text], dict[tuple[int, int], Fraction]]


def positive(scale: Fraction, p: Law, q: Law) -> Law:
    """(scale p - q)+"""
    return tuple(max(ZERO, scale * a - b) for a, b in zip(p, q, strict=True))


def normalised(weights: Law, otherwise: Law) -> Law:
    total = sum(weights)
    return tuple(w / total for w in weights) if total else otherwise


def ratios(P: list[Law], Q: list[Law], x: Text) -> list[Fraction]:
    return [P[t][x[t]] / Q[t][x[t]] for t in range(len(x))]


def capped(r: list[Fraction], start: Fraction = ONE) -> list[Fraction]:
    """rho_0..rho_n"""
    rho = [start]
    for one in r:
        rho.append(min(ONE, rho[-1] * one))
    return rho


def uncapped(r: list[Fraction]) -> list[Fraction]:
    product = [ONE]
    for one in r:
        product.append(product[-1] * one)
    return product


# --- thresholds, choice of tau, residual: the pieces of the block family


def block_h(P: list[Law], Q: list[Law], x: Text) -> list[Fraction]:
    rho, n = capped(ratios(P, Q, x)), len(x)
    h = [ONE]
    for t in range(1, n):
        S = sum(positive(rho[t], P[t], Q[t]))
        h.append(S / (S + 1 - rho[t]) if S + 1 - rho[t] else ONE)
    return [*h, rho[n]] if n else h


def hsd_h(P: list[Law], Q: list[Law], x: Text) -> list[Fraction]:
    """Capped branch resampling as the HSD paper writes it: joint probabilities, the index of the largest prefix ratio,
    divergences D*(p, q) and D*(q, p) of a branch; capped at the last position too."""
    joint_p, joint_q = [ONE], [ONE]
    for t, token in enumerate(x):
        joint_p.append(joint_p[-1] * P[t][token])
        joint_q.append(joint_q[-1] * Q[t][token])
    r = [a / b for a, b in zip(joint_p, joint_q, strict=True)]

    def starred(t: int) -> Fraction:
        """min(r(X_1:m), 1) r(X_m+1:t), m the largest prefix ratio's index up to t, 0 unless it exceeds 1."""
        m = max(range(t + 1), key=lambda i: r[i])
        return min(r[m], ONE) * (r[t] / r[m]) if r[m] > 1 else r[t]

    h = [ONE]
    for t in range(1, len(x)):
        c = starred(t)
        deficit = sum(max(ZERO, joint_q[t] * (c * a - b)) for a, b in zip(P[t], Q[t], strict=True))
        excess = sum(max(ZERO, joint_q[t] * (b - c * a)) for a, b in zip(P[t], Q[t], strict=True))
        h.append(deficit / excess if excess else ONE)
    return [*h, min(ONE, starred(len(x)))] if x else h


def uncapped_h(P: list[Law], Q: list[Law], x: Text) -> list[Fraction]:
    """The released code: the last position by the uncapped ratio."""
    return [*block_h(P, Q, x)[:-1], min(ONE, uncapped(ratios(P, Q, x))[-1])]


def naive_h(P: list[Law], Q: list[Law], x: Text) -> list[Fraction]:
    R, n = uncapped(ratios(P, Q, x)), len(x)
    h = [ONE]
    for t in range(1, n):
        D = sum(positive(R[t], P[t], Q[t]))
        E = sum(max(ZERO, b - R[t] * a) for a, b in zip(P[t], Q[t], strict=True))
        h.append(D / max(D, E) if max(D, E) else ONE)
    return [*h, min(ONE, R[n])] if n else h


def largest(h: list[Fraction]) -> list[Fraction]:
    """P(tau = t): the largest t with u_t < h_t, uniforms independent."""
    mass, left = [ZERO] * len(h), ONE
    for t in range(len(h) - 1, -1, -1):
        mass[t] = left * h[t]
        left -= mass[t]
    return mass


def scaled_residual(P: list[Law], Q: list[Law], x: Text, t: int) -> Law:
    return normalised(positive(capped(ratios(P, Q, x))[t], P[t], Q[t]), P[t])


def block_family(
    thresholds: Callable[[list[Law], list[Law], Text], list[Fraction]] = block_h,
    choice: Callable[[list[Fraction]], list[Fraction]] = largest,
    residual: Callable[[list[Law], list[Law], Text, int], Law] = scaled_residual,
) -> Verdict:
    """A rule that keeps some prefix by thresholds; what ``choice`` leaves over draws from P_0 with nothing kept."""

    def verdict(P: list[Law], Q: list[Law], x: Text) -> dict[tuple[int, int], Fraction]:
        law: dict[tuple[int, int], Fraction] = defaultdict(lambda: ZERO)
        mass = choice(thresholds(P, Q, x))
        for t, m in enumerate(mass):
            for y, weight in enumerate(P[t] if t == len(x) else residual(P, Q, x, t)):
                law[t, y] += m * weight
        for y, weight in enumerate(P[0]):
            law[0, y] += (1 - sum(mass)) * weight
        return {key: value for key, value in law.items() if value}

    return verdict


def tokenwise_verdict(P: list[Law], Q: list[Law], x: Text) -> dict[tuple[int, int], Fraction]:
    law: dict[tuple[int, int], Fraction] = defaultdict(lambda: ZERO)
    alive = ONE
    for t, r in enumerate(ratios(P, Q, x)):
        for y, weight in enumerate(normalised(positive(ONE, P[t], Q[t]), P[t])):
            law[t, y] += alive * (1 - min(ONE, r)) * weight
        alive *= min(ONE, r)
    for y, weight in enumerate(P[-1]):
        law[len(x), y] += alive * weight
    return {key: value for key, value in law.items() if value}


block_verdict = block_family()
hsd_verdict = block_family(hsd_h)
uncapped_verdict = block_family(uncapped_h)


def chain_round(verdict: Verdict) -> Callable[[World, Text], TextLaw]:
    """A round of one proposed chain."""

    def round_(world: World, committed: Text) -> TextLaw:
        law: TextLaw = defaultdict(lambda: ZERO)
        for x, probability in world.chains(committed):
            P, Q = world.rows(committed, x)
            for (kept, y), share in verdict(P, Q, x).items():
                law[(*x[:kept], y)] += probability * share
        return law

    return round_


def naive_round(world: World, committed: Text) -> TextLaw:
    """Naive HSD: after a stop the tokens up to the end of the draft's chain are resampled on the new prefix."""
    law: TextLaw = defaultdict(lambda: ZERO)

    def resample(drafted: Text, R: Fraction | None, mass: Fraction) -> None:
        """``R`` None: the ratio is infinite."""
        if world.ends(committed, drafted):
            law[drafted] += mass
            return
        p, q = world.target(committed + drafted), world.draft(committed + drafted)
        weights = p if R is None else normalised(positive(R, p, q), p)
        for y, weight in enumerate(weights):
            if weight:
                following = R * p[y] / q[y] if R is not None and q[y] else None
                resample((*drafted, y), following, mass * weight)

    for x, probability in world.chains(committed):
        P, Q = world.rows(committed, x)
        R = uncapped(ratios(P, Q, x))
        for t, m in enumerate(largest(naive_h(P, Q, x))):
            if t < len(x) and m:
                resample(x[:t], R[t], probability * m)
            elif t == len(x):
                for y, weight in enumerate(P[t]):
                    law[(*x, y)] += probability * m * weight
    return law


def expected_kept(h_or_verdict: dict[tuple[int, int], Fraction] | list[Fraction]) -> Fraction:
    """E[tau] of a verdict, or of thresholds by the largest-t choice."""
    if isinstance(h_or_verdict, list):
        return sum((t * m for t, m in enumerate(largest(h_or_verdict))), ZERO)
    return sum((t * m for (t, _), m in h_or_verdict.items()), ZERO)
