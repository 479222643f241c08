"""Ctrl-C and SIGTERM: at once, after a critical section, or only counted."""

from __future__ import annotations

import signal

import pytest

from ssd_cluster.serve.signals import Interrupted, StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted), StopSignals():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_a_deferred_signal_interrupts_at_the_end_of_the_section() -> None:
    done = []

    def work() -> None:
        with StopSignals() as signals:
            with signals.deferred():
                signal.raise_signal(signal.SIGTERM)
                done.append("section")
            done.append("beyond")

    with pytest.raises(Interrupted):
        work()
    assert done == ["section"]


def test_an_error_in_a_deferred_section_is_not_hidden() -> None:
    def work() -> None:
        with StopSignals() as signals, signals.deferred():
            signal.raise_signal(signal.SIGTERM)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()


def test_while_ignored_signals_are_counted() -> None:
    with StopSignals() as signals:
        with signals.ignored():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        assert signals.count == 2
        assert signals.requested.is_set()
