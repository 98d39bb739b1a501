"""espeak-ng is the speaker to learn from: it gives samples, and when each phoneme and word begins.

On Debian, `apt-get install espeak-ng` installs it. The program is under the GPL; this module calls
it as a library, and no part of it ships. Its speech is data.
"""

import ctypes
import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LIBRARY = "libespeak-ng.so.1"
WORDS_PER_MINUTE = 150

# This voice variant has no melody or flutter: at one pitch a frame holds whole periods.
VARIANT = "flat"
_VARIANT_FILE = f"language variant\nname {VARIANT}\npitch 100 100\nflutter 0\n"
VOICE = f"en-us+{VARIANT}"

# These are the numbers of speak_lib.h (espeak-ng 1.51).
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_INITIALIZE_PHONEME_EVENTS = 1
_PARAMETER_RATE, _PARAMETER_RANGE = 1, 4
_EVENT_LIST_TERMINATED, _EVENT_WORD, _EVENT_PHONEME = 0, 1, 7
_CHARS_UTF8 = 1


class _EventId(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),  # in characters, counted from 1
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _EventId),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


@dataclass(frozen=True, slots=True)
class Phoneme:
    """One sound. The names of pauses begin with "_"."""

    sample: int  # the sample where it begins
    name: str
    word: int  # index into `Spoken.word_starts`

    @property
    def is_pause(self) -> bool:
        """Whether it is silent."""
        return self.name.startswith("_")


@dataclass(frozen=True, slots=True)
class Spoken:
    """A sentence that espeak-ng has spoken."""

    samples: np.ndarray  # [num_samples] float32 in [-1, 1]
    phonemes: list[Phoneme]
    word_starts: list[int]  # first character of each word in the text


class Espeak:
    """The library with one voice. It keeps global state, so a process has one instance, `shared`.

    A second one would wait without end.

    Raises:
        OSError: the library is not installed.
    """

    def __init__(self) -> None:
        self._library = library = ctypes.CDLL(LIBRARY)
        library.espeak_Info.restype = ctypes.c_char_p
        data = self._initialize(None)
        self._folder = tempfile.TemporaryDirectory()  # espeak-ng reads it again later
        _write_data(Path(self._folder.name), data)
        library.espeak_Terminate()
        self._initialize(self._folder.name.encode())
        if library.espeak_SetVoiceByName(VOICE.encode()):
            raise OSError(f"espeak-ng has no voice {VOICE}.")
        library.espeak_SetParameter(_PARAMETER_RATE, WORDS_PER_MINUTE, 0)
        library.espeak_SetParameter(_PARAMETER_RANGE, 0, 0)
        self._samples: list[np.ndarray] = []
        self._events: list[tuple[int, int, int, str]] = []
        self._callback = _Callback(self._collect)  # the library holds only its address
        library.espeak_SetSynthCallback(self._callback)

    @classmethod
    @functools.cache
    def shared(cls) -> "Espeak":
        """Return the process's instance."""
        return cls()

    @property
    def version(self) -> str:
        """The version that the library reports."""
        return self._library.espeak_Info(None).decode()

    def __call__(self, text: str) -> Spoken:
        """Speak `text`."""
        self._samples, self._events = [], []
        encoded = text.encode() + b"\0"
        self._library.espeak_Synth(encoded, len(encoded), 0, 0, 0, _CHARS_UTF8, None, None)
        samples = np.concatenate(self._samples) if self._samples else np.zeros(0, np.int16)
        phonemes, word_starts = [], []
        for kind, sample, position, name in self._events:
            if kind == _EVENT_PHONEME:
                phonemes.append(Phoneme(sample, name, max(len(word_starts) - 1, 0)))
            elif position < len(text):
                word_starts.append(position)
        return Spoken(samples.astype(np.float32) / 32768, phonemes, word_starts or [0])

    def _initialize(self, folder: bytes | None) -> Path:
        """Load espeak-ng's data from `folder`, or for None from the system's folder; return the
        folder."""
        self.sample_rate = self._library.espeak_Initialize(
            _AUDIO_OUTPUT_SYNCHRONOUS, 0, folder, _INITIALIZE_PHONEME_EVENTS
        )
        if self.sample_rate <= 0:
            raise OSError(f"espeak-ng cannot read its data in {folder!r}.")
        path = ctypes.c_char_p()
        self._library.espeak_Info(ctypes.byref(path))
        return Path(path.value.decode())

    def _collect(self, samples: Any, num_samples: int, events: Any) -> int:
        """Take a piece of sound from the library; the result 0 asks for the next one."""
        if samples and num_samples > 0:
            self._samples.append(np.ctypeslib.as_array(samples, (num_samples,)).copy())
        index = 0
        while (event := events[index]).type != _EVENT_LIST_TERMINATED:
            if event.type == _EVENT_PHONEME or (event.type == _EVENT_WORD and event.length > 0):
                name = bytes(event.id.string).split(b"\0")[0].decode(errors="replace")
                if event.type == _EVENT_WORD:
                    name = ""
                self._events.append((event.type, event.sample, event.text_position - 1, name))
            index += 1
        return 0


def _write_data(folder: Path, system: Path) -> None:
    """Make espeak-ng-data in `folder`: links to the system's files, and the voice variant."""
    data = folder / "espeak-ng-data"
    variants = data / "voices" / "!v"
    variants.mkdir(parents=True)
    _link_entries(system, data, lambda name: name != "voices")
    _link_entries(system / "voices", data / "voices", lambda name: name != "!v")
    _link_entries(system / "voices" / "!v", variants, lambda name: name != VARIANT)
    (variants / VARIANT).write_text(_VARIANT_FILE, encoding="utf-8")


def _link_entries(source: Path, target: Path, wanted: Callable[[str], bool]) -> None:
    for entry in source.iterdir():
        if wanted(entry.name):
            (target / entry.name).symlink_to(entry)
