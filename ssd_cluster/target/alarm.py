"""Watches what becomes of drafted proposals: a pair that never agrees is slow, not wrong, so this has to say it."""

from __future__ import annotations

import logging

from ssd_cluster.metrics import TargetMetrics

logger = logging.getLogger(__name__)

WINDOW_ROUNDS = 256
NEAR_ZERO = 0.02


class AcceptanceAlarm:
    """One log line and one count each time the kept share of drafted tokens falls below ``NEAR_ZERO``.

    Looked at after every ``window`` rounds with a draft's proposal; it speaks again only after the share has recovered.
    """

    def __init__(self, metrics: TargetMetrics, window: int = WINDOW_ROUNDS) -> None:
        self._metrics = metrics
        self._window = window
        self._rounds = self._proposed = self._kept = 0
        self._raised = False

    def observe(self, proposed: int, kept: int) -> None:
        """Count one verified proposal of a draft."""
        self._rounds += 1
        self._proposed += proposed
        self._kept += kept
        if self._rounds < self._window:
            return
        share = self._kept / self._proposed if self._proposed else 0.0
        if share < NEAR_ZERO and not self._raised:
            self._metrics.draft_failures.labels("useless").inc()
            logger.warning("draft_useless acceptance=%.3f rounds=%d", share, self._rounds)
        self._raised = share < NEAR_ZERO
        self._rounds = self._proposed = self._kept = 0
