"""Encoders of samples, piece by piece, for clients that play while the engine speaks.

FLAC, MP3 and Opus are encoded by libsndfile (soundfile), AAC by FFmpeg (PyAV). A stream cannot be
rewound, so the fields that a format completes at the end (lengths, checksums) stay unknown: players
take the file for a live stream.
"""

import io
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from qwen_megakernel.audio import new_sound_file, to_float32, to_g711
from qwen_megakernel.content_credentials import SIGNED_FORMATS
from qwen_megakernel.errors import MissingPackageError
from qwen_megakernel.marking import UNMARKED, Marking
from qwen_megakernel.server.settings import (
    MAX_OPUS_KBITS,
    MEDIA_TYPES,
    MIN_OPUS_KBITS,
    MP3_KBITS,
    OPUS_KBITS,
)

_AAC_KBITS = 64
# Lowest and highest kbit/s of MPEG-1, MPEG-2 and MPEG-2.5, by the lowest sample rate of each.
_MP3_KBITS_FROM = {32000: (32, 320), 16000: (8, 160), 0: (8, 64)}
_UNKNOWN_BYTES = 0xFFFFFFFF  # length of a WAV that is still being made
_SILENCE = np.zeros(1, np.int16)  # libsndfile writes no file, or a broken one, without samples
# Encoding -> its tag in a WAV file (RFC 2361; 1 is PCM), and bytes of a sample.
_WAV_FORMS = {"pcm": (1, 2), "float": (3, 4), "alaw": (6, 1), "ulaw": (7, 1)}


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """The form of the audio that a client gets.

    Args:
        name: a key of `MEDIA_TYPES`.
        rate: samples per second; 0 in what a client asks for: the server's choice.
        encoding: encoding of the samples of wav; for pcm, "float" instead of its 16 bits.
        kbits: the bit rate of opus, mp3 or aac in kbit/s, or the nearest that the format has; None:
            the default.
    """

    name: str
    rate: int = 0
    encoding: str = "pcm"
    kbits: int | None = None

    @property
    def media_type(self) -> str:
        return MEDIA_TYPES[self.name]

    def encoder(self, comment: str = "") -> "Encoder":
        """Return an encoder for one stream.

        Args:
            comment: what the file says of its audio, where its format has a place.
        Raises:
            MissingPackageError: the format is AAC, and PyAV is not installed.
        """
        if self.name == "wav":
            header = wav_header(self.rate, encoding=self.encoding, comment=comment)
            return Encoder(self.encoding, header)
        if self.name in ("pcm", "ulaw", "alaw"):
            return Encoder(self.encoding if self.name == "pcm" else self.name)
        return AacEncoder(self) if self.name == "aac" else SndfileEncoder(self, comment)

    def file(self, samples: np.ndarray, mark: Marking = UNMARKED) -> bytes:
        """Return a complete file, with its lengths and marks, of [num_samples] int16."""
        if self.name == "wav":
            data = Encoder(self.encoding).encode(samples)
            header = wav_header(self.rate, len(data), self.encoding, mark.comment)
            data = header + data + bytes(len(data) % 2)  # chunks begin at even places
        elif self.name in ("pcm", "ulaw", "alaw", "aac"):
            encoder = self.encoder()
            data = encoder.encode(samples) + encoder.finish()
        else:
            file = io.BytesIO()
            with new_sound_file(file, self.rate, mark.comment, **self.sndfile_options()) as writer:
                writer.write(samples if len(samples) else _SILENCE)
            data = file.getvalue()
        if mark.signer and self.name in SIGNED_FORMATS:
            data = mark.signer.sign(data, self.name)
        return data

    def sndfile_options(self) -> dict[str, Any]:
        """Return libsndfile's names of container and codec, and the bit rate as a level, 0 to 1.

        MP3 has a constant bit rate, so that players compute its length from the size; with a
        variable rate they would need the table that is written at the end.
        """
        if self.name == "flac":
            return {"format": "FLAC", "subtype": "PCM_16"}
        if self.name == "opus":
            kbits = min(max(self.kbits or OPUS_KBITS, MIN_OPUS_KBITS), MAX_OPUS_KBITS)
            level = (MAX_OPUS_KBITS - kbits) / (MAX_OPUS_KBITS - MIN_OPUS_KBITS)
            return {"format": "OGG", "subtype": "OPUS", "compression_level": level}
        least, most = next(kbits for first, kbits in _MP3_KBITS_FROM.items() if self.rate >= first)
        level = (most - min(max(self.kbits or MP3_KBITS, least), most)) / (most - least)
        level = min(level, 0.999)  # libsndfile refuses 1, its lowest bit rate
        codec = {"format": "MP3", "subtype": "MPEG_LAYER_III", "bitrate_mode": "CONSTANT"}
        return codec | {"compression_level": level}


