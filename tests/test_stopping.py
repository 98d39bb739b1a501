"""What a signal interrupts, and what it waits for (stopping.py)."""

import signal

import pytest

from qwen_megakernel import stopping


def test_signals_wait_for_the_end_of_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt), stopping.shielded(lambda: done.append("told")):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("finished")
    assert done == ["told", "finished"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_block_that_does_not_end_can_be_left(monkeypatch):
    """The demo waits for a pipeline in one, which may hang."""
    monkeypatch.setattr(stopping, "GRACE_S", 0.0)
    done = []
    with pytest.raises(KeyboardInterrupt), stopping.shielded():
        signal.raise_signal(signal.SIGINT)
        done.append("first")
        signal.raise_signal(signal.SIGINT)
        done.append("second")
    assert done == ["first"]


def test_the_first_signal_gives_the_exit_code_and_later_ones_wait(monkeypatch):
    monkeypatch.setattr(stopping.atexit, "register", lambda ignore: None)
    before, end, done = signal.getsignal(signal.SIGTERM), stopping.OrderlyEnd(), []
    try:
        with pytest.raises(KeyboardInterrupt), end:
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGINT)
                done.append("closed")
        assert done == ["closed"] and end.exit_code == 143
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
