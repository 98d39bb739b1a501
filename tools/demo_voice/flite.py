"""flite is the speaker to learn from: its voices were made from recordings of people.

A statistical voice of flite computes these values before it makes any sound: every 5 ms the pitch,
a mel-cepstrum and how voiced five bands are, and when each phoneme begins. The sound is made from
these values alone, so a codec that carries them carries the voice.

On Debian, `apt-get install flite` installs the library and its voices, whose terms allow any use of
what they say. This module calls them as libraries, and no part of them ships.
"""

import ctypes
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

LIBRARY = "libflite.so.1"
VOICE_LIBRARIES = ("libflite_usenglish.so.1", "libflite_cmulex.so.1")  # the voices need them
VOICES = ("rms", "slt", "awb")  # a man of the US, a woman of the US, a man of Scotland

RATE = 16000  # flite's sample rate, in Hz
HOP_SECONDS = 0.005  # between two rows of values
NUM_CEPSTRUM = 25
NUM_VOICED = 5
PAUSE = "pau"

# A callback of flite that returns -1 ends the synthesis. All instances of a voice share its
# features, so the callback that those name must not go with one instance.
_STOP = ctypes.CFUNCTYPE(ctypes.c_int, *([ctypes.c_void_p] * 5))(lambda *_: -1)


