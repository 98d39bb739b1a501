"""Signals (signals.py): deferred ones, graceful exits, and interrupted commands."""

import argparse
import os
import signal
import sys
import time
from types import ModuleType

import pytest
import soundfile
from commands import run, start

from qwen_megakernel import signals
from qwen_megakernel.cli import running


@pytest.fixture(autouse=True)
def default_handlers():
    """Restores the handlers: a suite in the background of a shell, or under nohup, ignores them."""
    defaults = dict.fromkeys(signals.SIGNALS, signal.SIG_DFL)
    defaults[signal.SIGINT] = signal.default_int_handler
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_wait_for_the_end_of_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt), signals.deferred_signals(lambda: done.append("noticed")):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("finished")
    assert done == ["noticed", "finished"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_block_that_does_not_end_can_be_left(monkeypatch):
    """The demo waits for a pipeline in such a block, and the pipeline may hang."""
    monkeypatch.setattr(signals, "GRACE_S", 0.0)
    done = []
    with pytest.raises(KeyboardInterrupt), signals.deferred_signals():
        signal.raise_signal(signal.SIGINT)
        done.append("first")
        signal.raise_signal(signal.SIGINT)
        done.append("second")
    assert done == ["first"]


def test_a_signal_may_come_while_asyncio_is_imported(monkeypatch):
    monkeypatch.setattr(signals.atexit, "register", lambda ignore: None)
    monkeypatch.setitem(sys.modules, "asyncio", ModuleType("asyncio"))  # nothing is in it yet
    with pytest.raises(KeyboardInterrupt), signals.GracefulExit():
        signal.raise_signal(signal.SIGINT)


def test_the_first_signal_gives_the_exit_code_and_later_ones_wait(monkeypatch):
    monkeypatch.setattr(signals.atexit, "register", lambda ignore: None)
    before, end, done = signal.getsignal(signal.SIGTERM), signals.GracefulExit(), []
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


# ---- commands


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        pytest.param([signal.SIGINT], 130, marks=pytest.mark.ci),
        ([signal.SIGINT, signal.SIGINT, signal.SIGINT, signal.SIGTERM], 130),
        pytest.param([signal.SIGTERM, signal.SIGTERM], 143, marks=pytest.mark.ci),
        pytest.param([signal.SIGHUP, signal.SIGINT], 129, marks=pytest.mark.ci),
    ],
)
def test_interrupting_leaves_a_valid_shorter_file(tmp_path, numbers, code):
    """On a busy machine all signals wait at once: Python then takes the lowest number first."""
    out = tmp_path / "partial.wav"
    text = "Hello there. " * 300
    model = ("--model", "tiny-random", "--backend", "torch")
    # Drawn with this seed, the speech takes 10 s to make: a busy machine interrupts it in time.
    arguments = ("--seed", "1", "--stream", "--output", out)
    process = start("-m", "qwen_megakernel", "speak", text, *model, *arguments)
    for line in process.stderr:
        if "frames" in line:
            break
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.002)
    rest = process.stderr.read()
    assert process.wait(timeout=30) == code, rest
    samples, rate = soundfile.read(out)
    assert rate == 24000 and len(samples) and len(samples) % 1920 == 0
    assert rest.endswith("interrupted\n") and "Traceback" not in rest
    assert os.listdir(tmp_path) == ["partial.wav"]


def test_a_command_under_nohup_outlives_its_terminal():
    """An ignored signal stays ignored; a replaced handler is restored afterwards."""
    args = argparse.Namespace(debug=False, quiet=False)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        assert running.run(lambda _: signal.raise_signal(signal.SIGHUP) or 0, args) == 0
        assert signal.getsignal(signal.SIGTERM) == before[1]
    finally:
        signal.signal(signal.SIGHUP, before[0])


INTERRUPT_AT = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == sys.argv[0]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = sys.argv[1:]
sys.meta_path.insert(0, Interrupt())
from qwen_megakernel.cli import main
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("module", ["numpy", "numpy.exceptions", "numpy.lib", "torch.functional"])
def test_ctrl_c_while_libraries_are_imported_ends_the_command(module):
    done = run("-c", INTERRUPT_AT, module, "doctor")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.removeprefix("loading PyTorch\n") == "interrupted\n"
