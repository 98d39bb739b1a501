"""The record of a voice, and its file formats.

A voice file `NAME.voice.safetensors` holds the x-vector, the codes of an in-context voice, and as
metadata the name, the transcript, the fingerprint of the checkpoint that made it, and for a voice
that a client of the server uploaded, this fact and the consent of its speaker. The file of a voice
with several styles (version 2) has `STYLE.x_vector` and `STYLE.codes` for each of them, and as the
metadata `styles` a JSON list of [style, transcript or null]; the first one is the default.

`voice_presets.bin` is an older format of x-vectors alone, little-endian: int32 number of voices;
for each 64 bytes of name, padded with zeros, and the x-vector in float32.
Source: rmtew/local-ai-server, tts_voice_presets.h.
"""

from __future__ import annotations

import json
import os
import re
import reprlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from qwen_megakernel.errors import (
    RecordingError,
    UnknownVoice,
    UsageError,
    VoiceMismatch,
    check_choice,
    check_type,
    did_you_mean,
    listed,
)
from qwen_megakernel.output_files import replacing, writing
from qwen_megakernel.printable import printable

VOICE_SUFFIX = ".voice.safetensors"
PRESETS_FILE = "voice_presets.bin"

NEUTRAL = "neutral"  # the style of a voice with one recording, and the default where it exists

_FORMAT = "qwen_megakernel voice 1"
_FORMAT_OF_STYLES = "qwen_megakernel voice 2"
_UPLOADED = "uploaded"  # a key of the metadata
_PRESET_NAME_BYTES = 64
_COUNT_BYTES = 4

# The tensors of a voice file, and the dtypes in which they are read. `save` writes F32 and I32.
_DTYPES = {
    "x_vector": ("F32", "F64", "F16"),
    "codes": ("I32", "I64", "I16", "I8", "U64", "U32", "U16", "U8"),
}