class _Track(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("num_frames", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("times", ctypes.POINTER(ctypes.c_float)),
        ("frames", ctypes.POINTER(ctypes.POINTER(ctypes.c_float))),
    )


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


class _Head(ctypes.Structure):
    """The first fields of an utterance (features first) and of a voice (name, then features)."""

    _fields_ = (("first", ctypes.c_void_p), ("second", ctypes.c_void_p))


class _Streaming(ctypes.Structure):
    _fields_ = (
        ("min_buffsize", ctypes.c_int),
        ("callback", ctypes.c_void_p),
        ("utterance", ctypes.c_void_p),
        ("item", ctypes.c_void_p),
        ("userdata", ctypes.c_void_p),
    )


class _Database(ctypes.Structure):
    """cst_cg_db of flite 2.2, up to the last field that is read here."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("types", ctypes.c_void_p),
        ("num_types", ctypes.c_int),
        ("sample_rate", ctypes.c_int),
        ("f0_mean", ctypes.c_float),
        ("f0_stddev", ctypes.c_float),
        ("num_f0_models", ctypes.c_int),
        ("f0_trees", ctypes.c_void_p),
        ("num_param_models", ctypes.c_int),
        ("param_trees", ctypes.c_void_p),
        ("spamf0_accent_tree", ctypes.c_void_p),
        ("spamf0_phrase_tree", ctypes.c_void_p),
        ("num_channels", ctypes.c_void_p),
        ("num_frames", ctypes.c_void_p),
        ("model_vectors", ctypes.c_void_p),
        ("num_channels_spamf0_accent", ctypes.c_int),
        ("num_frames_spamf0_accent", ctypes.c_int),
        ("spamf0_accent_vectors", ctypes.c_void_p),
        ("model_min", ctypes.c_void_p),
        ("model_range", ctypes.c_void_p),
        ("qtable", ctypes.c_void_p),
        ("model_shape", ctypes.c_int),
        ("frame_advance", ctypes.c_float),
        ("num_dur_models", ctypes.c_int),
        ("dur_stats", ctypes.c_void_p),
        ("dur_cart", ctypes.c_void_p),
        ("phone_states", ctypes.c_void_p),
        ("do_mlpg", ctypes.c_int),
        ("dynwin", ctypes.c_void_p),
        ("dynwinsize", ctypes.c_int),
        ("mlsa_alpha", ctypes.c_float),
        ("mlsa_beta", ctypes.c_float),
        ("multimodel", ctypes.c_int),
        ("mixed_excitation", ctypes.c_int),
        ("num_filters", ctypes.c_int),
        ("filter_length", ctypes.c_int),
        ("filters", ctypes.POINTER(ctypes.POINTER(ctypes.c_double))),
        ("spamf0", ctypes.c_int),
        ("gain", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class Segment:
    """One phoneme."""

    name: str
    end: float  # in seconds
    word: int  # index into `Spoken.word_starts`; that of the word before, for a pause

    @property
    def is_pause(self) -> bool:
        return self.name == PAUSE


@dataclass(frozen=True, slots=True)
class Spoken:
    """What flite wants to say: a row every `HOP_SECONDS`."""

    f0: np.ndarray  # [num_rows] float32, Hz; 0 where the sound is unvoiced
    cepstrum: np.ndarray  # [num_rows, NUM_CEPSTRUM] float32
    voiced: np.ndarray  # [num_rows, NUM_VOICED] float32: share of pulses in each band
    segments: list[Segment]
    word_starts: list[int]  # first character of each word in the text

    @property
    def hertz(self) -> float:
        """The median pitch of the voiced rows."""
        return float(np.median(self.f0[self.f0 > 0]))


@dataclass(frozen=True, slots=True)
class Filters:
    """How values become sound.

    Attributes:
        alpha: warping of the mel-cepstrum's frequencies.
        beta: strength of the postfilter.
        gain: factor of the excitation.
        bands: [NUM_VOICED, length] the finite impulse responses that part the excitation.
    """

    alpha: float
    beta: float
    gain: float
    bands: np.ndarray


class Flite:
    """One voice of the library; `shared` gives a process its instance.

    Args:
        voice: one of `VOICES`.

    Raises:
        OSError: the library or the voice is not installed.
        ValueError: the voice is not one of them.
    """

    def __init__(self, voice: str = VOICES[0]):
        if voice not in VOICES:
            raise ValueError(f"voice is {voice!r}; it must be one of {', '.join(VOICES)}.")
        self._library = _load_library()
        for name in VOICE_LIBRARIES:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        voices = ctypes.CDLL(f"libflite_cmu_us_{voice}.so.1", mode=ctypes.RTLD_GLOBAL)
        register = getattr(voices, f"register_cmu_us_{voice}")
        register.restype = ctypes.c_void_p
        self._library.flite_init()
        self._voice = register(None)
        features = _Head.from_address(self._voice).second
        self._database = self._library.val_cg_db(self._library.feat_val(features, b"cg_db"))
        self._stop_before_the_sound(features)

    @classmethod
    @functools.cache
    def shared(cls, voice: str = VOICES[0]) -> "Flite":
        """Return the process's instance of a voice."""
        return cls(voice)

    @property
    def filters(self) -> Filters:
        """The constants of this voice's sound."""
        found = _Database.from_address(self._database)
        bands = [
            np.ctypeslib.as_array(found.filters[i], (found.filter_length,)).copy()
            for i in range(found.num_filters)
        ]
        return Filters(found.mlsa_alpha, found.mlsa_beta, found.gain or 1.0, np.stack(bands))

    def __call__(self, text: str) -> Spoken | None:
        """Return flite's values for `text`; None if there is nothing to hear."""
        if not re.search(r"[A-Za-z0-9]", text):
            return None
        library = self._library
        utterance = library.flite_synth_text(text.encode(), self._voice)
        try:
            features = _Head.from_address(utterance).first
            track = library.val_track(library.feat_val(features, b"param_track"))
            smoothed = library.mlpg(track, self._database)
            values = _rows(smoothed)
            library.delete_track(smoothed)
            voiced = _rows(library.val_track(library.feat_val(features, b"str_track")))
            word_starts = list(self._number_words(utterance, text))
            segments = list(self._segments(utterance))
        finally:
            library.delete_utterance(utterance)
        if not segments or not word_starts:
            return None
        # In one sentence of 15,000 the smoothing makes a pitch infinite; that row has none then.
        f0 = np.where(np.isfinite(values[:, 0]), values[:, 0], 0)
        return Spoken(f0, values[:, 1 : 1 + NUM_CEPSTRUM], voiced, segments, word_starts)

    def sound(self, f0: np.ndarray, cepstrum: np.ndarray, voiced: np.ndarray) -> np.ndarray:
        """Return flite's own sound of such values: [num_samples] float32 in [-1, 1] at `RATE`."""
        rows = np.concatenate(
            [f0[:, None], cepstrum, np.zeros((len(f0), 1))], axis=1, dtype=np.float32
        )
        wave = self._library.mlsa_resynthesis(
            _track(rows), _track(voiced.astype(np.float32)), self._database, None, 0
        )
        samples = np.ctypeslib.as_array(wave.contents.samples, (wave.contents.num_samples,)).copy()
        self._library.delete_wave(wave)
        return samples.astype(np.float32) / 32768

    def _stop_before_the_sound(self, features: int) -> None:
        """Let flite compute only the values, because its filter takes nine tenths of the time."""
        info = self._library.new_audio_streaming_info()
        streaming = _Streaming.from_address(info)
        streaming.min_buffsize = 1
        streaming.callback = ctypes.cast(_STOP, ctypes.c_void_p).value
        value = self._library.audio_streaming_info_val(info)
        self._library.feat_set(features, b"streaming_info", value)

    def _items(self, utterance: int, relation: bytes) -> Iterator[int]:
        item = self._library.relation_head(self._library.utt_relation(utterance, relation))
        while item:
            yield item
            item = self._library.item_next(item)

    def _number_words(self, utterance: int, text: str) -> Iterator[int]:
        """Number the tokens of the text; return where each one begins in the text."""
        after = 0
        for number, item in enumerate(self._items(utterance, b"Token")):
            self._library.item_set_int(item, b"number", number)
            name = self._library.item_feat_string(item, b"name").decode(errors="replace")
            found = text.find(name, after)
            start = found if found >= 0 else after
            after = start + len(name)
            yield start

    def _segments(self, utterance: int) -> Iterator[Segment]:
        word = 0
        for item in self._items(utterance, b"Segment"):
            name = self._library.item_feat_string(item, b"name").decode()
            end = self._library.item_feat_float(item, b"end")
            if name != PAUSE:
                path = b"R:SylStructure.parent.parent.R:Token.parent.number"
                word = self._library.ffeature_int(item, path)
            yield Segment(name, end, word)


def _load_library() -> Any:
    library = ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_GLOBAL)
    pointer, string = ctypes.c_void_p, ctypes.c_char_p
    track, wave = ctypes.POINTER(_Track), ctypes.POINTER(_Wave)
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "flite_synth_text": (pointer, (string, pointer)),
        "delete_utterance": (None, (pointer,)),
        "feat_val": (pointer, (pointer, string)),
        "feat_set": (None, (pointer, string, pointer)),
        "val_track": (track, (pointer,)),
        "val_cg_db": (pointer, (pointer,)),
        "mlpg": (track, (track, pointer)),
        "delete_track": (None, (track,)),
        "mlsa_resynthesis": (wave, (track, track, pointer, pointer, ctypes.c_int)),
        "delete_wave": (None, (wave,)),
        "new_audio_streaming_info": (pointer, ()),
        "audio_streaming_info_val": (pointer, (pointer,)),
        "utt_relation": (pointer, (pointer, string)),
        "relation_head": (pointer, (pointer,)),
        "item_next": (pointer, (pointer,)),
        "item_set_int": (None, (pointer, string, ctypes.c_int)),
        "item_feat_string": (string, (pointer, string)),
        "item_feat_float": (ctypes.c_float, (pointer, string)),
        "ffeature_int": (ctypes.c_int, (pointer, string)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _rows(track: Any) -> np.ndarray:
    """Return a copy of a track of flite's: [num_frames, num_channels] float32."""
    found = track.contents
    size = found.num_channels * ctypes.sizeof(ctypes.c_float)
    rows = b"".join(ctypes.string_at(row, size) for row in found.frames[: found.num_frames])
    return np.frombuffer(rows, np.float32).reshape(-1, found.num_channels).copy()


def _track(rows: np.ndarray) -> Any:
    """Return a track of flite's that borrows the rows; its Python owners travel with it."""
    rows = np.ascontiguousarray(rows, np.float32)
    number, width = rows.shape
    pointer = ctypes.POINTER(ctypes.c_float)
    frames = (pointer * number)(*(row.ctypes.data_as(pointer) for row in rows))
    times = np.arange(number, dtype=np.float32) * np.float32(HOP_SECONDS)
    track = _Track(None, number, width, times.ctypes.data_as(pointer), frames)
    reference = ctypes.pointer(track)
    reference.owners = (rows, frames, times)
    return reference
