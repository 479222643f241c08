"""Rules for several drafts and for trees in rational arithmetic, with the ways in which such proposals are drawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction

from support.exact_rules import capped, largest, normalised, positive, ratios
from support.exact_world import ONE, ZERO, Law, Text, TextLaw, World

Drafts = tuple[tuple[Text, tuple[Law, ...]], ...]
"""Proposed chains, each with the laws that its tokens have given the tokens before them in the same chain."""
Source = Callable[[World, Text], Iterator[tuple[Drafts, Fraction]]]


def without(law: Law, tokens: set[int]) -> Law:
    left = tuple(ZERO if i in tokens else value for i, value in enumerate(law))
    return normalised(left, left)


def independent(count: int) -> Source:
    """Several independent chains of the draft."""

    def source(world: World, committed: Text) -> Iterator[tuple[Drafts, Fraction]]:
        def more(chosen: Drafts, probability: Fraction) -> Iterator[tuple[Drafts, Fraction]]:
            if len(chosen) == count:
                yield chosen, probability
                return
            for x, share in world.chains(committed):
                laws = tuple(world.rows(committed, x)[1])
                yield from more((*chosen, (x, laws)), probability * share)

        yield from more((), ONE)

    return source


def without_replacement(count: int) -> Source:
    """Chains whose first tokens are drawn without replacement; what follows is drawn freely."""

    def source(world: World, committed: Text) -> Iterator[tuple[Drafts, Fraction]]:
        def more(chosen: Drafts, probability: Fraction) -> Iterator[tuple[Drafts, Fraction]]:
            taken = {x[0] for x, _ in chosen if x}
            first = without(world.draft(committed), taken)
            if len(chosen) == count or world.ends(committed, ()) or not sum(first):
                yield chosen or (((), ()),), probability
                return
            for x, share in world.chains(committed):
                if first[x[0]]:
                    laws = tuple(world.rows(committed, x)[1])
                    yield from more((*chosen, (x, laws)), probability * share / laws[0][x[0]] * first[x[0]])

        yield from more((), ONE)

    return source


def point_masses(world: World, committed: Text) -> Iterator[tuple[Drafts, Fraction]]:
    """Every chain that the draft thinks possible, most likely first; nothing is random."""
    chains = sorted(world.chains(committed), key=lambda pair: (-pair[1], pair[0]))
    hot = {t: tuple(Fraction(int(i == t)) for i in range(world.vocabulary)) for t in range(world.vocabulary)}
    yield tuple((x, tuple(hot[token] for token in x)) for x, _ in chains), ONE


# --- several drafts by recursive rejection

Stop = tuple[int, Fraction, Law, Fraction]
"""(kept, probability, law of the next token if it stops there, prefix ratio there)"""
Stops = Callable[[list[Law], list[Law], Text, Fraction], list[Stop]]


def tokenwise_stops(P: list[Law], Q: list[Law], x: Text, start: Fraction = ONE) -> list[Stop]:
    stops, alive = [], ONE
    for t, r in enumerate(ratios(P, Q, x)):
        stops.append((t, alive * (1 - min(ONE, r)), normalised(positive(ONE, P[t], Q[t]), P[t]), ONE))
        alive *= min(ONE, r)
    return [*stops, (len(x), alive, P[len(x)], ONE)]


def block_stops(P: list[Law], Q: list[Law], x: Text, start: Fraction = ONE) -> list[Stop]:
    """``start`` is rho_0; anything but 1 is an error."""
    rho = capped(ratios(P, Q, x), start)
    residuals = [positive(scale, p, q) for scale, p, q in zip(rho, P, Q, strict=False)]
    inner = [sum(w) / (sum(w) + 1 - rho[t]) if sum(w) + 1 - rho[t] else ONE for t, w in enumerate(residuals) if t]
    rows = [*(normalised(w, p) for w, p in zip(residuals, P, strict=False)), P[len(x)]]
    mass = largest([ONE, *inner, rho[-1]] if x else [ONE])
    return [(t, m, rows[t], rho[t]) for t, m in enumerate(mass)]


def multidraft_round(
    source: Source, stops: Stops, *, skip_tested: bool = True, carry: bool = False
) -> Callable[[World, Text], TextLaw]:
    """Recursive rejection.

    ``skip_tested`` False: a token that was tested before is tested again, against the residual and with the whole q.
    That is lossless too for independent drafts: the residual holds nothing of a rejected token. ``carry``: the prefix
    ratio goes on from draft to draft, as in the released code: an error.
    """

    def round_(world: World, committed: Text) -> TextLaw:
        law: TextLaw = defaultdict(lambda: ZERO)

        def verify(drafts: Drafts, prefix: Text, row: Law, tested: set[int], mass: Fraction, start: Fraction) -> None:
            if not mass:
                return
            if not drafts:
                for y, weight in enumerate(row):
                    law[(*prefix, y)] += mass * weight
                return
            (x, laws), rest = drafts[0], drafts[1:]
            n = len(prefix)
            if x[:n] != prefix or len(x) == n or (skip_tested and x[n] in tested):
                verify(rest, prefix, row, tested, mass, start)
                return
            P = [row, *(world.target(committed + x[:t]) for t in range(n + 1, len(x) + 1))]
            Q = [without(laws[n], tested) if skip_tested else laws[n], *laws[n + 1 :]]
            for kept, share, following, rho in stops(P, Q, x[n:], start):
                whole = kept == len(x) - n
                seen = set() if whole else {x[n + kept]} | (tested if kept == 0 else set())
                verify(() if whole else rest, x[: n + kept], following, seen, mass * share, rho if carry else ONE)

        for drafts, probability in source(world, committed):
            verify(drafts, (), world.target(committed), set(), probability, ONE)
        return law

    return round_


# --- trees


def tree_of(drafts: Drafts) -> dict[Text, list[tuple[int, Law]]]:
    """Children of every node with what they were drawn from, given their earlier siblings."""
    children: dict[Text, list[tuple[int, Law]]] = defaultdict(list)
    for x, laws in drafts:
        for t, token in enumerate(x):
            earlier = {sibling for sibling, _ in children[x[:t]]}
            if token not in earlier:
                children[x[:t]].append((token, without(laws[t], earlier)))
    return children


def traversal_round(source: Source) -> Callable[[World, Text], TextLaw]:
    """Verification of the tree that the drafts form, leaves first."""

    def round_(world: World, committed: Text) -> TextLaw:
        law: TextLaw = defaultdict(lambda: ZERO)

        def visit(tree: dict[Text, list[tuple[int, Law]]], node: Text, rho: Fraction, mass: Fraction) -> Fraction:
            """Adds what is emitted at or below ``node`` to the law; returns the mass that fails."""
            row = world.target(committed + node)
            for token, Q in tree.get(node, []):
                mass = visit(tree, (*node, token), min(ONE, rho * row[token] / Q[token]), mass)
                residual = positive(rho, row, Q)
                S = sum(residual)
                rho = S / (S + 1 - rho) if S + 1 - rho else ONE
                row = normalised(residual, row)
            for y, weight in enumerate(row):
                law[(*node, y)] += mass * rho * weight
            return mass * (1 - rho)

        for drafts, probability in source(world, committed):
            assert visit(tree_of(drafts), (), ONE, probability) == 0
        return law

    return round_


def follow_round(world: World, committed: Text) -> TextLaw:
    """Sample-and-follow on the tree of all possible chains: draws at every node, then the path that they spell."""
    ((drafts, _),) = point_masses(world, committed)
    nodes = {x[:t] for x, _ in drafts for t in range(len(x) + 1)}
    law: TextLaw = defaultdict(lambda: ZERO)

    def walk(node: Text, mass: Fraction) -> None:
        for y, weight in enumerate(world.target(committed + node)):
            if weight and (*node, y) in nodes:
                walk((*node, y), mass * weight)
            elif weight:
                law[(*node, y)] += mass * weight

    walk((), ONE)
    return law
