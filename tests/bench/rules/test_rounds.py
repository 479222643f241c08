"""Every rule of the table on tiny pairs: greedy text, the seed's own text, and how calls are counted."""

from __future__ import annotations

import pytest
from support.bench_pair import continued, plain, terms, tiny_pair

from ssd_cluster.bench.rules.decoding import Round, RoundEnd, continue_prompt
from ssd_cluster.bench.rules.pair import LoadedPair
from ssd_cluster.bench.rules.rounds import RULES
from ssd_cluster.errors import ConfigError

PROMPT = [5, 60, 17, 33]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> LoadedPair:
    return tiny_pair(tmp_path_factory.mktemp("pair"), noise=0.05)


@pytest.mark.parametrize("rule", RULES)
def test_greedy_text_is_the_targets_own(pair: LoadedPair, rule: str) -> None:
    wanted = plain(pair, PROMPT, temperature=0.0)
    result = continued(pair, PROMPT, rule, temperature=0.0)
    assert result.tokens[: len(wanted)] == wanted
    assert max(j for j, n in enumerate(result.kept_histogram) if n) > 0, "nothing was ever kept"


def test_a_tree_of_top_tokens_keeps_more_of_a_greedy_text_than_a_chain(pair: LoadedPair) -> None:
    chain, tree = (continued(pair, PROMPT, rule, temperature=0.0, max_tokens=40) for rule in ("equality", "follow"))
    assert tree.calls < chain.calls


@pytest.mark.parametrize("rule", ["equality", "follow"])
@pytest.mark.parametrize("more", [{}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 5}])
def test_shared_noise_gives_the_text_of_the_seed(pair: LoadedPair, rule: str, more: dict[str, float]) -> None:
    for seed in (1, 2):
        wanted = plain(pair, PROMPT, seed, **more)
        assert continued(pair, PROMPT, rule, seed, **more).tokens[: len(wanted)] == wanted


def test_counts_of_rules_with_one_call_a_round(pair: LoadedPair) -> None:
    for rule in ("equality", "token", "block", "multi_hsd", "traversal", "follow"):
        result = continued(pair, PROMPT, rule, max_tokens=30)
        assert result.calls == result.rounds == sum(result.kept_histogram)
        assert len(result.tokens) == result.kept + result.rounds
        assert result.kept == sum(j * n for j, n in enumerate(result.kept_histogram))
        assert 30 <= len(result.tokens) <= 33, "the last round counts whole"


def test_naive_hsd_pays_for_its_resampling(pair: LoadedPair) -> None:
    ends: list[RoundEnd] = []
    result = continue_prompt(
        pair, PROMPT, 0, terms(max_tokens=40), RULES["naive_hsd"].round, lambda state, end, on: ends.append(end)
    )
    assert result.calls == sum(end.calls for end in ends) > result.rounds
    for end in ends:
        drawn = len(end.tokens) - end.kept
        assert end.calls == drawn, "every drawn token behind the first took a call"
        assert len(end.tokens) == (end.proposed + 1 if end.kept == end.proposed else end.proposed)


def test_the_text_ends_with_an_end_token(pair: LoadedPair) -> None:
    stop = plain(pair, PROMPT, temperature=0.0)[6]
    ending = LoadedPair(pair.target, pair.draft, _Ends(stop), pair.names, pair.columns, pair.vocabulary)  # type: ignore[arg-type]
    going_on: list[bool] = []

    def watch(state: Round, end: RoundEnd, on: bool) -> None:
        going_on.append(on)

    for rule in RULES:
        chosen = terms(temperature=0.0, ignore_eos=False, max_tokens=30)
        result = continue_prompt(ending, PROMPT, 0, chosen, RULES[rule].round, watch)
        assert result.tokens.index(stop) == len(result.tokens) - 1
        assert going_on.pop() is False


class _Ends:
    def __init__(self, stop: int) -> None:
        self.eos_ids = (stop,)


def test_pages_are_given_back(pair: LoadedPair) -> None:
    free = pair.target.pool.n_free, pair.draft.pool.n_free
    continued(pair, PROMPT, "traversal")
    with pytest.raises(ConfigError, match="do not fit"):
        continued(pair, PROMPT, "token", max_tokens=600)
    assert (pair.target.pool.n_free, pair.draft.pool.n_free) == free
