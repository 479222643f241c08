"""Stage 1: the target writes prompts and answers of its own; tokens and its top-m laws are stored in shards."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ssd_cluster.config import ModelSettings
from ssd_cluster.distill.chats import ChatFrame, ChatWriter, Seeds
from ssd_cluster.distill.functions import function_prompts
from ssd_cluster.distill.lanes import LaneDecoder
from ssd_cluster.distill.openings import OPENINGS
from ssd_cluster.distill.settings import CollectSettings, DistillSettings
from ssd_cluster.distill.shards import Document, read_shard, shard_path, write_shard
from ssd_cluster.model.checkpoint import resolve_checkpoint
from ssd_cluster.text.tokenizer import Tokenizer


def collect(settings: DistillSettings, folder: Path, progress: Callable[[str], None]) -> list[Path]:
    """Write the missing shards of ``folder`` and return all of them.

    Raises:
        BadShard: a shard is damaged or was made with other settings.
        CheckpointError: the target cannot be loaded.
        SsdClusterError: a shard cannot be written.
    """
    key = settings.collect_key()
    paths = [shard_path(folder, i) for i in range(settings.collect.shards)]
    for path in (p for p in paths if p.exists()):
        read_shard(path, key)
    missing = [i for i, path in enumerate(paths) if not path.exists()]
    if not missing:
        progress(f"collect: all {len(paths)} shards are there")
        return paths
    tokenizer = Tokenizer.load(resolve_checkpoint(settings.target))
    writer = _writer(settings, tokenizer)
    lanes = settings.collect.lanes_per_shard
    open_shards: dict[int, dict[int, list[Document]]] = {}
    began, tokens, done = time.monotonic(), 0, 0
    for lane, documents in writer.write([i * lanes + j for i in missing for j in range(lanes)]):
        index = lane // lanes
        shard = open_shards.setdefault(index, {})
        shard[lane] = documents
        if len(shard) == lanes:
            whole = [document for number in sorted(shard) for document in open_shards[index][number]]
            write_shard(paths[index], whole, key)
            del open_shards[index]
            done += 1
            tokens += sum(len(d) for d in whole)
            rate = tokens / (time.monotonic() - began)
            progress(
                f"collect: shard {index} written, {done} of {len(missing)}, {tokens} tokens at {rate:.0f} tokens/s"
            )
    return paths


def _writer(settings: DistillSettings, tokenizer: Tokenizer) -> ChatWriter:
    s = settings.collect
    frame = ChatFrame.of(tokenizer)
    seeds = prompt_seeds(s, tokenizer)
    begun = [len(opening) + 1 for opening in seeds.openings]
    longest = max([s.prompt_tokens, *begun, *(len(prompt) for prompt in seeds.prompts)])
    model = ModelSettings(path=settings.target, device=settings.device, dtype=settings.dtype, threads=settings.threads)
    positions = len(frame.before_prompt) + longest + len(frame.after_prompt) + s.answer_tokens + 1
    decoder = LaneDecoder(model, s.lanes, s.lane_width, -(-positions // 16) * 16)
    return ChatWriter(decoder, frame, seeds, s, settings.seed)


def prompt_seeds(settings: CollectSettings, tokenizer: Tokenizer) -> Seeds:
    """The built-in openings, and as whole prompts the given ones and the library's functions (``code_prompts``)."""
    prompts = [tokenizer.encode(text) for text in settings.prompts]
    if settings.code_prompts:
        prompts += [tokenizer.encode(text) for text in function_prompts()]
    fitting = tuple(tuple(ids) for ids in prompts if 0 < len(ids) <= settings.whole_prompt_tokens)
    return Seeds(tuple(tuple(tokenizer.encode(text)) for text in OPENINGS), fitting)
