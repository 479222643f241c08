"""Whether the replicas of a file fit the nodes of a cluster, and where they could go; pure, and read without Ray.

The search is exact up to a bounded number of steps, so that what is called impossible is impossible: Ray may still
choose another place, or fail to find one that exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ssd_cluster.serve.args import Application, ServeFile
from ssd_cluster.serve.placement import demand_of, matches

_STEPS = 20_000
_EPSILON = 1e-6
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Node:
    """A node: its address, its resources by Ray's names, its labels."""

    name: str
    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """The replicas of one deployment.

    Attributes:
        where: application, for messages.
        replicas: how many there must be at the start.
        bundle: what one rank takes; ``ranks`` of them make a replica.
        strategy: how a replica's ranks are placed, as in Ray's placement groups.
        selector: labels of the nodes.
        per_node: most replicas on one node; None: any number.
    """

    where: str
    replicas: int
    bundle: Mapping[str, float]
    ranks: int = 1
    strategy: str = "PACK"
    selector: Mapping[str, str] = field(default_factory=dict)
    per_node: int | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """``places``: (application, node) of every rank; ``mistakes``: what cannot be placed, one sentence each.

    ``unsure``: the search was given up, so that nothing is known.
    """

    places: tuple[tuple[str, str], ...] = ()
    mistakes: tuple[str, ...] = ()
    unsure: bool = False


def groups_of(file: ServeFile, *, everything: bool = False) -> list[Group]:
    """What the applications of a file ask for.

    Pools that scale count with the replicas they start with, or with ``everything`` with all they may grow to.
    """
    return [_group(app, everything) for app in file.applications]


def _group(app: Application, everything: bool) -> Group:
    args = app.args.target or app.args.draft
    assert args is not None  # one of both, by validation
    place, model = args.placement, args.model
    return Group(
        where=app.name,
        replicas=app.most_replicas if everything else app.initial_replicas,
        bundle=demand_of(model, place).bundle,
        ranks=model.tensor_parallel,
        strategy=app.args.target.rank_placement if app.args.target is not None else "PACK",
        selector=place.label_selector,
        per_node=place.max_replicas_per_node,
    )


def fit(groups: Sequence[Group], nodes: Sequence[Node]) -> Fit:
    """Place everything, or say what is in the way."""
    mistakes = tuple(line for group in groups if (line := _alone(group, nodes)) is not None)
    if mistakes:
        return Fit(mistakes=mistakes)
    search = _Search(nodes)
    if search.place(groups):
        return Fit(places=tuple(search.places))
    if search.exhausted:
        return Fit(unsure=True)
    return Fit(mistakes=(_together(groups, nodes),))


def _alone(group: Group, nodes: Sequence[Node]) -> str | None:
    """Why the replicas of one group would not even fit an empty cluster."""
    if not group.replicas:
        return None
    meant = [node for node in nodes if matches(group.selector, node.labels)]
    if not meant:
        wanted = ", ".join(f"{key}={value}" for key, value in group.selector.items())
        return f"{group.where}: no node has the labels {wanted}; {_what_there_is(nodes)}"
    able = [node for node in meant if _holds(node.resources, group.bundle)]
    what = "each rank" if group.ranks > 1 else "a replica"
    if not able:
        return f"{group.where}: {what} takes {_said(group.bundle)}, more than any node has; {_what_there_is(meant)}"
    for n in range(1, group.replicas + 1):
        search = _Search(meant)
        if search.place([_times(group, n)]) or search.exhausted:
            continue
        each = f"{group.ranks} ranks ({group.strategy}) with " if group.ranks > 1 else ""
        spread = f", at most {group.per_node} of them on a node" if group.per_node is not None else ""
        return (
            f"{group.where}: {n - 1} of {group.replicas} replicas fit, each takes {each}{_said(group.bundle)}{spread}; "
            f"{_what_there_is(meant)}"
        )
    return None


def _times(group: Group, replicas: int) -> Group:
    return Group(group.where, replicas, group.bundle, group.ranks, group.strategy, group.selector, group.per_node)


