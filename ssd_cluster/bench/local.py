"""Builds the engine of a mode in this process: target on its cores, draft where the mode wants it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ssd_cluster.bench.complete import Completion, complete
from ssd_cluster.bench.driver import Driver
from ssd_cluster.bench.fallback.random_tokens import RandomTokens
from ssd_cluster.bench.spec import EngineSpec, LinkBackend
from ssd_cluster.bench.synthetic.process import MODULE as SYNTHETIC
from ssd_cluster.bench.synthetic.sampler import SyntheticSampler
from ssd_cluster.bench.synthetic.script import Scripts
from ssd_cluster.config import DraftSettings
from ssd_cluster.draft.engine import load_draft
from ssd_cluster.draft.launcher import DraftProcess
from ssd_cluster.draft.sampler import RowSampler
from ssd_cluster.errors import StartupError
from ssd_cluster.link.grpc_backend import connect
from ssd_cluster.link.inprocess import pair
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.model.checkpoint import resolve_checkpoint
from ssd_cluster.model.runner import load_runner
from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.target.replica import Connector
from ssd_cluster.text.pairs import require_same_ids
from ssd_cluster.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_DRAFT_READY_S = 60.0


class LocalEngine:
    """A started target engine with its draft, and the driver that measures it. Close it, or use it in ``with``.

    Raises:
        StartupError: the draft did not become ready.
        CheckpointError: a model is missing or broken.
        PairMismatch: target and draft have different tokenizers.
    """

    def __init__(self, spec: EngineSpec, progress: Callable[[int], None] = lambda tokens: None) -> None:
        self._stack = ExitStack()
        try:
            self._build(spec, progress)
        except BaseException:
            self._stack.close()
            raise

    def _build(self, spec: EngineSpec, progress: Callable[[int], None]) -> None:
        if spec.draft is not None:
            require_same_ids(spec.target.model.path, spec.draft.model.path)
        self.tokenizer = Tokenizer.load(resolve_checkpoint(spec.target.model.path))
        runner = load_runner(spec.target.model)
        self._stack.callback(runner.close)
        connectors = [self._connector(spec)] if spec.draft is not None else []
        local = RandomTokens(self.tokenizer.vocabulary) if spec.random_fallback else None
        self.engine = TargetEngine(runner, self.tokenizer, spec.target, connectors, local=local)
        self._stack.callback(self.engine.stop)
        self.engine.start()
        if not self.engine.wait_for_draft(_DRAFT_READY_S):
            raise StartupError(f"the draft {spec.draft and spec.draft.model.path} is not ready; its log says why")
        self.driver = Driver(self.engine, self.encode, progress=progress)
        self.info: dict[str, Any] = {
            "dtype": str(runner.dtype).removeprefix("torch."),
            "torch": torch.__version__,
            "model_hash": runner.model_hash,
            **_step_time(self.engine),
        }

    def _connector(self, spec: EngineSpec) -> Connector:
        if spec.draft is None:
            raise StartupError("this mode needs a draft")
        if spec.link is LinkBackend.INPROCESS:
            return self._embedded_draft(spec.draft, spec.script)
        return self._separate_draft(spec.draft, spec)

    def _embedded_draft(self, settings: DraftSettings, script: Path | None) -> Connector:
        """The draft engine in this process, on a thread of its own, over the in-process link."""
        inbox = Inbox()
        sampler = partial(SyntheticSampler, Scripts.read(script)) if script is not None else RowSampler
        draft = load_draft(settings, inbox, sampler=sampler)
        self._stack.callback(draft.stop)
        draft.start()

        def connector(target_inbox: Inbox) -> Stream:
            return pair(target_inbox, inbox)[0]

        return connector

    def _separate_draft(self, settings: DraftSettings, spec: EngineSpec) -> Connector:
        """The draft in its own process, over gRPC."""
        if spec.script is None:
            process = DraftProcess(settings)
        else:
            process = DraftProcess(settings, module=SYNTHETIC, arguments=(str(spec.script),))
        self._stack.callback(process.close)
        loop = self._stack.enter_context(LinkLoop())

        def connector(target_inbox: Inbox) -> Stream:
            return connect(process.endpoint, target_inbox, spec.target.link, loop)

        return connector

    def encode(self, prompt: str, raw: bool) -> list[int]:
        """Ids of a user's turn in the chat template, or of plain text."""
        if raw:
            return self.tokenizer.encode_prompt(prompt)
        return self.tokenizer.apply_chat_template([{"role": "user", "content": prompt}])

    def complete(
        self, prompt_ids: Sequence[int], params: SamplingParams, on_text: Callable[[str], None] = lambda text: None
    ) -> Completion:
        """Answer one prompt; ``on_text`` receives new text as it comes.

        Raises:
            SsdClusterError: the request is refused, the engine fails, or it makes no progress.
        """
        return complete(self.engine, prompt_ids, params, on_text)

    def close(self) -> None:
        """Stop the engine, then the draft; safe to call twice."""
        self._stack.close()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _step_time(engine: TargetEngine) -> dict[str, Any]:
    """``draft_step_time``: what a forward of the draft costs, as it measured at its start; nothing without a draft."""
    welcomes = (replica.welcome for replica in engine.drafts.links.replicas)
    return next(({"draft_step_time": asdict(one.step_time)} for one in welcomes if one is not None), {})
