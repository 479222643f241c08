"""What the benchmark drafts: which noise each draft draws with, which laws it keeps, which guesses it would make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from support.bench_pair import tiny_pair
from support.model import run_whole
from torch import Tensor

from ssd_cluster.bench.rules.drafting import MOST_DRAFTS, Columns, Drafter
from ssd_cluster.bench.rules.pair import LoadedPair
from ssd_cluster.bench.rules.sequence import ModelSequence, Path
from ssd_cluster.draft.laws import LawTerms
from ssd_cluster.sampling.coupled import coupled_scores, top_guesses
from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.processors import RowParams, process
from ssd_cluster.sampling.ratio_noise import DraftDraws
from ssd_cluster.types import ProposalKind

PROMPT = [5, 60, 17, 33]
PARAMS = RowParams(temperature=0.8)
STOP = 2
Make = Callable[..., Drafter]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> LoadedPair:
    return tiny_pair(tmp_path_factory.mktemp("pair"), noise=0.05)


@pytest.fixture
def make(pair: LoadedPair) -> Iterator[Make]:
    made: list[ModelSequence] = []

    def build(names: Tensor | None = None, **more: object) -> Drafter:
        made.append(ModelSequence(pair.draft, PROMPT, 40))
        terms = replace(LawTerms(ProposalKind.DENSE, 8, 1.0, 4, DraftDraws(7, 320)), **more)  # type: ignore[arg-type]
        count = 320 if names is None else len(names)
        return Drafter(made[-1], Columns(count, names, 320), PARAMS, terms, NoiseSource(7, 320), {STOP})

    yield build
    for sequence in made:
        sequence.close()


def law(pair: LoadedPair, path: Path) -> Tensor:
    return process(run_whole(pair.draft, [*PROMPT, *path])[-1:], [PARAMS])[0]


def raced(q: Tensor, path: Path, word: int) -> Tensor:
    """Tokens in the order in which they win a race of one draft and round."""
    return (DraftDraws(7, 320).row(len(PROMPT) + len(path), word) / q).argsort()


def test_every_draft_draws_from_q_with_noise_of_its_own(pair: LoadedPair, make: Make) -> None:
    drafter = make()
    for draft, one in enumerate(drafter.chains(3, 3)):
        assert len(one.tokens) == 3 or one.tokens[-1] == STOP
        for t, token in enumerate(one.tokens):
            q = law(pair, one.tokens[:t])
            assert one.law is not None
            torch.testing.assert_close(one.law.row(t).dense(320)[0], q, atol=1e-4, rtol=1e-3)
            assert token == int(raced(q, one.tokens[:t], draft)[0])


def test_noise_changes_with_the_round(pair: LoadedPair, make: Make) -> None:
    drafter = make()
    drafter.commit([])
    (one,) = drafter.chains(1)
    assert one.tokens[0] == int(raced(law(pair, ()), (), MOST_DRAFTS)[0])


def test_branches_are_drawn_without_replacement(pair: LoadedPair, make: Make) -> None:
    tree, laws = make().branches(2, 3)
    q = law(pair, ())
    first = [node for node, parent in enumerate(tree.parents) if parent == 0]
    assert [tree.tokens[node] for node in first] == raced(q, (), 0)[:3].tolist()
    for i, node in enumerate(first):
        wanted = q.clone()
        wanted[[tree.tokens[other] for other in first[:i]]] = 0
        torch.testing.assert_close(laws.row(node).dense(320)[0], wanted / wanted.sum(), atol=1e-4, rtol=1e-3)
    for node, parent in enumerate(tree.parents):
        if parent:
            path = tree.path(parent)
            torch.testing.assert_close(laws.row(node).dense(320)[0], law(pair, path), atol=1e-4, rtol=1e-3)


def test_a_tree_of_top_tokens_is_the_best_of_what_was_expanded(pair: LoadedPair, make: Make) -> None:
    nodes = make().top_tree(3, 2)
    assert len(nodes) == len(set(nodes)) == 6
    assert all(path[:-1] == () or path[:-1] in nodes[:i] for i, path in enumerate(nodes))
    score: dict[Path, float] = {(): 0.0}
    frontier: list[Path] = [()]
    for _ in range(3):
        found: dict[Path, float] = {}
        for path in frontier:
            for token in law(pair, path).topk(2).indices.tolist() if path[-1:] != (STOP,) else ():
                found[*path, token] = score[path] + float(law(pair, path)[token].log())
        score |= found
        frontier = sorted(found, key=lambda path: -found[path])[:2]
    assert set(nodes) == set(sorted(score, key=lambda path: -score[path])[1:7])


@pytest.mark.parametrize("coupled", [True, False])
def test_rank_is_the_place_among_the_drafts_guesses(pair: LoadedPair, make: Make, coupled: bool) -> None:
    drafter, path = make(), (9, 4)
    probs = law(pair, path).unsqueeze(0)
    scores = coupled_scores(probs, [NoiseSource(7, 320).row(len(PROMPT) + 2)]) if coupled else probs.log()
    best = top_guesses(scores, 320, [()])[0].ids
    excluded = (best[1], best[4])
    (guesses,) = top_guesses(scores, 12, [excluded])
    assert [drafter.rank(path, token, excluded, coupled=coupled) for token in guesses.ids] == list(range(12))


def test_a_reduced_head_names_its_columns(pair: LoadedPair, make: Make) -> None:
    names = torch.arange(320)
    names[100:] += 5000  # ids that the columns from 100 on stand for
    drafter = make(names=names[:200], draws=DraftDraws(7, 6000))
    drafter._columns = Columns(200, names[:200], 6000)
    drafter._noise = NoiseSource(7, 6000)
    scores = run_whole(pair.draft, PROMPT)[-1, :200]
    best = names[scores.argsort(descending=True)[:5]].tolist()
    assert [drafter.rank((), token, (), coupled=False) for token in best] == [0, 1, 2, 3, 4]
    assert drafter.rank((), 150, (), coupled=False) is None, "no column stands for it"
    assert drafter.law(()).dense(6000)[0].nonzero().flatten().tolist() == names[:200].tolist()
    assert drafter.coupled_chain(1).tokens[0] in names[:200].tolist()
