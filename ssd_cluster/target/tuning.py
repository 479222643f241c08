"""Settings of speculation that change while the target serves: checked at once, taken over between two rounds."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ssd_cluster.config import SpeculationSettings, TargetSettings
from ssd_cluster.config_changes import unchangeable
from ssd_cluster.errors import ConfigError
from ssd_cluster.speculation.waiting import make_policy
from ssd_cluster.target.admission import Admission, check_frame
from ssd_cluster.target.drafts import DraftPool
from ssd_cluster.target.pilot import Pilot
from ssd_cluster.target.proposer import Proposer
from ssd_cluster.target.sequence import LiveRequest
from ssd_cluster.target.verification import Verifier
from ssd_cluster.types import Mode
from ssd_cluster.verify import rules_for

logger = logging.getLogger(__name__)


class Tuning:
    """Hands new settings to everything that goes by them. Running requests follow; their text stays what it was.

    Args:
        settings: that the engine starts with.
        vocabulary: ids that the tokenizer knows.
        admission, pilot, proposer, drafts, verifier: of the engine.

    Attributes:
        settings: in force.
    """

    def __init__(
        self,
        settings: TargetSettings,
        vocabulary: int,
        admission: Admission,
        pilot: Pilot,
        proposer: Proposer,
        drafts: DraftPool,
        verifier: Verifier,
    ) -> None:
        self.settings = settings
        self._first = settings
        self._vocabulary = vocabulary
        self._admission = admission
        self._pilot = pilot
        self._proposer = proposer
        self._drafts = drafts
        self._verifier = verifier
        self._wanted: TargetSettings | None = None

    def ask(self, speculation: SpeculationSettings) -> None:
        """Admit requests by these from now on, and take them over at the next round; for any thread.

        Raises:
            ConfigError: they cannot be, nothing changes.
        """
        settings = self._first.model_copy(update={"speculation": speculation})
        reason = unchangeable(self._first, speculation)
        if reason is not None:
            raise ConfigError(reason)
        check_frame(settings, self._vocabulary)
        self._admission.retune(settings)
        self._wanted = settings

    def apply(self, lives: Iterable[LiveRequest]) -> None:
        """Take over what was asked for, if anything was; on the engine thread, between rounds."""
        settings, self._wanted = self._wanted, None
        if settings is None or settings == self.settings:
            return
        self.settings, now = settings, settings.speculation
        self._pilot.retune(settings)
        self._proposer.settings = now
        self._proposer.estimator.policy = make_policy(now.miss_policy)
        self._drafts.openings.retune(now.rows if settings.mode is Mode.SSD else 0)
        self._verifier.rules = rules_for(now.kind, now.rule.value)
        for live in lives:
            self._follow(live)
        logger.info("retuned %s", " ".join(f"{name}={getattr(now, name)}" for name in now.IN_PLACE))

    def _follow(self, live: LiveRequest) -> None:
        k = self._admission.lookahead(live.request)
        for choice in live.choices:
            session = choice.session
            choice.retune(k)
            if session is None or choice.ended:
                continue
            session.limits = None
            self._pilot.admit(choice)
            if k == 0:
                self._drafts.close(session)
                choice.session = None
