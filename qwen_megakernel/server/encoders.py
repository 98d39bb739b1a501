"""Encoders of samples, piece by piece, for clients that play while the engine speaks.

FLAC, MP3 and Opus are encoded by libsndfile (soundfile), AAC by FFmpeg (PyAV). A stream cannot be
rewound, so the fields that a format completes at the end (lengths, checksums) stay unknown: players
take the file for a live stream.
"""

import io
import struct
from typing import Any, Protocol

import numpy as np

from qwen_megakernel.audio import SUBTYPES, new_sound_file, to_float32, to_g711
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
_WAV_TAGS = {"ulaw": 7, "alaw": 6, "float": 3}  # encodings that are not PCM (RFC 2361)
_WIDTHS = {"pcm": 2, "float": 4, "ulaw": 1, "alaw": 1}  # bytes of a sample


class Encoder(Protocol):
    """Turns samples into a stream of bytes."""

    blocks: bool  # encoding takes milliseconds, too long for the event loop

    def encode(self, samples: np.ndarray) -> bytes:
        """Return the bytes that are ready, if any, after these samples, [num_samples] int16."""

    def finish(self) -> bytes:
        """Return the last bytes."""


def new_encoder(
    response_format: str,
    rate: int,
    opus_kbits: int = OPUS_KBITS,
    encoding: str = "pcm",
    comment: str = "",
    mp3_kbits: int = MP3_KBITS,
) -> Encoder:
    """Return an encoder for one stream.

    Args:
        response_format: a key of `MEDIA_TYPES`.
        opus_kbits, mp3_kbits: the bit rates of opus and mp3 in kbit/s; the nearest that mp3 has at
            `rate` is taken.
        encoding: encoding of the samples of wav; for pcm, "float" instead of its 16 bits.
        comment: what the file says of its audio, where its format has a place; empty: nothing.
    Raises:
        MissingPackageError: the format is AAC, and PyAV is not installed.
    """
    assert response_format in MEDIA_TYPES
    if response_format == "pcm":
        return PcmEncoder(encoding)
    if response_format in ("ulaw", "alaw"):
        return G711Encoder(response_format)
    if response_format == "wav":
        return WavEncoder(rate, encoding, comment)
    if response_format == "aac":
        return AacEncoder(rate)
    return SndfileEncoder(response_format, rate, opus_kbits, comment, mp3_kbits)


def wav_header(
    rate: int, num_bytes: int = _UNKNOWN_BYTES, encoding: str = "pcm", comment: str = ""
) -> bytes:
    """Return the header of a WAV file with mono samples; 44 bytes for 16 bits without a comment.

    Args:
        num_bytes: length of the samples; the default means that it is not yet known.
        comment: what the file says of its audio, as a chunk LIST INFO; empty: nothing.
    """
    width = _WIDTHS[encoding]
    tag = _WAV_TAGS.get(encoding, 1)
    # One channel, samples per second, bytes per second, bytes and bits of a sample.
    layout = struct.pack("<HHIIHH", tag, 1, rate, width * rate, width, 8 * width)
    fact = b""
    if encoding in _WAV_TAGS:  # not PCM: an extension's length and a sample count follow
        num_samples = num_bytes if num_bytes == _UNKNOWN_BYTES else num_bytes // width
        layout += struct.pack("<H", 0)
        fact = b"fact" + struct.pack("<II", 4, num_samples)
    if comment:
        words = comment.encode() + bytes(2 - len(comment.encode()) % 2)  # ends with zero, and even
        fact += b"LIST%sINFOICMT" % struct.pack("<I", 12 + len(words))
        fact += struct.pack("<I", len(words)) + words
    head = b"WAVEfmt %s%s%s" % (struct.pack("<I", len(layout)), layout, fact)
    total = min(len(head) + 8 + num_bytes, _UNKNOWN_BYTES)
    return b"RIFF%s%sdata%s" % (struct.pack("<I", total), head, struct.pack("<I", num_bytes))


