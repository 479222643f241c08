"""Pairs that do not fit are refused with the first difference."""

from __future__ import annotations

import pytest
from support.links import hello, welcome

from ssd_cluster.errors import PairMismatch
from ssd_cluster.link.handshake import check_pair, first_difference
from ssd_cluster.types import ProposalKind


def test_a_pair_that_fits() -> None:
    assert first_difference(hello(), welcome()) is None
    check_pair(hello(), welcome())


@pytest.mark.parametrize(
    ("changes", "named", "values"),
    [
        ({"protocol": 2}, "protocol", ("1", "2")),
        ({"vocabulary": 1001}, "vocabulary", ("1000", "1001")),
        ({"tokenizer_hash": "xyz"}, "tokenizer hash", ("abc", "xyz")),
        ({"tokenizer_hash": "xyz", "vocabulary": 1001}, "vocabulary", ("1000", "1001")),
        ({"tokenizer_hash": "xyz", "vocabulary": 1001, "protocol": 2}, "protocol", ("1", "2")),
    ],
)
def test_the_message_names_the_first_difference(
    changes: dict[str, object], named: str, values: tuple[str, str]
) -> None:
    with pytest.raises(PairMismatch) as caught:
        check_pair(hello(), welcome(**changes))
    assert caught.value.message.startswith(named)
    for value in values:
        assert value in caught.value.message


RATIO = (ProposalKind.SPARSE, ProposalKind.DELTA)


def test_laws_are_taken_inside_one_trust_domain_only() -> None:
    check_pair(hello(kinds=RATIO, trust_domain="a"), welcome(trust_domain="a"))
    for ours, theirs in (("a", "b"), ("a", ""), ("", "a"), ("", "")):
        with pytest.raises(PairMismatch) as caught:
            check_pair(hello(kinds=RATIO, trust_domain=ours), welcome(trust_domain=theirs))
        assert caught.value.message.startswith("trust domain")
        for said in (repr(ours), repr(theirs), "sparse", "trust_domain"):
            assert said in caught.value.message


def test_without_laws_the_trust_domain_does_not_matter() -> None:
    check_pair(hello(trust_domain="a"), welcome(trust_domain="b"))
    check_pair(hello(), welcome(trust_domain="b"))
