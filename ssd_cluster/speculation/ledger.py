"""What speculation may lose: an account in seconds that bounds the worst case, whatever the draft does."""

from __future__ import annotations

_FIRST_ROUNDS = 1.5
_MOST_ROUNDS = 4.0


class Ledger:
    """Credit grows with decoding time and with what speculation saves, and is what probes and bad rounds may cost.

    Over any stretch of decoding that takes plain decoding t, speculation that stops when the account is empty takes at
    most (1 + share) t, plus what the account may hold and the one round that empties it.

    Args:
        share: of plain decoding time that may be lost.
    """

    def __init__(self, share: float = 0.02) -> None:
        self._share = share
        self._started = False
        self.balance_s = 0.0

    def count(self, plain_s: float, spent_s: float, round_s: float) -> None:
        """Account for some rounds.

        Args:
            plain_s: what plain decoding would have taken for the same tokens.
            spent_s: what they took.
            round_s: one plain round now; a few of them are the least and the most that the account holds.
        """
        if not self._started:
            self._started = True
            self.balance_s = _FIRST_ROUNDS * round_s
        self.balance_s += (1 + self._share) * plain_s - spent_s
        self.balance_s = min(self.balance_s, _MOST_ROUNDS * round_s)

    @property
    def empty(self) -> bool:
        return self._started and self.balance_s <= 0
