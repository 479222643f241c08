"""Stage 1: the target writes prompts and answers of its own; tokens and its top-m laws are stored in shards."""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ssd_cluster.config import ModelSettings
from ssd_cluster.distill.openings import OPENINGS
from ssd_cluster.distill.settings import CollectSettings, DistillSettings
from ssd_cluster.distill.shards import Document, read_shard, shard_path, write_shard
from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.batch import CausalSpan, ForwardBatch
from ssd_cluster.model.checkpoint import resolve_checkpoint
from ssd_cluster.model.kv import SequenceBlocks
from ssd_cluster.model.runner import ModelRunner, load_runner
from ssd_cluster.text.tokenizer import Tokenizer

_MARK = "\x1fTURN\x1f"


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """Token ids around a user turn, and the ids that end a turn."""

    before_prompt: tuple[int, ...]
    after_prompt: tuple[int, ...]
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


@dataclass(slots=True)
class _Chat:
    """One conversation while it is written: tokens to feed, what was drawn, and the laws seen."""

    forced: deque[int]
    prompt_left: int
    answer_left: int
    temperature: float
    pages: SequenceBlocks
    tokens: list[int] = field(default_factory=list)
    law_ids: list[np.ndarray] = field(default_factory=list)
    law_p: list[np.ndarray] = field(default_factory=list)
    has_law: list[bool] = field(default_factory=list)
    fed: int = 0
    in_answer: bool = False
    done: bool = False

    def document(self) -> Document:
        return Document(
            np.array(self.tokens), np.stack(self.law_ids), np.stack(self.law_p), np.array(self.has_law, dtype=bool)
        )


class ChatWriter:
    """Lets the target write conversations, ``settings.batch`` at a time, refilled as they end."""

    def __init__(self, runner: ModelRunner, frame: ChatFrame, settings: CollectSettings) -> None:
        self._runner = runner
        self._frame = frame
        self._settings = settings
        self._no_ids = np.zeros(settings.top_m, np.int32)
        self._no_p = np.zeros(settings.top_m, np.float16)

    def write(
        self, count: int, openings: list[tuple[int, ...]], prompts: list[tuple[int, ...]], seed: int
    ) -> list[Document]:
        """``count`` conversations, in the order in which they end; equal for equal arguments on one machine.

        ``openings``: first tokens of prompts that the target completes; ``prompts``: whole ones.
        """
        generator = torch.Generator().manual_seed(seed)
        chooser = random.Random(seed)
        temperatures = itertools.cycle(self._settings.temperatures)
        waiting = deque(self._start(chooser, openings, prompts, next(temperatures)) for _ in range(count))
        running: list[_Chat] = []
        finished: list[Document] = []
        while running or waiting:
            while waiting and len(running) < self._settings.batch:
                running.append(waiting.popleft())
            self._step(running, generator)
            finished += [chat.document() for chat in running if chat.done]
            running = [chat for chat in running if not chat.done]
        return finished

    def _start(
        self,
        chooser: random.Random,
        openings: list[tuple[int, ...]],
        prompts: list[tuple[int, ...]],
        temperature: float,
    ) -> _Chat:
        s = self._settings
        opening: tuple[int, ...] = () if chooser.random() < s.own_prompt_share else chooser.choice(openings)
        chat = _Chat(
            deque(self._frame.before_prompt + opening),
            s.prompt_tokens - len(opening),
            s.answer_tokens,
            temperature,
            SequenceBlocks(self._runner.pool),
        )
        if opening and prompts and chooser.random() < 0.5:
            chat.forced = deque(self._frame.before_prompt + chooser.choice(prompts) + self._frame.after_prompt)
            chat.in_answer = True
        return chat

    def _step(self, chats: list[_Chat], generator: torch.Generator) -> None:
        """One forward: everything forced so far and the last drawn token of each chat; then draw the next ones."""
        spans = []
        for chat in chats:
            if not chat.tokens:
                chat.fed = chat.pages.attach_prefix(list(chat.forced))
            while chat.forced:
                self._append(chat, chat.forced.popleft(), None)
            new = chat.tokens[chat.fed :]
            chat.pages.ensure(len(chat.tokens))
            spans.append(CausalSpan(new, chat.fed, chat.pages.table, logits_from=len(new) - 1))
        logits = self._runner.forward(ForwardBatch(list(spans))).cpu()
        for chat, span in zip(chats, spans, strict=True):
            chat.pages.advance(span.tokens)
            chat.fed = len(chat.tokens)
        law = torch.softmax(logits, -1)
        top_p, top_ids = law.topk(self._settings.top_m, dim=-1)
        drawn = self._draw(chats, logits, top_ids, generator)
        for chat, token, ids, p in zip(chats, drawn, top_ids.numpy(), top_p.numpy(), strict=True):
            self._append(chat, token, (ids.astype(np.int32), p.astype(np.float16)))
            self._advance(chat, token)

    def _draw(self, chats: list[_Chat], logits: Tensor, top_ids: Tensor, generator: torch.Generator) -> list[int]:
        heat = torch.tensor([c.temperature if c.in_answer else self._settings.prompt_temperature for c in chats])
        scaled = logits / heat.clamp_min(1e-6)[:, None]
        noise = torch.empty_like(scaled).exponential_(generator=generator)
        sampled = (scaled - noise.log()).argmax(-1)
        return [int(t) for t in torch.where(heat > 0, sampled, top_ids[:, 0])]

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
            if ended or chat.answer_left == 0:
                chat.done = True
                chat.pages.release()
            return
        chat.prompt_left -= 1
        if ended or chat.prompt_left <= 0:
            after = self._frame.after_prompt
            chat.forced.extend(after[1:] if token == after[0] else after)
            chat.in_answer = True