# A name is also a file name: one component of a path, and not a hidden one.
_NAME = re.compile(r"(?!\.)[^/\\:\x00-\x1f]{1,80}")
_NAME_BYTES = 200  # file systems allow 255; the ending and a temporary suffix need the rest


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """A cloned voice, or the name of a speaker that the checkpoint knows.

    `x_vector` is [enc_dim] f32. With `codes` ([num_frames, num_code_groups] int) and `transcript`
    the voice is used in context (ICL): the model continues the reference recording.
    `fingerprint` identifies the encoders that made it; None: not known. `consent` states who agreed
    to the voice; `is_uploaded`: a client of the server made it, so clients may delete it.

    `styles` has the voice of each recording, with its style as the name, if there are several. The
    fields above are then those of one style; `of_styles` makes such a voice.
    """

    name: str
    x_vector: np.ndarray | None = None
    codes: np.ndarray | None = None
    transcript: str | None = None
    fingerprint: str | None = None
    consent: str | None = None
    is_uploaded: bool = False
    styles: tuple[Voice, ...] = ()

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise UsageError(
                f"{self.name!r} cannot be the name of a voice.",
                f"Names are file names: up to 80 characters and {_NAME_BYTES} bytes, no slash, "
                "no colon, no leading dot.",
            )
        for field in ("transcript", "fingerprint", "consent"):
            text = getattr(self, field)
            if not isinstance(text, str | None):
                raise RecordingError(
                    f"Voice {self.name!r}: {field} is {reprlib.repr(text)}; it must be a string."
                )
        self._take_array("x_vector")
        self._take_array("codes")
        if self.x_vector is not None and self.x_vector.ndim != 1:
            raise RecordingError(
                f"Voice {self.name!r}: x_vector has shape {self.x_vector.shape}; need one row."
            )
        if (self.codes is None) != (self.transcript is None):
            raise RecordingError(
                f"Voice {self.name!r} has {'codes' if self.transcript is None else 'a transcript'} "
                f"but no {'transcript' if self.transcript is None else 'codes'}.",
                "In-context cloning needs both; an x-vector alone needs neither.",
            )
        if self.codes is not None and (self.codes.ndim != 2 or not len(self.codes)):
            raise RecordingError(
                f"Voice {self.name!r}: codes have shape {self.codes.shape}; "
                "need [num_frames, num_code_groups]."
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Voice) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[Any, ...]:
        """Return all fields, with the numbers of arrays in place of the arrays."""
        values = (getattr(self, each.name) for each in fields(self))
        return tuple(
            (each.shape, *each.ravel().tolist()) if isinstance(each, np.ndarray) else each
            for each in values
        )

    def _take_array(self, field: str) -> None:
        """Turn a field's numbers, such as a list or a tensor, into an array."""
        given = getattr(self, field)
        if given is None:
            return
        try:
            array = np.asarray(given)
        except (TypeError, ValueError, RuntimeError):  # lists of several lengths, bf16, a GPU's
            array = np.empty(0, dtype=object)
        if array.dtype.kind not in "fiu":
            raise RecordingError(
                f"Voice {self.name!r}: {field} is {reprlib.repr(given)}; it must be an array of "
                "real numbers."
            )
        object.__setattr__(self, field, array)

    @property
    def in_context(self) -> bool:
        """True when reference codes and transcript are part of the prompt."""
        return self.codes is not None

    @staticmethod
    def from_audio(tts: Any, *args: Any, **options: Any) -> Voice:
        """Clone a voice from a recording with `tts.create_voice(...)`."""
        voice: Voice = tts.create_voice(*args, **options)
        return voice

    @staticmethod
    def of_styles(name: str, recordings: Iterable[Voice]) -> Voice:
        """Return one voice with the styles of several recordings of its speaker.

        Args:
            recordings: a voice for each style, with the style as its name. The default style is
                "neutral" if it is one of them, or else the first by name.
        Raises:
            UsageError: there is no recording, or two have the same style.
            VoiceMismatch: the recordings were encoded by different checkpoints.
        """
        styles = sorted(recordings, key=lambda each: (each.name != NEUTRAL, each.name))
        names = [each.name for each in styles]
        if not names or len(set(names)) < len(names):
            raise UsageError(
                f"Voice {name!r} has the styles {', '.join(names) or '(none)'}.",
                "Each style needs one recording, and there must be at least one.",
            )
        check_same_encoders(styles)
        return replace(styles[0], name=name, styles=tuple(styles) if len(styles) > 1 else ())

    @property
    def style_names(self) -> list[str]:
        """The names of the styles, the default first; a voice of one recording is "neutral"."""
        return [each.name for each in self.styles] or [NEUTRAL]

    def in_style(self, style: str) -> Voice:
        """Return the voice as it speaks in a style; it still has all styles.

        Raises:
            UsageError: the voice has no such style; the error lists those that it has.
        """
        check_choice(f"The style of voice {self.name!r}", printable(style), self.style_names)
        for each in self.styles:
            if each.name == style:
                x_vector, codes, transcript = each.x_vector, each.codes, each.transcript
                return replace(self, x_vector=x_vector, codes=codes, transcript=transcript)
        return self

    def x_vector_only(self) -> Voice:
        """Return the voice without the codes and transcripts of its recordings."""
        styles = tuple(each.x_vector_only() for each in self.styles)
        return replace(self, codes=None, transcript=None, styles=styles)

    def save(self, path: str | Path) -> None:
        """Write a voice file that only its owner may read (mode 0600).

        An existing file is replaced only by a complete one.

        Raises:
            UsageError: the path does not end in ".voice.safetensors", the voice is a speaker's
                name without an x-vector, or its name or a text has half a surrogate pair.
            OutputError: the file cannot be written.
        """
        from safetensors.numpy import save

        if not str(path).endswith(VOICE_SUFFIX):
            raise UsageError(f"{path} cannot be a voice file; it must end in {VOICE_SUFFIX}.")
        if self.x_vector is None:
            raise UsageError(
                f"Voice {self.name!r} is a speaker of a checkpoint; there is nothing to save."
            )
        metadata = {
            "format": _FORMAT_OF_STYLES if self.styles else _FORMAT,
            "name": self.name,
            "fingerprint": self.fingerprint,
            "consent": self.consent,
            _UPLOADED: "yes" if self.is_uploaded else None,
        }
        if self.styles:
            metadata["styles"] = json.dumps([[each.name, each.transcript] for each in self.styles])
        else:
            metadata["transcript"] = self.transcript
        tensors: dict[str, np.ndarray] = {}
        for each in self.styles or (self,):
            prefix = f"{each.name}." if self.styles else ""
            tensors[f"{prefix}x_vector"] = np.ascontiguousarray(each.x_vector, dtype=np.float32)
            if each.codes is not None:
                tensors[f"{prefix}codes"] = np.ascontiguousarray(each.codes, dtype=np.int32)
        known = {key: value for key, value in metadata.items() if value is not None}
        try:
            data = save(tensors, known)
        except UnicodeEncodeError as error:  # Python keeps bytes that are not of the locale so
            raise UsageError(
                f"Voice {self.name!r} cannot be saved: its name or a text is not Unicode.",
                hint="If it came from the command line, set LC_ALL=C.UTF-8.",
            ) from error
        _write(Path(path), data)

    @staticmethod
    def load(path: str | Path) -> Voice:
        """Read a voice file.

        Raises:
            UnknownVoice: there is no such file.
            RecordingError: the file is damaged, is not a voice file, or has a tensor of another
                dtype (BF16, F8 or complex numbers, for example).
        """
        from safetensors import SafetensorError, safe_open

        if not os.path.isfile(path):  # Path's own method raises an error for a long name
            raise UnknownVoice(f"There is no voice file {path}.")
        try:
            open(path, "rb").close()  # safe_open takes a file that it may not read for none
            with safe_open(path, framework="np") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") not in (_FORMAT, _FORMAT_OF_STYLES):
                    raise RecordingError(f"{Path(path).name} is not a voice file.")
                name, styles = metadata["name"], [("", metadata.get("transcript"))]
                if metadata["format"] == _FORMAT_OF_STYLES:
                    styles = json.loads(metadata["styles"])
                made = []
                for style, transcript in styles:
                    prefix = style and f"{style}."
                    found = {}
                    for tensor in {prefix + kind for kind in _DTYPES} & set(file.keys()):
                        _check_dtype(Path(path).name, tensor, file.get_slice(tensor))
                        found[tensor.removeprefix(prefix)] = file.get_tensor(tensor)
                    made.append(
                        Voice(
                            style or name,
                            found["x_vector"],
                            found.get("codes"),
                            transcript,
                            fingerprint=metadata.get("fingerprint"),
                            consent=metadata.get("consent"),
                            is_uploaded=_UPLOADED in metadata,
                        )
                    )
                return Voice.of_styles(name, made)
        except FileNotFoundError as error:  # the file was deleted just now
            raise UnknownVoice(f"There is no voice file {path}.") from error
        except PermissionError as error:
            raise RecordingError(f"{Path(path).name} cannot be read: {error.strerror}.") from error
        except (
            *(SafetensorError, OSError, KeyError, ValueError, TypeError),
            *(AttributeError, RecursionError),  # of styles that are no list of pairs of strings
        ) as error:
            if isinstance(error, UsageError):  # such as a RecordingError from above
                raise
            reason = getattr(error, "strerror", None) or error  # without the folder
            raise RecordingError(
                f"{Path(path).name} is damaged: {reason}.",
                hint="Make it again: qwen-megakernel voices create RECORDING -o FILE",
            ) from error

    @staticmethod
    def load_presets(path: str | Path) -> dict[str, Voice]:
        """Read a `voice_presets.bin`; the width of its x-vectors follows from its size.

        Raises:
            UnknownVoice: there is no such file.
            RecordingError: the file cannot be read, is cut short, or is not a file of presets.
        """
        try:
            data = Path(path).read_bytes()
        except (FileNotFoundError, IsADirectoryError) as error:
            raise UnknownVoice(f"There is no presets file {path}.") from error
        except (OSError, ValueError) as error:  # a ValueError: the path has a null byte
            reason = getattr(error, "strerror", None) or error
            raise RecordingError(f"{Path(path).name} cannot be read: {reason}.") from error
        count = int.from_bytes(data[:_COUNT_BYTES], "little", signed=True)
        if count == 0 and len(data) == _COUNT_BYTES:
            return {}
        damaged = RecordingError(
            f"{Path(path).name} is damaged: {len(data)} bytes do not hold {count} voices.",
            "Each has a name of 64 bytes and an x-vector in float32, all of one width.",
        )
        entry_bytes, rest = divmod(len(data) - _COUNT_BYTES, count) if count > 0 else (0, 1)
        width, odd_bytes = divmod(entry_bytes - _presets(0).itemsize, 4)
        if rest or odd_bytes or width <= 0:
            raise damaged
        voices = {}
        for name, x_vector in np.frombuffer(data, _presets(width), offset=_COUNT_BYTES):
            # A truncated file may still divide evenly, but its names then lack their zeros.
            if b"\0" in name or not np.isfinite(x_vector).all():
                raise damaged
            try:
                voice = Voice(name.decode(), x_vector.astype(np.float32))
            except (UnicodeDecodeError, UsageError) as error:
                raise damaged from error
            voices[voice.name] = voice
        return voices


