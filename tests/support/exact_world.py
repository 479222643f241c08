"""Small vocabularies in rational arithmetic: a target and a draft as tables, and the law of a text made of rounds."""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Text = tuple[int, ...]
Law = tuple[Fraction, ...]
TextLaw = dict[Text, Fraction]

ONE = Fraction(1)
ZERO = Fraction(0)


@dataclass(frozen=True)
class World:
    """A target p and a draft q; every row depends on the whole text before it.

    ``p`` and ``q`` say what rows look like: "full", "zeros" (each id missing half of the time), "one_hot"; q may be
    "equal" to p. ``eos`` ends texts and drafts; ``adaptive`` lets the draft stop early, wherever its text tells it to.
    """

    seed: int
    vocabulary: int = 2
    gamma: int = 2
    p: str = "full"
    q: str = "full"
    eos: int | None = None
    adaptive: bool = False

    def _row(self, name: str, kind: str, text: Text) -> Law:
        dice = random.Random(zlib.crc32(repr((self.seed, name, text)).encode()))
        weights = [dice.randint(1, 5) for _ in range(self.vocabulary)]
        if kind == "zeros":
            keep = dice.randrange(self.vocabulary)
            weights = [w if i == keep or dice.random() < 0.5 else 0 for i, w in enumerate(weights)]
        if kind == "one_hot":
            hot = dice.randrange(self.vocabulary)
            weights = [int(i == hot) for i in range(self.vocabulary)]
        return tuple(Fraction(w, sum(weights)) for w in weights)

    def target(self, text: Text) -> Law:
        """P after ``text``."""
        return self._row("p", self.p, text)

    def draft(self, text: Text) -> Law:
        """Q after ``text``."""
        return self.target(text) if self.q == "equal" else self._row("q", self.q, text)

    def ends(self, committed: Text, drafted: Text) -> bool:
        """Whether the draft proposes no more."""
        if len(drafted) == self.gamma or (drafted and drafted[-1] == self.eos):
            return True
        coin = zlib.crc32(repr((self.seed, "stop", committed + drafted)).encode())
        return self.adaptive and coin % 3 == 0

    def chains(self, committed: Text) -> Iterator[tuple[Text, Fraction]]:
        """What the draft may propose, with probabilities."""

        def below(drafted: Text, probability: Fraction) -> Iterator[tuple[Text, Fraction]]:
            if self.ends(committed, drafted):
                yield drafted, probability
                return
            for token, q in enumerate(self.draft(committed + drafted)):
                if q:
                    yield from below((*drafted, token), probability * q)

        yield from below((), ONE)

    def rows(self, committed: Text, x: Text) -> tuple[list[Law], list[Law]]:
        """P_0..P_n and Q_0..Q_{n-1} along a proposal."""
        return (
            [self.target(committed + x[:t]) for t in range(len(x) + 1)],
            [self.draft(committed + x[:t]) for t in range(len(x))],
        )


class ConstantWorld(World):
    """The same laws p and q after every text, given by whole numbers in proportion to them."""

    def __init__(self, p: Text, q: Text, gamma: int = 2) -> None:
        super().__init__(seed=0, gamma=gamma, vocabulary=len(p))
        object.__setattr__(self, "laws", [tuple(Fraction(w, sum(row)) for w in row) for row in (p, q)])

    def target(self, text: Text) -> Law:
        return self.laws[0]  # type: ignore[attr-defined,no-any-return]

    def draft(self, text: Text) -> Law:
        return self.laws[1]  # type: ignore[attr-defined,no-any-return]


Round = Callable[[World, Text], TextLaw]
"""The law of the tokens that one round emits after the committed ones."""


def cut(text: Text, eos: int | None, length: int) -> tuple[Text, bool]:
    """``text`` up to its end token or ``length``, and whether it ends there."""
    if eos in text:
        text = text[: text.index(eos) + 1]  # type: ignore[arg-type]
    return text[:length], len(text) >= length or (bool(text) and text[-1] == eos)


def chained(world: World, round_: Round, length: int) -> TextLaw:
    """Law of the first ``length`` tokens when rounds follow each other; each sees only what is committed."""
    done: TextLaw = defaultdict(lambda: ZERO)
    open_: dict[int, TextLaw] = defaultdict(lambda: defaultdict(lambda: ZERO))
    open_[0][()] = ONE
    for n in range(length):
        for committed, probability in open_[n].items():
            for emitted, share in round_(world, committed).items():
                assert emitted, "a round must emit something"
                text, ended = cut(committed + emitted, world.eos, length)
                (done if ended else open_[len(text)])[text] += probability * share
    return {text: mass for text, mass in done.items() if mass}


def plain_round(world: World, committed: Text) -> TextLaw:
    """One token of the target."""
    return {(token,): p for token, p in enumerate(world.target(committed)) if p}


def error(got: Mapping[Text, Any], wanted: Mapping[Text, Any]) -> Any:
    """Largest difference of two laws."""
    return max(abs(got.get(text, 0) - wanted.get(text, 0)) for text in {*got, *wanted})


def worlds(count: int, **fields: Any) -> list[World]:
    """Worlds that differ in their tables."""
    return [World(seed=seed, **fields) for seed in range(count)]


SHAPES: dict[str, dict[str, Any]] = {
    "full": {},
    "three_tokens": {"vocabulary": 3},
    "long": {"gamma": 3},
    "zeros": {"vocabulary": 3, "p": "zeros", "q": "zeros"},
    "zeros_in_p": {"vocabulary": 3, "p": "zeros"},
    "zeros_in_q": {"vocabulary": 3, "q": "zeros"},
    "one_hot_p": {"vocabulary": 3, "p": "one_hot"},
    "one_hot_q": {"vocabulary": 3, "q": "one_hot"},
    "both_one_hot": {"p": "one_hot", "q": "one_hot"},
    "equal": {"q": "equal", "p": "zeros", "vocabulary": 3},
    "gamma_1": {"gamma": 1, "vocabulary": 3},
    "eos": {"eos": 1, "vocabulary": 3},
    "adaptive": {"adaptive": True, "gamma": 3},
    "eos_adaptive_zeros": {"eos": 0, "adaptive": True, "gamma": 3, "p": "zeros", "q": "zeros"},
}
"""Every kind of table and draft that a rule must be exact for."""
