"""The rules as rounds: what each drafts, which rows of the target it asks for, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from ssd_cluster.bench.rules.decoding import Round, RoundEnd, RuleRound
from ssd_cluster.bench.rules.drafting import Drafted
from ssd_cluster.bench.rules.sequence import Path
from ssd_cluster.sampling.coupled import coupled_sample
from ssd_cluster.types import Proposal, ProposalKind
from ssd_cluster.verify import (
    DraftLaw,
    PathOutcome,
    Rule,
    TokenTree,
    VerifyBatch,
    block,
    equality,
    follow,
    hsd_uncapped_lossy,
    multidraft_hsd,
    multidraft_tokenwise,
    naive_hsd,
    token,
    traverse,
)
from ssd_cluster.verify.chain import Chain
from ssd_cluster.verify.laws import SparseLaw


def coupled_round(state: Round) -> RoundEnd:
    """Equality with the draft drawing by the target's noise."""
    path = state.draft.coupled_chain(state.terms.k).tokens
    paths = prefixes(path)
    probs = state.probs(paths)
    noise = [state.shared(prefix) for prefix in paths]
    with state.measured():
        (outcome,) = equality(VerifyBatch([Proposal(state.base, path, ProposalKind.COUPLED)], probs, noise))
    return RoundEnd((*path[: outcome.kept], outcome.next_token), outcome.kept, len(path))


def chain_round(rule: Rule) -> RuleRound:
    """A round of one chain under a rule that compares p with q."""

    def run(state: Round) -> RoundEnd:
        (drafted,) = state.draft.chains(state.terms.k)
        path = drafted.tokens
        probs = state.probs(prefixes(path))
        state.draws.prefetch(len(path))
        proposal = Proposal(state.base, path, state.terms.kind)
        with state.measured():
            batch = VerifyBatch([proposal], probs, [None] * len(probs), [drafted.law], [state.draws])
            (outcome,) = rule(batch)
        return RoundEnd((*path[: outcome.kept], outcome.next_token), outcome.kept, len(path))

    return run


def naive_round(state: Round) -> RoundEnd:
    """Naive HSD; every resampled token behind the first is one more serial target call."""
    (drafted,) = state.draft.chains(state.terms.k)

    def law(path: Path) -> DraftLaw | None:
        over = len(path) >= state.terms.k or state.draft.ended(path)
        return None if over else state.draft.law(path)

    outcome = naive_hsd(
        as_chain(state, drafted, 0),
        law,
        lambda path: state.probs([path])[0],
        lambda t: state.draws.residual(state.base + t),
    )
    tokens = (*drafted.tokens[: outcome.kept], *outcome.tokens)
    return RoundEnd(tokens, outcome.kept, len(drafted.tokens), 1 + outcome.target_calls)


def multidraft_round(rule: Callable[[list[Chain], Tensor | None], PathOutcome]) -> RuleRound:
    """Several independent chains, verified one after the other; all their nodes are run in one forward."""

    def run(state: Round) -> RoundEnd:
        drafts = state.draft.chains(state.terms.k, state.terms.drafts)
        state.target.logits([one.tokens for one in drafts])
        chains = [as_chain(state, one, i) for i, one in enumerate(drafts)]
        noise = state.draws.residual(state.base)
        with state.measured():
            outcome = rule(chains, noise)
        return of_path(outcome, max(len(one.tokens) for one in drafts))

    return run


def traversal_round(state: Round) -> RoundEnd:
    """Traversal of a tree: different first tokens, a chain behind each, as many nodes as the several drafts have."""
    tree, law = state.draft.branches(state.terms.k, state.terms.drafts)
    paths = [tree.path(node) for node in range(len(tree.tokens) + 1)]
    probs = state.probs(paths)
    uniforms, noise = state.draws.accept(len(paths)), state.draws.residual(state.base)
    with state.measured():
        outcome = traverse(tree, probs, law, uniforms, noise)
    return of_path(outcome, max(map(len, paths)))


def follow_round(state: Round) -> RoundEnd:
    """Sample-and-follow on a tree of the likeliest tokens, as many nodes as the several drafts have."""
    nodes = state.draft.top_tree(state.terms.k, state.terms.drafts)
    place: dict[Path, int] = {path: i + 1 for i, path in enumerate(nodes)} | {(): 0}
    tree = TokenTree(tuple(path[-1] for path in nodes), tuple(place[path[:-1]] for path in nodes))
    paths: list[Path] = [(), *nodes]
    probs = state.probs(paths)
    noise = [state.shared(path) for path in paths]
    with state.measured():
        outcome = follow(tree, coupled_sample(probs, noise).tolist())
    return of_path(outcome, max(map(len, paths)))


def prefixes(path: Path) -> list[Path]:
    """(), ..., the path itself."""
    return [path[:n] for n in range(len(path) + 1)]


def as_chain(state: Round, drafted: Drafted, draft: int) -> Chain:
    """A drafted chain with its target rows; ``draft`` chooses its uniforms."""
    probs = state.probs(prefixes(drafted.tokens))
    tokens = torch.tensor(drafted.tokens, device=probs.device)
    law = SparseLaw.point_mass(tokens) if drafted.law is None else drafted.law
    return Chain(probs, law, tokens, state.draws.accept(len(drafted.tokens), draft))


def of_path(outcome: PathOutcome, proposed: int) -> RoundEnd:
    return RoundEnd((*outcome.tokens, outcome.next_token), len(outcome.tokens), proposed)


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule of the table. ``several``: it takes several drafts or a tree."""

    round: RuleRound
    label: str
    several: bool = False
    lossless: bool = True


RULES: Mapping[str, Entry] = MappingProxyType(
    {
        "equality": Entry(coupled_round, "equality, coupled draft"),
        "token": Entry(chain_round(token), "token-wise"),
        "block": Entry(chain_round(block), "block = HSD"),
        "hsd_uncapped_lossy": Entry(chain_round(hsd_uncapped_lossy), "HSD as released, NOT LOSSLESS", lossless=False),
        "naive_hsd": Entry(naive_round, "naive HSD, extra calls counted"),
        "multi_token": Entry(multidraft_round(multidraft_tokenwise), "drafts, token-wise", several=True),
        "multi_hsd": Entry(multidraft_round(multidraft_hsd), "drafts, HSD", several=True),
        "traversal": Entry(traversal_round, "tree of samples, traversal", several=True),
        "follow": Entry(follow_round, "tree of top tokens, sample and follow", several=True),
    }
)
"""By the names of ``--rules``, in the order of the table."""
