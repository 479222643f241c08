"""The target writes conversations: prompts (whole, begun, or all its own) and answers, many at a time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ssd_cluster.distill.draws import draw, top_law
from ssd_cluster.distill.lanes import LaneDecoder
from ssd_cluster.distill.settings import CollectSettings
from ssd_cluster.distill.shards import Document
from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.batch import CausalSpan
from ssd_cluster.text.tokenizer import Tokenizer

_MARK = "\x1fTURN\x1f"
_CLOSE_BELOW = 8  # a lane ends when less than 1 / _CLOSE_BELOW of its chats still write

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """Token ids around a user turn, and the ids that end a turn."""

    before_prompt: Ids
    after_prompt: Ids
    ends: frozenset[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatFrame:
        """Split the tokenizer's chat template around the content of a single user turn.

        Raises:
            CheckpointError: the template drops the content.
        """
        before, mark, after = tokenizer.render_chat([{"role": "user", "content": _MARK}]).partition(_MARK)
        if not mark:
            raise CheckpointError("the target's chat template does not show the user's text; it cannot be distilled so")
        after_ids = tokenizer.encode(after)
        ends = set(tokenizer.eos_ids)
        ends.add(after_ids[0])
        return cls(tuple(tokenizer.encode(before)), tuple(after_ids), frozenset(ends))


@dataclass(frozen=True, slots=True)
class Seeds:
    """What user turns are made of: ``openings`` that the target completes, and whole ``prompts``."""

    openings: Sequence[Ids]
    prompts: Sequence[Ids]


@dataclass(slots=True)
class _Chat:
    """One conversation while it is written: tokens to feed, what was drawn, and the laws seen."""

    forced: deque[int]
    prompt_left: int
    answer_left: int
    temperature: float
    in_answer: bool
    tokens: list[int] = field(default_factory=list)
    law_ids: list[np.ndarray] = field(default_factory=list)
    law_p: list[np.ndarray] = field(default_factory=list)
    has_law: list[bool] = field(default_factory=list)
    fed: int = 0
    done: bool = False

    def document(self) -> Document:
        return Document(
            np.array(self.tokens), np.stack(self.law_ids), np.stack(self.law_p), np.array(self.has_law, dtype=bool)
        )


@dataclass(slots=True)
class _Lane:
    """Chats that started together, in one lane of the decoder."""

    number: int
    chats: list[_Chat]
    generator: torch.Generator

    @property
    def done(self) -> bool:
        return sum(not chat.done for chat in self.chats) * _CLOSE_BELOW < len(self.chats)


class ChatWriter:
    """Lets the target write lanes of conversations. What a lane holds follows from the seed and its number.

    Equal seeds give equal text on one machine as far as rounding allows: the rows that run beside a chat can change
    the last bits of its logits.
    """

    def __init__(
        self, decoder: LaneDecoder, frame: ChatFrame, seeds: Seeds, settings: CollectSettings, seed: int
    ) -> None:
        self._decoder = decoder
        self._frame = frame
        self._seeds = seeds
        self._settings = settings
        self._seed = seed
        self._no_ids = np.zeros(settings.top_m, np.int32)
        self._no_p = np.zeros(settings.top_m, np.float16)

    def write(
        self, numbers: Sequence[int], wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[tuple[int, list[Document]]]:
        """(number, documents) of every lane in ``numbers``, in the order in which they end.

        ``wanted`` is asked before each forward; when it says no the lanes that are still open are dropped.
        """
        waiting = deque(numbers)
        places: list[_Lane | None] = [None] * self._decoder.lanes
        while waiting or any(places):
            if not wanted():
                return
            for place, lane in enumerate(places):
                if lane is None and waiting:
                    places[place] = self._open(waiting.popleft())
            self._step(places)
            for place, lane in enumerate(places):
                if lane is not None and lane.done:
                    places[place] = None
                    yield lane.number, [chat.document() for chat in lane.chats]

    def _open(self, number: int) -> _Lane:
        seed = self._seed * 1_000_003 + number
        chooser = random.Random(seed)
        temperatures = self._settings.temperatures
        chats = [self._start(chooser, temperatures[i % len(temperatures)]) for i in range(self._decoder.width)]
        return _Lane(number, chats, torch.Generator().manual_seed(seed))

    def _start(self, chooser: random.Random, temperature: float) -> _Chat:
        s, frame = self._settings, self._frame
        kind = chooser.random()
        if kind < s.whole_prompt_share and self._seeds.prompts:
            prompt = chooser.choice(self._seeds.prompts)
            forced = frame.before_prompt + prompt + frame.after_prompt
            return _Chat(deque(forced), 0, s.answer_tokens, temperature, True)
        own = kind < s.whole_prompt_share + s.own_prompt_share or not self._seeds.openings
        opening: Ids = () if own else chooser.choice(self._seeds.openings)
        left = max(1, s.prompt_tokens - len(opening))
        return _Chat(deque(frame.before_prompt + opening), left, s.answer_tokens, temperature, False)

    def _step(self, places: list[_Lane | None]) -> None:
        """One forward: everything forced so far and the last drawn token of each chat; then draw the next ones."""
        chats: list[_Chat] = []
        spans: list[CausalSpan] = []
        uniform: list[torch.Tensor] = []
        for place, lane in enumerate(places):
            if lane is None:
                continue
            noise = torch.rand(len(lane.chats), generator=lane.generator)
            for index, chat in enumerate(lane.chats):
                if chat.done:
                    continue
                while chat.forced:
                    self._append(chat, chat.forced.popleft(), None)
                new = chat.tokens[chat.fed :]
                slot = place * self._decoder.width + index
                spans.append(CausalSpan(new, chat.fed, [slot], logits_from=len(new) - 1))
                chat.fed = len(chat.tokens)
                chats.append(chat)
                uniform.append(noise[index])
        done = 0
        for logits in self._decoder.forward(spans):
            rows = slice(done, done + len(logits))
            self._draw(chats[rows], logits, torch.stack(uniform[rows]))
            done += len(logits)

    def _draw(self, chats: list[_Chat], logits: torch.Tensor, uniform: torch.Tensor) -> None:
        ids, p = top_law(logits, self._settings.top_m)
        heat = torch.tensor([c.temperature if c.in_answer else self._settings.prompt_temperature for c in chats])
        drawn = draw(logits, heat, uniform).tolist()
        law_ids, law_p = ids.cpu().numpy().astype(np.int32), p.cpu().numpy().astype(np.float16)
        for row, (chat, token) in enumerate(zip(chats, drawn, strict=True)):
            self._append(chat, token, (law_ids[row], law_p[row]))
            self._advance(chat, token)

    def _append(self, chat: _Chat, token: int, law: tuple[np.ndarray, np.ndarray] | None) -> None:
        chat.tokens.append(token)
        chat.law_ids.append(law[0] if law else self._no_ids)
        chat.law_p.append(law[1] if law else self._no_p)
        chat.has_law.append(law is not None)

    def _advance(self, chat: _Chat, token: int) -> None:
        """Turn limits and changes of turn after a drawn token."""
        ended = token in self._frame.ends
        if chat.in_answer:
            chat.answer_left -= 1
            chat.done = ended or chat.answer_left == 0
            return
        chat.prompt_left -= 1
        if ended or chat.prompt_left <= 0:
            after = self._frame.after_prompt
            chat.forced.extend(after[1:] if token == after[0] else after)
            chat.in_answer = True
