"""Stage 1, first part: the target reads text that is at hand; its top-m laws are stored as for text of its own.

One forward over a whole text costs a fraction of writing one token by token, but it is not what the target would say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from ssd_cluster.config import ModelSettings
from ssd_cluster.distill.bulk import find_sources
from ssd_cluster.distill.chats import ChatFrame
from ssd_cluster.distill.draws import top_law
from ssd_cluster.distill.lanes import LaneDecoder
from ssd_cluster.distill.settings import DistillSettings
from ssd_cluster.distill.shards import Document, read_shard, shard_path, write_shard
from ssd_cluster.model.batch import CausalSpan
from ssd_cluster.model.checkpoint import resolve_checkpoint
from ssd_cluster.text.tokenizer import Tokenizer

_AT_ONCE = 16
_SHORTEST = 8  # tokens of an answer

Scored = tuple[str, list[int], int]  # package, tokens, number of forced tokens before the text


def score(settings: DistillSettings, folder: Path, progress: Callable[[str], None]) -> list[Path]:
    """Score texts until ``settings.score.tokens`` are there; return their shards. Finished ones are kept.

    Raises:
        BadShard: a shard is damaged or was made with other settings.
        CheckpointError: the target cannot be loaded.
        SsdClusterError: a shard cannot be written.
    """
    if not settings.score.tokens:
        return []
    key = settings.score_key()
    tokenizer = Tokenizer.load(resolve_checkpoint(settings.target))
    reader: _Reader | None = None
    paths: list[Path] = []
    began, tokens, fresh = time.monotonic(), 0, 0
    for index, texts in enumerate(_shards(settings, tokenizer, progress)):
        path = shard_path(folder, index, "bulk")
        paths.append(path)
        size = sum(len(ids) for _, ids, _ in texts)
        tokens += size
        if path.exists():
            read_shard(path, key)
            continue
        reader = reader or _Reader(settings, max(len(ids) for _, ids, _ in texts))
        write_shard(path, reader.read(texts), key)
        fresh += size
        rate = fresh / (time.monotonic() - began)
        progress(f"score: shard {index} written, {tokens} of {settings.score.tokens} tokens at {rate:.0f} tokens/s")
    if tokens < settings.score.tokens:
        progress(f"score: the sources hold only {tokens} tokens")
    return paths


def _shards(settings: DistillSettings, tokenizer: Tokenizer, progress: Callable[[str], None]) -> Iterator[list[Scored]]:
    """Texts in the order that the seed decides, a shard at a time, until there are enough tokens."""
    s, frame = settings.score, ChatFrame.of(tokenizer)
    sources = find_sources(s.sources, s.folders, progress)
    shard: list[Scored] = []
    tokens = 0
    for text in sources.texts(settings.seed):
        request = tokenizer.encode(text.request)[: settings.collect.whole_prompt_tokens]
        answer = tokenizer.encode(text.answer)[: s.window]
        if len(answer) < _SHORTEST:
            continue
        before = [*frame.before_prompt, *request, *frame.after_prompt]
        shard.append((text.source, before + answer, len(before)))
        tokens += len(before) + len(answer)
        if len(shard) == s.documents_per_shard or tokens >= s.tokens:
            yield shard
            shard = []
        if tokens >= s.tokens:
            return
    if shard:
        yield shard


class _Reader:
    """The target with memory for some texts at a time."""

    def __init__(self, settings: DistillSettings, longest: int) -> None:
        model = ModelSettings(
            path=settings.target, device=settings.device, dtype=settings.dtype, threads=settings.threads
        )
        frame = settings.collect.whole_prompt_tokens + settings.score.window
        self._top_m = settings.collect.top_m
        self._decoder = LaneDecoder(model, 1, _AT_ONCE, max(longest, frame + 64))

    def read(self, texts: list[Scored]) -> list[Document]:
        """Documents of ``texts``, in their order."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i][1]))
        documents: dict[int, Document] = {}
        for first in range(0, len(order), _AT_ONCE):
            group = order[first : first + _AT_ONCE]
            for index, document in zip(group, self._read([texts[i] for i in group]), strict=True):
                documents[index] = document
        return [documents[i] for i in range(len(texts))]

    def _read(self, texts: list[Scored]) -> Iterator[Document]:
        spans = [CausalSpan(ids, 0, [slot], logits_from=forced - 1) for slot, (_, ids, forced) in enumerate(texts)]
        laws = [top_law(logits, self._top_m) for logits in self._decoder.forward(spans)]
        law_ids = torch.cat([ids for ids, _ in laws]).cpu().numpy().astype(np.int32)
        law_p = torch.cat([p for _, p in laws]).cpu().numpy().astype(np.float16)
        row = 0
        for source, ids, forced in texts:
            n = len(ids) - forced
            stored = (law_ids[row : row + n], law_p[row : row + n])
            row += n + 1  # the last row is the law of what would follow
            filled = [np.concatenate([np.zeros((forced, self._top_m), part.dtype), part]) for part in stored]
            yield Document(np.array(ids), filled[0], filled[1], np.arange(len(ids)) >= forced, source)
