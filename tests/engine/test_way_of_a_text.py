"""The way of a text through the program, as docs/architecture.md lists it."""

import re
import sys
import threading
from pathlib import Path

import pytest
from commands import ROOT
from tiny_speech import TEXT, VOICE, tiny_engine

import qwen_megakernel

PACKAGE = Path(qwen_megakernel.__file__).parent
ROW = re.compile(r"^\| `([A-Za-z]+\.\w+)` \| `([\w/]+\.py)` \|")
DEEP = re.compile(r"five calls deep: (.*?), which calls the compiled library", re.DOTALL)
MET = re.compile(r"meets (\d+) classes: (.*?)\.\n\n", re.DOTALL)
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def called(frame) -> tuple[str, str]:
    """Function and file of a Python frame; the file is "" outside of the package."""
    path = Path(frame.f_code.co_filename)
    inside = path.is_relative_to(PACKAGE)
    return frame.f_code.co_qualname, path.relative_to(PACKAGE).as_posix() if inside else ""


@pytest.mark.parametrize(
    "how",
    [{}, {"normalize": "on", "speed": 1.5, "sample_rate": 8000, "leading_silence": 0}],
    ids=str,
)
def test_a_text_goes_through_the_calls_of_the_table_in_their_order(how):
    """Reading the text as words and changing the sound add no call between them.

    The last call counts when it returns, because it waits for the chunk that the others make.
    """
    table = [row.groups() for line in PAGE.splitlines() if (row := ROW.match(line))]
    seen, reader = [], threading.current_thread()
    submitted = ("StepLoop.submit", "engine/step_loop.py")

    def profile(frame, event, argument):
        if event in ("call", "return") and (name := called(frame)) in table:
            waits = name[0] == "SpeechStream.__next__"
            in_loop = threading.current_thread() is not reader  # its earlier turns do not count
            begun = submitted in seen if in_loop else bool(seen) or name == table[0]
            if begun and (event == "return") is waits and name not in seen:
                seen.append(name)

    with tiny_engine(backend="torch") as tts:
        tts._loop.run(lambda: sys.setprofile(profile))
        sys.setprofile(profile)
        try:
            stream = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=1, **how)
            assert sum(chunk.num_frames for chunk in stream) == 1
            assert all(word.end > word.start for word in stream.times.words)
        finally:
            sys.setprofile(None)
            tts._loop.run(lambda: sys.setprofile(None))
    assert len(table) == 11
    assert seen == table


def class_of(frame) -> type | None:
    """The class whose method a Python frame runs, if it is one of the package."""
    code = frame.f_code
    if not code.co_argcount or code.co_varnames[0] not in ("self", "cls"):
        return None
    first = frame.f_locals[code.co_varnames[0]]
    found = first if isinstance(first, type) else type(first)
    return found if found.__module__.startswith(qwen_megakernel.__name__) else None


def test_a_plain_text_meets_the_classes_of_the_page_before_its_first_chunk():
    """The engine's thread counts until it delivers the chunk, the caller's until it has it."""
    met, reader = set(), threading.current_thread()

    def profile(frame, event, argument):
        is_delivered = "AudioChunk" in met and threading.current_thread() is not reader
        if event == "call" and not is_delivered and (found := class_of(frame)):
            met.add(found.__name__)

    with tiny_engine(backend="cpu") as tts:
        tts._loop.run(lambda: sys.setprofile(profile))
        sys.setprofile(profile)
        try:
            assert len(next(tts.stream(TEXT, voice=VOICE, seed=1)).samples)
        finally:
            sys.setprofile(None)
            tts._loop.run(lambda: sys.setprofile(None))
    number, names = MET.search(PAGE).groups()
    assert met == set(re.findall(r"`(\w+)`", names))
    assert len(met) == int(number)


def test_a_step_of_the_kernel_has_the_depth_of_the_page(monkeypatch):
    stacks = []
    with tiny_engine(backend="emulation") as tts:
        library = type(tts._loop.stages.decoder.library)
        step = library.step

        def noting_step(self, *arguments):
            stack, frame = ["KernelLibrary.step"], sys._getframe(1)
            while frame.f_code.co_name != "_turn":
                if called(frame)[1]:
                    stack.insert(0, frame.f_code.co_qualname)
                frame = frame.f_back
            stacks.append(stack)
            return step(self, *arguments)

        monkeypatch.setattr(library, "step", noting_step)
        tts.synthesize(TEXT, voice=VOICE, seed=1, max_frames=2)
    assert stacks
    told = re.findall(r"`([\w.]+)`", DEEP.search(PAGE)[1])
    assert len(told) == 5
    assert all(stack == told for stack in stacks)
