"""The step time model of a draft: ``base + per_row * rows`` seconds, measured at start-up and kept up to date."""

from __future__ import annotations

from ssd_cluster.link.messages import StepTimeModel

_MEMORY = 0.98
_SPREAD = 0.01


class StepTimer:
    """Least squares over (rows, seconds) with exponential forgetting.

    While all remembered steps had the same number of rows, the slope that was measured before stays.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._rows = 0.0
        self._seconds = 0.0
        self._rows_rows = 0.0
        self._rows_seconds = 0.0
        self._base = 0.0
        self._slope = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """Account for one forward over ``rows`` tokens."""
        self._weight = self._weight * _MEMORY + 1.0
        self._rows = self._rows * _MEMORY + rows
        self._seconds = self._seconds * _MEMORY + seconds
        self._rows_rows = self._rows_rows * _MEMORY + rows * rows
        self._rows_seconds = self._rows_seconds * _MEMORY + rows * seconds
        mean_rows, mean_seconds = self._rows / self._weight, self._seconds / self._weight
        spread = self._rows_rows / self._weight - mean_rows**2
        if spread > _SPREAD * mean_rows**2:
            covariance = self._rows_seconds / self._weight - mean_rows * mean_seconds
            self._slope = max(0.0, covariance / spread)
        self._base = max(0.0, mean_seconds - self._slope * mean_rows)

    @property
    def model(self) -> StepTimeModel:
        """The current model; zeros before the first observation."""
        return StepTimeModel(base_us=self._base * 1e6, per_row_us=self._slope * 1e6)

    def predict(self, rows: int) -> float:
        """Expected seconds of a forward over ``rows`` tokens."""
        return self._base + self._slope * rows
