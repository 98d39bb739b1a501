"""The server's settings: one record, checked when it is made."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from qwen_megakernel.choices import DIALECTS, MP3_RATES
from qwen_megakernel.errors import UsageError, check_choice, check_counts, check_seconds
from qwen_megakernel.speech_options import SoundOptions

# `response_format` -> media type of the answer. The names are OpenAI's.
MEDIA_TYPES = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "ulaw": "audio/pcmu",
    "alaw": "audio/pcma",
}

# The sample rates of formats that do not have every rate (RFC 7587 for Opus, ISO/IEC 14496-3 for
# AAC), within the limits of a request.
SAMPLE_RATES = {"mp3": MP3_RATES, "opus": (8000, 12000, 16000, 24000, 48000), "aac": MP3_RATES}

# kbit/s: Opus sounds like the original from 24 on (RFC 7587); libopus takes 6 to 256 for mono.
OPUS_KBITS = 32
MP3_KBITS = 64  # for one voice of 24 kHz, without music
MIN_OPUS_KBITS, MAX_OPUS_KBITS = 6, 256

ACCEPTS = 16  # connections that asyncio accepts before it runs anything else

_HOST = re.compile(r"\*|[\w.-]+|\[[\da-fA-F:.]+\]")
# A browser sends hosts in small letters, and no port that is the scheme's own.
_ORIGIN = re.compile(
    r"null|(?!http://.*:80$|https://.*:443$)[a-z][a-z\d+.-]*://([a-z\d._-]+|\[[\da-f:.]+\])(:\d+)?"
)


def host_name(host: str) -> str | None:
    """Return the name or address in a header Host, without its port; None: there is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # an incomplete IPv6 address
        return None


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits and switches of the server; the defaults suit one machine on loopback."""

    api_key: str | None = None  # required under /v1 and /metrics; None: no key is required
    max_queue: int = 8  # requests that may wait for a slot of the engine
    max_connections: int = 1000  # requests and WebSockets at the same time
    max_chars: int = 4096  # in `input`; OpenAI's limit
    max_body_bytes: int = 15 * 2**20  # in a request; fits `max_upload_bytes` in base64
    max_upload_bytes: int = 10 * 2**20  # in a recording, in an upload or in `ref_audio`
    max_buffered_bytes: int = 256 * 2**20  # in all requests and WebSocket messages
    default_format: str = "wav"
    opus_kbits: int = OPUS_KBITS  # bit rate of opus, kbit/s
    sound: SoundOptions = field(default_factory=SoundOptions)  # defaults of requests
    voice_fallback: str | None = None  # voice for requests that name one of OpenAI's voices
    dialects: tuple[str, ...] = DIALECTS  # hosted voices whose clients are served, too
    # Other names, such as their ids -> voices of the engine. For other ids `voice_fallback` speaks.
    voice_aliases: Mapping[str, str] = field(default_factory=dict)
    voices: Path | None = None  # the engine's folder of voice files, which uploads go to
    allow_upload: bool = False
    max_uploads: int = 1000  # uploaded voices in `voices`; other voices do not count
    allow_origins: tuple[str, ...] = ()  # origins of web pages that may call the server
    # Names of the server besides localhost, for the header Host; "*": every name. None at all:
    # other names are served except to connections over loopback.
    allow_hosts: tuple[str, ...] = ()
    deadline_s: float = 600.0  # from a request's arrival to its last byte
    body_timeout_s: float = 30.0  # for a client to send headers, and then the body
    stall_timeout_s: float = 30.0  # for a client to read one chunk
    buffer_s: float = 60.0  # seconds of audio kept for a client that reads slowly
    config_timeout_s: float = 10.0  # WebSocket: until the first session.config
    idle_timeout_s: float = 30.0  # WebSocket: between messages, while nothing is being spoken
    drain_timeout_s: float = 120.0  # for running streams after SIGTERM

    def __post_init__(self) -> None:
        for name in self.dialects:
            check_choice("dialects", name, DIALECTS)
        largest = max(self.max_body_bytes, self.max_upload_bytes)
        counts = {name for name in self.__slots__ if name.startswith("max_")} - {"max_queue"}
        check_counts(**{name: getattr(self, name) for name in sorted(counts)})
        if self.max_queue < 0:
            raise UsageError(f"max_queue is {self.max_queue}; it must be 0 or more.")
        if self.max_buffered_bytes < largest:
            raise UsageError(
                f"max_buffered_bytes is {self.max_buffered_bytes}; it must be {largest} or more, "
                "the largest body of one request."
            )
        for name in self.allow_hosts:
            if not _HOST.fullmatch(name):
                raise UsageError(
                    f"allow_hosts has {name!r}; it must be the name of a host alone, without "
                    "scheme, port or path, or an IPv6 address in brackets."
                )
        for origin in self.allow_origins:
            if not _ORIGIN.fullmatch(origin):
                raise UsageError(
                    f"allow_origins has {origin!r}; it must be an origin as a browser sends it: "
                    "scheme, host in small letters, and port, if that is not the scheme's own.",
                    hint="Such as https://page.example or http://localhost:3000.",
                )
        check_seconds(**{name: getattr(self, name) for name in self.__slots__ if name[-2:] == "_s"})
        check_choice("default_format", self.default_format, MEDIA_TYPES)
        rates = SAMPLE_RATES.get(self.default_format)
        if rates and self.sound.sample_rate not in (None, *rates):
            what = f"sample_rate is {self.sound.sample_rate} and the default format"
            known = ", ".join(map(str, rates))
            raise UsageError(f"{what} {self.default_format}, which has only {known}.")
        if not MIN_OPUS_KBITS <= self.opus_kbits <= MAX_OPUS_KBITS:
            must = f"it must be from {MIN_OPUS_KBITS} to {MAX_OPUS_KBITS}."
            raise UsageError(f"The bit rate of Opus is {self.opus_kbits} kbit/s; {must}")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.strip()):
            raise UsageError("The API key must be ASCII text and not empty.")
        if self.allow_upload and self.voices is None:
            what = "Uploads are allowed, but no folder of voices is given."
            raise UsageError(what, hint="Name one with --voices DIR.")
