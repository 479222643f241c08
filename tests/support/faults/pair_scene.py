"""A target engine in this process and a draft process on a fixed port, with a proxy between them; no Ray."""

from __future__ import annotations

import itertools
import os
import queue
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ssd_cluster.config import DraftSettings, DType, ModelSettings, TargetSettings
from ssd_cluster.draft.launcher import DraftProcess
from ssd_cluster.link.grpc_backend import connect
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.model.runner import load_runner
from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.target.request import Delta, Event, Finished, GenerationRequest
from ssd_cluster.text.tokenizer import Tokenizer
from support.faults.proxy import Proxy
from support.faults.trial import DEADLINE_S, PROMPT, SPECULATION
from support.live_cluster import Reference, free_port
from support.staged import Staged

KV_TOKENS = 8192


class PairScene(Staged):
    """See ``trial.Scene``; a context manager.

    Args:
        target, draft: checkpoints.
        max_tokens: length of every answer.
        settings: further ones of the target.

    Attributes:
        port: of the draft.
        proxy: what the target connects to.
        draft: the process that runs now.
        models: the checkpoints.
    """

    def __init__(self, target: Path, draft: Path, max_tokens: int, **settings: Any) -> None:
        self.max_tokens = max_tokens
        self.port = free_port()
        self.models = target, draft
        self._settings = settings
        self._numbers = itertools.count()

    def up(self, undo: ExitStack) -> None:
        target, draft = self.models
        self._reference = Reference(target)
        undo.callback(self._reference.close)
        self._plain: dict[str, str] = {}
        self.start_draft(draft)
        undo.callback(lambda: self.draft.close())  # the one that runs then
        undo.callback(self.signal, signal.SIGCONT)
        self._loop = LinkLoop()
        self._loop.start()
        undo.callback(self._loop.close)
        self.proxy = Proxy(self.port)
        undo.callback(self.proxy.close)
        model = ModelSettings(path=str(target), dtype=DType.FLOAT32, kv_tokens=KV_TOKENS)
        settings = TargetSettings.model_validate({"model": model, "speculation": SPECULATION} | self._settings)
        connector = [lambda inbox: connect(self.proxy.endpoint, inbox, settings.link, self._loop)]
        tokenizer = Tokenizer.load(target)
        self._engine = TargetEngine(load_runner(model), tokenizer, settings, connector)
        self._engine.start()
        undo.callback(self._engine.stop)
        self._prompt = tuple(tokenizer.encode_prompt(PROMPT))

    def start_draft(self, checkpoint: Path | None = None) -> None:
        """Start a draft on the port, which must be free; by default the one that fits."""
        model = ModelSettings(path=str(checkpoint or self.models[1]), dtype=DType.FLOAT32, kv_tokens=KV_TOKENS)
        self.draft = DraftProcess(DraftSettings(model=model, port=self.port))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the draft."""
        if self.draft.alive:
            os.kill(self.draft.pid, number)

    def ask(self, params: dict[str, Any]) -> Iterator[str]:
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        request = GenerationRequest(f"r{next(self._numbers)}", self._prompt, SamplingParams(**params))
        self._engine.submit(request, events.put)
        while True:
            event = events.get(timeout=DEADLINE_S)
            if isinstance(event, Finished):
                assert event.error is None, event.error
                return
            if isinstance(event, Delta) and event.text:
                yield event.text

    def plain(self, params: dict[str, Any]) -> str:
        key = repr(params)
        if key not in self._plain:
            (self._plain[key],) = self._reference.texts(list(self._prompt), **params)
        return self._plain[key]

    def counter(self, name: str, **labels: str) -> float:
        samples = (sample for metric in self._engine.metrics.registry.collect() for sample in metric.samples)
        wanted = labels.items()
        return sum(one.value for one in samples if one.name == name and wanted <= one.labels.items())
