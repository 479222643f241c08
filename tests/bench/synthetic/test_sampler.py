"""What a synthetic draft draws and guesses, row by row."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from ssd_cluster.bench.synthetic.sampler import SyntheticSampler, guessed
from ssd_cluster.bench.synthetic.script import Line, RecordedText, ScriptFile, Scripts
from ssd_cluster.draft.sampler import DrawRow, RowSampler, SessionSampling
from ssd_cluster.link.messages import Open
from ssd_cluster.types import ProposalKind

CPU = torch.device("cpu")
LOGITS = torch.tensor([0.0, 1.0, 5.0, 4.0, 3.0, 2.0])
"""Best first: 2, 3, 4, 5, 1, 0."""


def scripts(token: int, acceptance: float, hit: float = 1.0) -> Scripts:
    """A text of one token behind the prompt (1, 1)."""
    recorded = RecordedText(prompt=(1, 1), tokens=(token,), temperature=0.0, seed=0)
    return Scripts(ScriptFile(acceptance=acceptance, hit=hit, texts=(recorded,)))


def opened(sampler: RowSampler, tokens: tuple[int, ...] = (1, 1), **more: object) -> SessionSampling:
    fields = {"kind": ProposalKind.COUPLED, "temperature": 0.0, "seed": 0, "top_k": 0, "top_p": 1.0} | more
    return sampler.session(Open(1, 1, tokens, stop_ids=(), max_len=9, k=3, rows=4, **fields))  # type: ignore[arg-type]


def drawn(known: Scripts, position: int = 2, tokens: tuple[int, ...] = (1, 1), names: list[int] | None = None) -> int:
    output_ids = None if names is None else torch.tensor(names)
    sampler = SyntheticSampler(known, 50, 6, output_ids, CPU, noise_rows=4)
    row = DrawRow(opened(sampler, tokens), position, committed=tokens)
    return sampler.draw(LOGITS[None], [row]).ids[0]


def test_drafted_tokens_are_right_or_wrong_as_the_script_says() -> None:
    assert drawn(scripts(5, 1.0)) == 5, "recorded, though the draft would say 2"
    assert drawn(scripts(5, 0.0)) == 2, "its own, which is wrong anyway"
    assert drawn(scripts(2, 0.0)) == 3, "its own would be right: the next best"
    assert drawn(scripts(2, 1.0)) == 2


def test_ids_of_a_reduced_head_are_the_targets() -> None:
    names = [10, 11, 22, 33, 44, 48]
    assert drawn(scripts(44, 1.0), names=names) == 44
    assert drawn(scripts(7, 1.0), names=names) == 7, "an id that the draft could not name"
    assert drawn(scripts(22, 0.0), names=names) == 33
    assert drawn(scripts(44, 0.0), names=names) == 22


def test_what_was_not_recorded_is_drawn_as_ever() -> None:
    assert drawn(scripts(5, 1.0), position=3) == 2, "behind the recorded end"
    assert drawn(scripts(5, 1.0), tokens=(1, 9)) == 2, "another text"


def test_true_tokens_are_the_first_guess_or_none() -> None:
    row = partial(DrawRow, None, 2, 3)  # type: ignore[arg-type]
    assert guessed(Line(5, True, True), [2, 3, 4], row()) == [5, 2, 3]
    assert guessed(Line(3, True, True), [2, 3, 4], row()) == [3, 2, 4]
    assert guessed(Line(3, True, False), [2, 3, 4], row()) == [2, 4]
    assert guessed(Line(3, True, True), [2, 4, 5], row(frozenset({3}))) == [2, 4, 5], "excluded: nothing follows it"


def test_guesses_pass_through_the_sampler() -> None:
    for hit, wanted in ((1.0, [5, 2, 3]), (0.0, [2, 3, 4])):
        sampler = SyntheticSampler(scripts(5, 1.0, hit), 50, 6, None, CPU, noise_rows=4)
        rows = [DrawRow(opened(sampler), 2, 3, committed=(1, 1))]
        assert sampler.draw(LOGITS[None], rows).guesses == [wanted]


def test_laws_have_no_script() -> None:
    sampler = SyntheticSampler(scripts(5, 1.0), 50, 6, None, CPU, noise_rows=4)
    with pytest.raises(ValueError, match="kind coupled"):
        opened(sampler, kind=ProposalKind.DENSE)
