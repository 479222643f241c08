"""The package's own verification code as a law: every uniform and every draw in it becomes a branch with a probability.

Uniforms are objects whose comparison ``u < h`` splits what is known about them, noise is an object whose quotient
``E / weights`` picks a winner; the code runs once for every combination. No decision is sampled, none is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from ssd_cluster.types import Proposal, ProposalKind
from ssd_cluster.verify import DenseLaw, DraftLaw, SparseLaw, VerifyBatch, naive_hsd, rules_for, traverse, verify
from ssd_cluster.verify.chain import Chain
from ssd_cluster.verify.multidraft import Stop, multidraft
from ssd_cluster.verify.paths import TokenTree, follow
from ssd_cluster.verify.rules import Rule
from support.exact_branches import Drafts, Source, tree_of
from support.exact_world import Law, Round, Text, World

T = TypeVar("T", bound=Hashable)


@dataclass
class Branches:
    """One run's choices: those of ``taken`` first, then always the first possible one."""

    taken: list[int] = field(default_factory=list)
    open: list[list[int]] = field(default_factory=list)
    mass: float = 1.0
    count: int = 0

    def choose(self, probabilities: Sequence[float]) -> int:
        possible = [i for i, p in enumerate(probabilities) if p > 0]
        if self.count == len(self.taken):
            self.open.extend([*self.taken, other] for other in possible[1:])
            self.taken.append(possible[0])
        chosen = self.taken[self.count]
        self.count += 1
        self.mass *= probabilities[chosen]
        return chosen


def law_of(run: Callable[[Branches], T]) -> dict[T, float]:
    """Law of what ``run`` returns."""
    law: dict[T, float] = defaultdict(float)
    pending: list[list[int]] = [[]]
    while pending:
        branches = Branches(pending.pop())
        law[run(branches)] += branches.mass
        pending.extend(branches.open)
    return law


class Uniform:
    """A uniform of which only what comparisons have revealed is decided."""

    def __init__(self, branches: Branches) -> None:
        self.branches, self.low, self.high = branches, 0.0, 1.0

    def __lt__(self, threshold: float) -> bool:
        if threshold <= self.low or threshold >= self.high:
            return threshold >= self.high
        share = (threshold - self.low) / (self.high - self.low)
        below = self.branches.choose([share, 1 - share]) == 0
        self.low, self.high = (self.low, threshold) if below else (threshold, self.high)
        return below


class Uniforms:
    """Stands where a tensor of uniforms stands."""

    def __init__(self, values: list[Uniform]) -> None:
        self.values = values

    @classmethod
    def fresh(cls, branches: Branches, n: int) -> Uniforms:
        return cls([Uniform(branches) for _ in range(n)])

    def tolist(self) -> list[Uniform]:
        return self.values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> Uniforms:
        return Uniforms(self.values[part])


class Noise:
    """Stands where exponential noise stands: ``E / weights`` is smallest at an id drawn from the weights."""

    def __init__(self, branches: Branches) -> None:
        self.branches = branches

    def __truediv__(self, weights: Tensor) -> Tensor:
        quotients = torch.full_like(weights, torch.inf)
        total = float(weights.double().sum())
        if total > 0:
            quotients[self.branches.choose((weights.double() / total).tolist())] = 1.0
        return quotients


class Draws:
    """Stands where ``RoundDraws`` stands."""

    base = 0

    def __init__(self, branches: Branches) -> None:
        self.branches = branches

    def accept(self, n: int) -> Any:
        return Uniforms.fresh(self.branches, n)

    def residual(self, position: int) -> Any:
        return Noise(self.branches)


# --- rows as tensors


def rows_of(laws: Sequence[Law], vocabulary: int) -> Tensor:
    return torch.tensor([[float(p) for p in law] for law in laws], dtype=torch.float32).reshape(-1, vocabulary)


def dense_law(laws: Sequence[Law], vocabulary: int) -> DraftLaw:
    return DenseLaw(rows_of(laws, vocabulary))


def sparse_law(laws: Sequence[Law], vocabulary: int) -> DraftLaw:
    """Non-zero entries, most likely first, and padding with id 0."""
    rows = rows_of(laws, vocabulary)
    probabilities, ids = rows.sort(dim=-1, descending=True)
    return SparseLaw(torch.where(probabilities > 0, ids, 0), probabilities)


MakeLaw = Callable[[Sequence[Law], int], DraftLaw]


def mixed(world: World, committed: Text, run: Callable[[Any, Branches], Text], source: Any) -> dict[Text, float]:
    """Law over what was proposed and what the code then does."""
    law: dict[Text, float] = defaultdict(float)
    for proposed, probability in source:
        for emitted, share in law_of(lambda branches, proposed=proposed: run(proposed, branches)).items():
            law[emitted] += float(probability) * share
    return law


# --- rounds that run the package