def _presets(width: int) -> np.dtype:
    """Return the type of an entry of a `voice_presets.bin` with x-vectors of a width."""
    return np.dtype([("name", f"S{_PRESET_NAME_BYTES}"), ("x_vector", "<f4", (width,))])


def _check_dtype(file: str, tensor: str, found: Any) -> None:
    dtype, known = found.get_dtype(), _DTYPES[tensor.rpartition(".")[2]]
    if dtype not in known:
        raise RecordingError(
            f"{file}: {tensor} is {dtype}; it must be one of {', '.join(known)}.",
            hint="Make the file again: qwen-megakernel voices create RECORDING -o FILE",
        )


def check_same_encoders(voices: Iterable[Voice]) -> None:
    """Raise a VoiceMismatch if voices were encoded by different checkpoints, as far as is known."""
    made = {each.fingerprint: each.name for each in voices if each.fingerprint is not None}
    if len(made) > 1:
        raise VoiceMismatch(
            "The voices were made with different models: "
            f"{', '.join(f'{name!r} with {model}' for model, name in made.items())}.",
            hint="Make all of them with one model: qwen-megakernel voices create ... --model MODEL",
        )


def check_voices(folder: str | Path | None) -> None:
    """Raise a UsageError if there is no folder `folder` of voices; None: none is meant."""
    check_type("voices", folder, str | os.PathLike | None, "the path of a folder")
    if folder is not None and not os.path.isdir(folder):
        raise UsageError(f"There is no voices folder {folder}.")


