"""Weighted max-min shares."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ssd_cluster.draft.shares import fair_shares

EVEN = {"a": 1.0, "b": 1.0, "c": 1.0}


def test_the_modest_get_all_and_the_others_divide_the_rest() -> None:
    assert fair_shares({"a": 16, "b": 256}, EVEN, 64) == {"a": 16, "b": 48}
    assert fair_shares({"a": 5, "b": 100, "c": 30}, EVEN, 65) == {"a": 5, "c": 30, "b": 30}
    assert fair_shares({"a": 100, "b": 100}, {"a": 3.0, "b": 1.0}, 40) == {"a": 30, "b": 10}
    assert fair_shares({"a": 1, "b": 2}, EVEN, 64) == {"a": 1, "b": 2}
    assert fair_shares({}, EVEN, 64) == {}


PARTIES = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 300), st.sampled_from([0.5, 1.0, 3.0])))


@given(parties=PARTIES, budget=st.integers(0, 500))
def test_everybody_gets_its_part_unless_it_wants_less(parties: dict[str, tuple[int, float]], budget: int) -> None:
    wanted = {party: rows for party, (rows, _) in parties.items()}
    weights = {party: weight for party, (_, weight) in parties.items()}
    shares = fair_shares(wanted, weights, budget)
    total = sum(weights.values())
    assert sum(shares.values()) <= budget
    for party, rows in wanted.items():
        assert shares[party] <= rows
        assert shares[party] >= min(rows, int(budget * weights[party] / total + 1e-9) - 1)
    if sum(wanted.values()) <= budget:
        assert shares == wanted
    else:
        assert sum(shares.values()) > budget - max(1, len(parties))