def _together(groups: Sequence[Group], nodes: Sequence[Node]) -> str:
    asked = "; ".join(
        f"{group.where} {group.replicas * group.ranks} x {_said(group.bundle)}" for group in groups if group.replicas
    )
    return f"each application fits the cluster, but not all of them at once: {asked}; {_what_there_is(nodes)}"


class _Search:
    """Puts one rank after the other somewhere, and goes back where that leads nowhere."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._free = [dict(node.resources) for node in nodes]
        self._used: list[Counter[str]] = [Counter() for _ in nodes]
        self._steps = 0
        self.places: list[tuple[str, str]] = []

    @property
    def exhausted(self) -> bool:
        """Whether the search was given up."""
        return self._steps >= _STEPS

    def place(self, groups: Sequence[Group]) -> bool:
        """Whether a place for everything was found; it is in ``places`` then."""
        scarce = sorted(groups, key=lambda g: (sum(matches(g.selector, n.labels) for n in self._nodes), -_size(g)))
        replicas = [group for group in scarce for _ in range(group.replicas)]
        return self._next(replicas, 0, [])

    def _next(self, replicas: Sequence[Group], at: int, ranks: list[int]) -> bool:
        """Place rank ``len(ranks)`` of replica ``at``, whose earlier ranks are on the nodes ``ranks``."""
        if at == len(replicas):
            return True
        group = replicas[at]
        if len(ranks) == group.ranks:
            return self._next(replicas, at + 1, [])
        tried = set()
        for i in self._candidates(group, ranks):
            self._steps += 1
            if self.exhausted:
                return False
            alike = (tuple(sorted(self._free[i].items())), tuple(sorted(self._nodes[i].labels.items())), i in ranks)
            state = (alike, self._used[i][group.where])
            if state in tried:
                continue  # a node like one that led nowhere
            tried.add(state)
            self._take(i, group, first=not ranks, sign=1)
            if self._next(replicas, at, [*ranks, i]):
                return True
            self._take(i, group, first=not ranks, sign=-1)
        return False

    def _candidates(self, group: Group, ranks: list[int]) -> list[int]:
        """Nodes for the next rank, those that the strategy prefers first."""
        able = [
            i
            for i, node in enumerate(self._nodes)
            if matches(group.selector, node.labels)
            and _holds(self._free[i], group.bundle)
            and (group.per_node is None or self._used[i][group.where] < group.per_node)
        ]
        if ranks and group.strategy == "STRICT_PACK":
            return [i for i in able if i == ranks[0]]
        if group.strategy == "STRICT_SPREAD":
            return [i for i in able if i not in ranks]
        spread = group.strategy == "SPREAD"
        return sorted(able, key=lambda i: ranks.count(i) if spread else -ranks.count(i))

    def _take(self, i: int, group: Group, *, first: bool, sign: int) -> None:
        for name, amount in group.bundle.items():
            self._free[i][name] = self._free[i].get(name, 0.0) - sign * amount
        if first:
            self._used[i][group.where] += sign
        if sign > 0:
            self.places.append((group.where, self._nodes[i].name))
        else:
            self.places.pop()


def _size(group: Group) -> float:
    return sum(group.bundle.values()) * group.ranks


def _holds(free: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(free.get(name, 0.0) + _EPSILON >= amount for name, amount in bundle.items())


def _what_there_is(nodes: Sequence[Node]) -> str:
    """The nodes in one clause, equal ones once."""
    kinds = Counter(_described(node) for node in nodes)
    return "there is " + (", ".join(f"{n} x [{kind}]" for kind, n in kinds.items()) or "no node")


def _described(node: Node) -> str:
    shown = {k: v for k, v in node.resources.items() if not k.startswith(("node:", "object_store", "memory"))}
    labels = [f"{key}={value}" for key, value in node.labels.items() if key != "ray.io/node-id"]
    return " ".join([_said(shown) or "nothing", *labels])


def _said(amounts: Mapping[str, float]) -> str:
    words = [
        f"{amount / _GIB:.1f} GiB memory" if name == "memory" else f"{amount:g} {name}"
        for name, amount in amounts.items()
        if amount
    ]
    return ", ".join(words) or "nothing"
