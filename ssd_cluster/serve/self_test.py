"""Start-up self-test of a pair: a few prompts, and a warning where the draft's proposals are as good as never kept.

A pair with fitting tokenizers can still be useless: a wrong chat template, a broken quantisation, weights of another
model. Nothing fails then, it is only slow, so somebody has to say it.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
from collections.abc import Callable

from ssd_cluster.errors import SsdClusterError
from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.target.request import Finished, GenerationRequest, SpeculationStats
from ssd_cluster.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

PROMPTS = (
    "Count from one to twenty.",
    "Name the days of the week and say one sentence about each of them.",
)
MAX_TOKENS = 32
MIN_PROPOSED = 20
NEAR_ZERO = 0.02
DRAFT_DEADLINE_S = 120.0
ANSWER_DEADLINE_S = 60.0


class SelfTest:
    """Runs once, on a thread of its own, when the first draft is ready. Requests are served meanwhile.

    Args:
        engine: started.
        tokenizer: of the target.
        report: receives the acceptance, 0 to 1, or None if it could not be measured.
    """

    def __init__(
        self, engine: TargetEngine, tokenizer: Tokenizer, report: Callable[[float | None], None] = lambda share: None
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._report = report
        self._thread = threading.Thread(target=self._run, name="self-test", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end; the engine's stop ends a running test."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        share = None
        try:
            if self._engine.wait_for_draft(DRAFT_DEADLINE_S):
                share = self._measure()
        except SsdClusterError as error:
            log.info("self_test_skipped reason=%r", error.message)
        self._report(share)

    def _measure(self) -> float | None:
        proposed = kept = 0
        for prompt in PROMPTS:
            stats = self._answer(prompt)
            if stats is None:
                return None
            proposed += stats.num_draft_tokens
            kept += stats.num_accepted_draft_tokens
        if proposed < MIN_PROPOSED:
            log.info("self_test_skipped reason='only %d proposed tokens'", proposed)
            return None
        share = kept / proposed
        if share < NEAR_ZERO:
            log.warning(
                "self_test acceptance=%.3f of %d proposed tokens: this draft does not speed this target up; check that "
                "both belong together with `ssd-cluster check-pair`",
                share,
                proposed,
            )
        else:
            log.info("self_test acceptance=%.3f of %d proposed tokens", share, proposed)
        return share

    def _answer(self, prompt: str) -> SpeculationStats | None:
        ids = self._tokenizer.encode_prompt(prompt)
        params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
        finished: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        request = GenerationRequest(f"self-test-{secrets.token_hex(8)}", tuple(ids), params)
        self._engine.submit(request, lambda event: finished.put(event) if isinstance(event, Finished) else None)
        try:
            event = finished.get(timeout=ANSWER_DEADLINE_S)
        except queue.Empty:
            self._engine.abort(request.request_id)
            return None
        return event.speculation if event.error is None else None
