"""Faults of a target and its draft process: a link that is cut, a draft that comes back, a draft that does not fit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.faults.pair_cases import draft_has_another_tokenizer, draft_restarts, link_is_cut
from support.faults.pair_scene import PairScene
from support.faults.trial import SPECULATION
from support.tiny import make_checkpoint, perturb

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PairScene]:
    folder = tmp_path_factory.mktemp("pair")
    target = make_checkpoint(folder / "target", max_context=2048)
    draft = perturb(target, folder / "draft")
    patient = {"speculation": {**SPECULATION, "wait_ms": 500.0}, "breaker": {"retry_s": 0.05}}  # on a busy machine
    with PairScene(target, draft, max_tokens=300, **patient) as made:
        yield made


def test_a_link_is_cut_and_heals(scene: PairScene) -> None:
    made = link_is_cut(scene, pause_s=0.0)
    assert made.same_text
    assert made.detect_s is not None


def test_a_draft_comes_back_on_its_port(scene: PairScene) -> None:
    assert draft_restarts(scene).same_text


def test_a_draft_with_another_tokenizer_takes_its_place_for_a_while(scene: PairScene) -> None:
    assert draft_has_another_tokenizer(scene).same_text
