"""The longest that each queue of a draft has been."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Peaks:
    """Maxima since the engine started; written by its thread.

    Attributes:
        messages: taken in between two forwards.
        rows: wanted at one step boundary by all sessions together.
        sessions: open at once.
        unsent: frames that waited for one target's stream.
    """

    messages: int = 0
    rows: int = 0
    sessions: int = 0
    unsent: int = 0

    def note(self, *, messages: int = 0, rows: int = 0, sessions: int = 0, unsent: int = 0) -> None:
        """Raise the maxima that are exceeded."""
        self.messages = max(self.messages, messages)
        self.rows = max(self.rows, rows)
        self.sessions = max(self.sessions, sessions)
        self.unsent = max(self.unsent, unsent)
