"""The load of a run: how many streams are open for how long, stage after stage."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ssd_cluster.errors import ConfigError

_STAGE = re.compile(r"(\d+)x(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Stage:
    """``streams`` requests at a time, each followed by the next, for ``seconds``."""

    streams: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.streams}x{self.seconds:g}"


def parse_profile(text: str) -> tuple[Stage, ...]:
    """``"1x20,8x60,1x60"`` -> stages of 1, 8 and 1 streams for 20, 60 and 60 s.

    Raises:
        ConfigError: a stage has another form, or nothing is ever open.
    """
    stages = []
    for word in text.split(","):
        found = _STAGE.fullmatch(word.strip())
        if found is None or not float(found[2]):
            raise ConfigError(
                f"--profile: {word.strip()!r} is not STREAMSxSECONDS, e.g. 1x20,8x60,1x60", param="profile"
            )
        stages.append(Stage(int(found[1]), float(found[2])))
    if not any(stage.streams for stage in stages):
        raise ConfigError("--profile: no stage has a stream", param="profile")
    return tuple(stages)