class Encoder:
    """Turns samples into a stream of bytes; this one sends a header, then the samples as they are.

    Args:
        encoding: pcm (16 bits), float (32 bits, full scale at 1), ulaw or alaw.
    """

    blocks = False  # encoding takes milliseconds, too long for the event loop

    def __init__(self, encoding: str, header: bytes = b""):
        self._encoding, self._header = encoding, header

    def encode(self, samples: np.ndarray) -> bytes:
        """Return the bytes that are ready, if any, after these samples, [num_samples] int16."""
        header, self._header = self._header, b""
        if self._encoding in ("ulaw", "alaw"):
            return header + to_g711(samples, self._encoding)
        if self._encoding == "float":
            return header + to_float32(samples).astype("<f4", copy=False).tobytes()
        return header + samples.astype("<i2", copy=False).tobytes()

    def finish(self) -> bytes:
        """Return the last bytes."""
        return self._header  # if there were no samples at all


def wav_header(
    rate: int, num_bytes: int = _UNKNOWN_BYTES, encoding: str = "pcm", comment: str = ""
) -> bytes:
    """Return the header of a WAV file with mono samples; 44 bytes for 16 bits without a comment.

    Args:
        num_bytes: length of the samples; the default means that it is not yet known.
        comment: what the file says of its audio, as a chunk LIST INFO; empty: nothing.
    """
    tag, width = _WAV_FORMS[encoding]
    # One channel, samples per second, bytes per second, bytes and bits of a sample.
    layout = struct.pack("<HHIIHH", tag, 1, rate, width * rate, width, 8 * width)
    if tag == 1:
        head = _chunk(b"fmt ", layout)
    else:  # not PCM: an extension's length and a sample count follow
        num_samples = num_bytes if num_bytes == _UNKNOWN_BYTES else num_bytes // width
        head = _chunk(b"fmt ", layout + bytes(2)) + _chunk(b"fact", struct.pack("<I", num_samples))
    if comment:
        words = comment.encode()
        words += bytes(2 - len(words) % 2)  # ends with zero, and even
        head += _chunk(b"LIST", b"INFO" + _chunk(b"ICMT", words))
    total = min(len(head) + 12 + num_bytes + num_bytes % 2, _UNKNOWN_BYTES)
    head = struct.pack("<4sI4s", b"RIFF", total, b"WAVE") + head
    return head + struct.pack("<4sI", b"data", num_bytes)


def _chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data


class _Growing(io.RawIOBase):
    """A file that only grows: it ignores writes over bytes that were already sent."""

    def __init__(self) -> None:
        self._position = self._end = 0
        self._fresh = bytearray()

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        fresh, self._fresh = bytes(self._fresh), bytearray()
        return fresh

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        old = min(self._end - self._position, len(data))  # bytes that were sent already
        self._fresh += data[old:]
        self._position += len(data)
        self._end = max(self._end, self._position)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._end}[whence]
        self._position = min(base + offset, self._end)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        return 0  # libsndfile looks for an old file to append to; there is none


class SndfileEncoder(Encoder):
    """FLAC, MP3 or Opus in Ogg by libsndfile.

    Each holds samples back until a block is full: FLAC 170 ms, MP3 about 50 ms, an Ogg page 1 s.
    """

    blocks = True

    def __init__(self, audio: AudioFormat, comment: str):
        self._sink = _Growing()
        self._file = new_sound_file(self._sink, audio.rate, comment, **audio.sndfile_options())

    def encode(self, samples: np.ndarray) -> bytes:
        self._file.write(samples)
        return self._sink.take()

    def finish(self) -> bytes:
        if not self._file.frames:
            self._file.write(_SILENCE)
        self._file.close()
        return self._sink.take()


class AacEncoder(Encoder):
    """AAC in ADTS frames by FFmpeg."""

    blocks = True

    def __init__(self, audio: AudioFormat):
        try:
            import av
        except ImportError as error:
            raise MissingPackageError(  # clients see it, so it names no folder of the server
                "aac needs the package av (PyAV).", hint="The server's extra [aac] has it."
            ) from error
        self._frame = av.AudioFrame.from_ndarray
        self._sink = _Growing()
        self._container = av.open(
            self._sink, "w", format="adts", container_options={"flush_packets": "1"}
        )
        self._stream = self._container.add_stream("aac", rate=audio.rate, layout="mono")
        self._stream.bit_rate = 1000 * (audio.kbits or _AAC_KBITS)
        self._rate, self._num_samples = audio.rate, 0

    def encode(self, samples: np.ndarray) -> bytes:
        if not len(samples):
            return b""
        frame = self._frame(samples.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts = self._rate, self._num_samples
        self._num_samples += len(samples)
        self._container.mux(self._stream.encode(frame))
        return self._sink.take()

    def finish(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.take()