def collect(settings: DistillSettings, folder: Path, progress: Callable[[str], None]) -> list[Path]:
    """Write the missing shards of ``folder`` and return all of them.

    Raises:
        BadShard: a shard is damaged or was made with other settings.
        CheckpointError: the target cannot be loaded.
    """
    key = settings.collect_key()
    paths = [shard_path(folder, i) for i in range(settings.collect.shards)]
    missing = [i for i, path in enumerate(paths) if not path.exists()]
    for path in (p for p in paths if p.exists()):
        read_shard(path, key)
    if not missing:
        progress(f"collect: all {len(paths)} shards are there")
        return paths
    tokenizer = Tokenizer.load(resolve_checkpoint(settings.target))
    writer = ChatWriter(_runner(settings, tokenizer), ChatFrame.of(tokenizer), settings.collect)
    openings = [tuple(tokenizer.encode(text)) for text in OPENINGS]
    prompts = [tuple(tokenizer.encode(text)) for text in settings.collect.prompts]
    for done, index in enumerate(missing, start=1):
        began = time.monotonic()
        documents = writer.write(settings.collect.shard_size, openings, prompts, settings.seed * 1_000_003 + index)
        write_shard(paths[index], documents, key)
        tokens = sum(len(d) for d in documents)
        rate = tokens / (time.monotonic() - began)
        progress(f"collect: shard {done} of {len(missing)}, {tokens} tokens at {rate:.0f} tokens/s")
    return paths


def _runner(settings: DistillSettings, tokenizer: Tokenizer) -> ModelRunner:
    c = settings.collect
    frame = ChatFrame.of(tokenizer)
    prompt = max([c.prompt_tokens, *(len(tokenizer.encode(text)) for text in c.prompts)])
    longest = len(frame.before_prompt) + prompt + len(frame.after_prompt) + c.answer_tokens
    return load_runner(
        ModelSettings(
            path=settings.target,
            device=settings.device,
            dtype=settings.dtype,
            threads=settings.threads,
            kv_tokens=c.batch * (longest + 16) + 4096,
        )
    )