def chain_code(rule: str | Rule, make: MakeLaw = dense_law) -> Round:
    """``verify`` on a batch of one proposal; a name is looked up as the configuration does."""
    kind = ProposalKind.DENSE if make is dense_law else ProposalKind.SPARSE
    rules = rules_for(kind, rule) if isinstance(rule, str) else {kind: rule}

    def round_(world: World, committed: Text) -> Any:
        def run(x: Text, branches: Branches) -> Text:
            P, Q = world.rows(committed, x)
            draws: Any = Draws(branches)
            batch = VerifyBatch(
                [Proposal(len(committed), x, kind)],
                rows_of(P, world.vocabulary),
                [None] * len(P),
                [make(Q, world.vocabulary)],
                [draws],
            )
            (outcome,) = verify(batch, rules)
            assert not outcome.law_refused
            return (*x[: outcome.kept], outcome.next_token)

        return mixed(world, committed, run, world.chains(committed))

    return round_


def naive_code(make: MakeLaw = dense_law) -> Round:
    """Naive HSD with its callbacks; every extra target call is one more row."""

    def round_(world: World, committed: Text) -> Any:
        def run(x: Text, branches: Branches) -> Text:
            P, Q = world.rows(committed, x)
            uniforms: Any = Uniforms.fresh(branches, len(x))
            chain = Chain(rows_of(P, world.vocabulary), make(Q, world.vocabulary), torch.tensor(x).long(), uniforms)
            noise: Any = Noise(branches)

            def draft_law(prefix: Text) -> DraftLaw | None:
                if world.ends(committed, prefix):
                    return None
                return make([world.draft(committed + prefix)], world.vocabulary)

            outcome = naive_hsd(
                chain,
                draft_law,
                lambda prefix: rows_of([world.target(committed + prefix)], world.vocabulary)[0],
                lambda _t: noise,
            )
            if outcome.kept < len(x):
                assert outcome.target_calls == len(outcome.tokens) - 1
            return (*x[: outcome.kept], *outcome.tokens)

        return mixed(world, committed, run, world.chains(committed))

    return round_


def multidraft_code(source: Source, stop: Stop, make: MakeLaw = dense_law) -> Round:
    """Recursive rejection over several drafts."""

    def round_(world: World, committed: Text) -> Any:
        def run(drafts: Drafts, branches: Branches) -> Text:
            chains = []
            for x, laws in drafts:
                rows = rows_of([world.target(committed + x[:t]) for t in range(len(x) + 1)], world.vocabulary)
                uniforms: Any = Uniforms.fresh(branches, len(x))
                chains.append(Chain(rows, make(laws, world.vocabulary), torch.tensor(x).long(), uniforms))
            noise: Any = Noise(branches)
            outcome = multidraft(chains, noise, stop)
            return (*outcome.tokens, outcome.next_token)

        return mixed(world, committed, run, source(world, committed))

    return round_


def tree_rows(world: World, committed: Text, drafts: Drafts) -> tuple[TokenTree, list[Law], list[Law]]:
    """The tree of some drafts, P at its nodes, and what each node below the root was drawn from."""
    children = tree_of(drafts)
    nodes: list[Text] = [()]
    parents, laws = [], []
    for i, node in enumerate(nodes):  # grows while it is walked
        for token, law in children.get(node, []):
            nodes.append((*node, token))
            parents.append(i)
            laws.append(law)
    tree = TokenTree(tuple(node[-1] for node in nodes[1:]), tuple(parents))
    return tree, [world.target(committed + node) for node in nodes], laws


def traversal_code(source: Source, make: MakeLaw = dense_law) -> Round:
    """Traversal of the tree that several drafts form."""

    def round_(world: World, committed: Text) -> Any:
        def run(drafts: Drafts, branches: Branches) -> Text:
            tree, P, Q = tree_rows(world, committed, drafts)
            uniforms: Any = Uniforms.fresh(branches, len(P))
            noise: Any = Noise(branches)
            law = make(Q, world.vocabulary)
            outcome = traverse(tree, rows_of(P, world.vocabulary), law, uniforms, noise)
            return (*outcome.tokens, outcome.next_token)

        return mixed(world, committed, run, source(world, committed))

    return round_


class NodeDraws:
    """One independent draw per node, made when it is looked at; the others would only multiply the branches."""

    def __init__(self, branches: Branches, rows: Tensor) -> None:
        self.noise, self.rows = Noise(branches), rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, node: int) -> int:
        return int((self.noise / self.rows[node]).argmin())


def follow_code(source: Source) -> Round:
    """Sample-and-follow."""

    def round_(world: World, committed: Text) -> Any:
        def run(drafts: Drafts, branches: Branches) -> Text:
            tree, P, _ = tree_rows(world, committed, drafts)
            sampled: Any = NodeDraws(branches, rows_of(P, world.vocabulary))
            outcome = follow(tree, sampled)
            return (*outcome.tokens, outcome.next_token)

        return mixed(world, committed, run, source(world, committed))

    return round_