def is_uploaded(path: Path) -> bool:
    """Return whether a voice file has the mark of an upload; False: not, or it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return _UPLOADED in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def is_name(name: object) -> bool:
    """Return whether a voice can have a name."""
    if not isinstance(name, str) or len(name.encode(errors="replace")) > _NAME_BYTES:
        return False
    return _NAME.fullmatch(name) is not None


def composed_name(name: str) -> str:
    """Return a name as it is compared and stored: composed (NFC), without spaces at its ends."""
    return unicodedata.normalize("NFC", name).strip(" ")


def new_name(name: str) -> str:
    """Return the name of a new voice, composed.

    Raises:
        UsageError: it cannot be a file's name, or has a character that cannot be seen: a control
            character, a mark of direction, a space other than " ".
    """
    name = Voice(composed_name(name)).name
    if hidden := next((char for char in name if not char.isprintable()), None):
        raise UsageError(
            f"{name!r} cannot be the name of a voice.",
            f"It has the character U+{ord(hidden):04X}, which cannot be seen.",
        )
    return name


def save_presets(path: str | Path, voices: Iterable[Voice]) -> None:
    """Write the x-vectors of `voices` as a `voice_presets.bin`; codes and transcripts are left out.

    Raises:
        UsageError: a name is too long, a voice has no x-vector, or x-vectors differ in width.
        OutputError: the file cannot be written.
    """
    voices = list(voices)
    width = next((len(voice.x_vector) for voice in voices if voice.x_vector is not None), 0)
    for voice in voices:
        num_bytes = len(voice.name.encode())
        if num_bytes >= _PRESET_NAME_BYTES:
            raise UsageError(f"{voice.name!r} has {num_bytes} bytes; a presets file allows 63.")
        if voice.x_vector is None or len(voice.x_vector) != width:
            raise UsageError(f"{voice.name!r} has no x-vector of the same width as the others.")
    entries = [(voice.name.encode(), voice.x_vector) for voice in voices]
    count = len(voices).to_bytes(_COUNT_BYTES, "little", signed=True)
    _write(Path(path), count + np.array(entries, _presets(width)).tobytes())


def unknown_voice(
    name: str, model_type: str, speakers: Iterable[str], presets: Iterable[str] | None = None
) -> UnknownVoice:
    """Return the error for an unknown voice, which lists the known ones and gives a hint.

    Args:
        presets: names of other voices; None: the caller did not look for any.
    """
    known = f"This model has: {listed(speakers, name)}."
    if presets is not None:
        known += f" Presets: {listed(presets, name)}."
    hints = {
        "base": "Leave voice out, or clone one from a recording.",
        "voice_design": "Leave voice out and describe it with instruct.",
    }
    hint = did_you_mean(name, [*speakers, *(presets or ())]) or hints.get(model_type, "")
    if "+" in name:
        hint = 'A mix is written as in "anna(2)+ben", with weights of 0 or more.'
    return UnknownVoice(f'Unknown voice "{printable(name)}". {known}', hint=hint)


def _write(path: Path, data: bytes) -> None:
    # A voice is enough to speak like its speaker, so other users may not read the file.
    with writing(path.name), replacing(path, 0o600) as partial:
        partial.write_bytes(data)