def encode_whole(
    response_format: str,
    samples: np.ndarray,
    rate: int,
    opus_kbits: int = OPUS_KBITS,
    encoding: str = "pcm",
    mark: Marking = UNMARKED,
    mp3_kbits: int = MP3_KBITS,
) -> bytes:
    """Return a complete file, with its lengths and marks, of [num_samples] int16 at `rate`."""
    if response_format == "wav" and encoding in ("pcm", "float"):
        pcm = PcmEncoder(encoding).encode(samples)
        data = wav_header(rate, len(pcm), encoding, mark.comment) + pcm
    elif response_format in ("wav", "flac", "mp3", "opus"):
        file, kbits = io.BytesIO(), (opus_kbits, mp3_kbits)
        options = _sndfile_options(response_format, rate, *kbits, encoding)
        with new_sound_file(file, rate, mark.comment, **options) as writer:
            writer.write(samples)
        data = file.getvalue()
    else:
        encoder = new_encoder(response_format, rate, encoding=encoding)
        data = encoder.encode(samples) + encoder.finish()
    if mark.signer and response_format in SIGNED_FORMATS:
        data = mark.signer.sign(data, response_format)
    return data


def _sndfile_options(
    response_format: str, rate: int, opus_kbits: int, mp3_kbits: int, encoding: str = "pcm"
) -> dict[str, Any]:
    """Return libsndfile's names of container and codec, and the bit rate as a level from 0 to 1.

    MP3 has a constant bit rate, so that players compute its length from the size; with a variable
    rate they would need the table that is written at the end.
    """
    if response_format == "wav":
        return {"format": "WAV", "subtype": SUBTYPES[encoding]}
    if response_format == "flac":
        return {"format": "FLAC", "subtype": "PCM_16"}
    if response_format == "opus":
        level = (MAX_OPUS_KBITS - opus_kbits) / (MAX_OPUS_KBITS - MIN_OPUS_KBITS)
        return {"format": "OGG", "subtype": "OPUS", "compression_level": level}
    least, most = next(kbits for first, kbits in _MP3_KBITS_FROM.items() if rate >= first)
    level = (most - min(max(mp3_kbits, least), most)) / (most - least)
    level = min(level, 0.999)  # libsndfile refuses 1, its lowest bit rate
    codec = {"format": "MP3", "subtype": "MPEG_LAYER_III", "bitrate_mode": "CONSTANT"}
    return codec | {"compression_level": level}


class PcmEncoder:
    """Raw little-endian samples: 16 bits, or 32-bit floats with full scale at 1."""

    blocks = False

    def __init__(self, encoding: str):
        self._is_float = encoding == "float"

    def encode(self, samples: np.ndarray) -> bytes:
        if self._is_float:
            return to_float32(samples).astype("<f4", copy=False).tobytes()
        return samples.astype("<i2", copy=False).tobytes()

    def finish(self) -> bytes:
        return b""


class G711Encoder:
    """The raw 8 bits of each sample."""

    blocks = False

    def __init__(self, encoding: str):
        self._encoding = encoding

    def encode(self, samples: np.ndarray) -> bytes:
        return to_g711(samples, self._encoding)

    def finish(self) -> bytes:
        return b""


class WavEncoder:
    """A header of unknown length, then the samples."""

    blocks = False

    def __init__(self, rate: int, encoding: str, comment: str):
        self._header = wav_header(rate, encoding=encoding, comment=comment)
        is_g711 = encoding in ("ulaw", "alaw")
        self._samples = G711Encoder(encoding) if is_g711 else PcmEncoder(encoding)

    def encode(self, samples: np.ndarray) -> bytes:
        header, self._header = self._header, b""
        return header + self._samples.encode(samples)

    def finish(self) -> bytes:
        """Return the header if there were no samples at all."""
        return self._header


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


class SndfileEncoder:
    """FLAC, MP3 or Opus in Ogg by libsndfile.

    Each holds samples back until a block is full: FLAC 170 ms, MP3 about 50 ms, an Ogg page 1 s.
    """

    blocks = True

    def __init__(
        self, response_format: str, rate: int, opus_kbits: int, comment: str, mp3_kbits: int
    ):
        self._sink = _Growing()
        options = _sndfile_options(response_format, rate, opus_kbits, mp3_kbits)
        self._file = new_sound_file(self._sink, rate, comment, **options)

    def encode(self, samples: np.ndarray) -> bytes:
        self._file.write(samples)
        return self._sink.take()

    def finish(self) -> bytes:
        self._file.close()
        return self._sink.take()


class AacEncoder:
    """AAC in ADTS frames by FFmpeg."""

    blocks = True

    def __init__(self, rate: int):
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
        self._stream = self._container.add_stream("aac", rate=rate, layout="mono")
        self._stream.bit_rate = 1000 * _AAC_KBITS
        self._rate, self._num_samples = rate, 0

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
