"""Ctrl-C and SIGTERM wait for the end of a step; a second one does not."""

from __future__ import annotations

import signal

import pytest

from trainers.interrupt import Interrupted, StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request(number: signal.Signals, capsys: pytest.CaptureFixture[str]):
    with StopRequest() as stop:
        assert not stop.requested
        signal.raise_signal(number)
        assert stop.requested
    assert "stopping after this step" in capsys.readouterr().out


def test_a_second_ctrl_c_takes_effect_at_once():
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.requested


def test_afterwards_signals_do_what_they_did_before():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopRequest():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_an_interrupted_run_exits_with_130_and_a_message():
    stopped = Interrupted("stopped at update 3 of 9")
    assert isinstance(stopped, SystemExit)
    assert (stopped.code, str(stopped)) == (130, "stopped at update 3 of 9")
