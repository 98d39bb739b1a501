"""Voices over HTTP: the list, the choice by name, and recordings from untrusted clients.

Clients name voices, never files: a path in `voice` or a URL in `ref_audio` is refused, so no client
reads this machine's files or makes it call other machines.
"""

import asyncio
import base64
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from qwen_megakernel.cloning import recordings
from qwen_megakernel.cloning.mixing import mix_of, parts_of_mix
from qwen_megakernel.errors import EngineBusy, RecordingError, UnknownVoice, UsageError, listed
from qwen_megakernel.printable import get_logger, printable
from qwen_megakernel.server.error_responses import ApiError, naming
from qwen_megakernel.server.settings import ServerSettings
from qwen_megakernel.sound.detection import Detection, detect
from qwen_megakernel.voice import VOICE_SUFFIX, Voice, composed_name, is_uploaded, new_name

logger = get_logger(__name__)
_Result = TypeVar("_Result")

# Names that OpenAI's clients send by default.
OPENAI_VOICES = frozenset(
    {"alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx"}
    | {"sage", "shimmer", "verse"}
)

_CONTAINERS = ("WAV", "WAVEX", "FLAC", "OGG", "MP3")  # accepted formats, by libsndfile's names
_BASE64_PIECE_BYTES = 1 << 20  # decoded at once; a multiple of 4
_MAX_CHANNELS = 8
_MAX_RATE = 384_000  # the highest of studio equipment; an Ogg file may state any rate


class VoiceStore:
    """The voices of one `TTSEngine`, as its clients may use them."""

    def __init__(self, engine: Any, settings: ServerSettings):
        self._engine, self._settings = engine, settings
        self._working = asyncio.Lock()  # one recording at a time: cloning takes all cores
        self._num_working = 0
        self._admitting = asyncio.Lock()  # while uploads are counted, none begins
        self._uploading: set[str] = set()  # keys of the names of voices being made

    def find(
        self, name: str | None, *, x_vector_only: bool = False
    ) -> tuple[str | Voice | None, str | None]:
        """Return the engine's `voice` for the one that a client names, and a warning or None.

        Args:
            x_vector_only: use a cloned voice without its recording and transcript.
        Raises:
            UnknownVoice: no voice has that name; lists the voices.
        """
        if name is None:
            return None, None
        name = self._settings.voice_aliases.get(name, name)
        if (stored := self._stored(name)) is not None:
            voice = self._engine.find_voice(stored)
            if x_vector_only and isinstance(voice, Voice):
                voice = voice.x_vector_only()
            return voice, None
        if mixed := mix_of(name, lambda each: self.find(each, x_vector_only=x_vector_only)[0]):
            return mixed, None
        is_openai = _key(name) in OPENAI_VOICES
        if is_openai:
            if self._engine.default_voice is None:
                return None, f'voice "{name}" is ignored: this model has no speakers'
            if self._settings.voice_fallback is not None:
                fallback = self._settings.voice_fallback
                return fallback, f'voice "{name}" is spoken by "{fallback}"'
        known = self._engine.voices
        raise UnknownVoice(
            f'Unknown voice "{printable(name)}". This model has: {listed(known, name)}.',
            "Start the server with --voice-fallback NAME for OpenAI's voices." if is_openai else "",
            hint="GET /v1/audio/voices lists the names." if known else "Leave voice out.",
        )

    def find_foreign(self, voice_id: str) -> tuple[str | None, str | None]:
        """Find the voice for another vendor's id of one; an alias, a name of ours, or any id.

        Returns:
            The name of a voice of the engine, or None if it has no speakers; and a warning or None.
        Raises:
            UnknownVoice: no voice has that id or name, and no fallback is set.
        """
        try:
            self.find(voice_id)
        except UnknownVoice as error:
            fallback = self._settings.voice_fallback
            if fallback is None and self._engine.default_voice is not None:
                hint = "Start the server with --voice-alias ID=NAME, or with --voice-fallback NAME."
                raise UnknownVoice(error.what, error.hint, hint) from error
            spoken_by = f'spoken by "{fallback}"' if fallback else "ignored: this model has none"
            return fallback, f'voice "{printable(voice_id)}" is {spoken_by}'
        return self._settings.voice_aliases.get(voice_id, voice_id), None

    def listing(self) -> dict[str, Any]:
        """Return the body of GET /v1/audio/voices: objects, since clients read `id` and `name`."""
        uploaded, default = self._uploaded(), self._engine.default_voice
        voices = [_entry(name, uploaded=name in uploaded) for name in self._engine.voices]
        for voice in voices:
            voice |= {"default": True} if voice["id"] == default else {}
        known = [voice for voice in voices if voice["uploaded"]]
        listed = {"object": "list", "voices": voices, "data": voices, "uploaded_voices": known}
        return listed | {"languages": self._engine.languages}

    async def clone(self, recording: bytes, transcript: str | None, name: str) -> Voice:
        """Clone the voice of a client's recording.

        Raises:
            RecordingError, TaskError: see `VoiceLibrary.create`; or the file is not accepted.
            ApiError, EngineBusy: the file is too large, or too many recordings are waiting.
        """

        def work(samples: np.ndarray, rate: int) -> Voice:
            return self._engine.create_voice(samples, transcript, rate=rate, name=name)

        return await self._work_on(recording, work)

    async def detect(self, recording: bytes) -> Detection:
        """Look for marks in a client's recording, at its own speed; raises as `clone` does."""
        key = self._engine.mark.key

        def work(samples: np.ndarray, rate: int) -> Detection:
            recordings.check_values(samples, "The recording")
            return detect(recording, samples, rate, key, search_speeds=False)

        return await self._work_on(recording, work)

    async def _work_on(
        self, recording: bytes, work: Callable[[np.ndarray, int], _Result]
    ) -> _Result:
        """Decode a client's recording and work on its samples, in threads, one at a time."""
        limit, most = self._settings.max_queue, self._settings.max_upload_bytes
        if len(recording) > most:
            what = f"The recording has {len(recording)} bytes; the limit is {most}."
            raise ApiError(413, what, "too_large")
        if self._num_working > limit:
            raise EngineBusy(f"{limit + 1} recordings are in work or waiting, which is the limit.")
        self._num_working += 1
        try:
            async with self._working:
                samples, rate = await asyncio.to_thread(_decode, recording)
                return await asyncio.to_thread(work, samples, rate)
        finally:
            self._num_working -= 1

    async def decode_reference(self, ref_audio: str) -> bytes:
        """Decode the recording in `ref_audio`: base64, with or without a "data:" head.

        White space in the base64 is left out, because `base64` and MIME break lines.

        Raises:
            RecordingError: it is a URL or not base64.
        """
        head, comma, body = ref_audio.partition(",")
        if comma and head.startswith("data:"):
            if not head.endswith(";base64"):
                raise RecordingError(f"ref_audio is a data URL without base64: {printable(head)}.")
        elif "://" in ref_audio[:16]:
            raise RecordingError(
                f"ref_audio is a URL ({printable(ref_audio)}).",
                "This server downloads nothing for its clients.",
                "Send the recording itself, as base64.",
            )
        else:
            body = ref_audio
        try:
            return await asyncio.to_thread(_from_base64, body)
        except ValueError as error:
            raise RecordingError(f"ref_audio is not base64: {error}.") from error

    async def upload(
        self, recording: bytes, name: str, transcript: str | None, consent: str
    ) -> dict[str, Any]:
        """Clone a voice, keep it under `name` with its speaker's `consent`, and return its entry.

        Raises:
            ApiError: 409, the name is taken, or there are `max_uploads` uploaded voices; 400, a
                voice cannot have the name.
        """
        with naming("name"):
            name = new_name(name)  # before any work
            if parts_of_mix(name):
                raise UsageError(f'"{name}" cannot be a voice\'s name; it means a mix of voices.')
        if not consent.strip():
            raise ApiError.about("consent", "consent is blank.", hint="Write who has agreed.")
        key, limit = _key(name), self._settings.max_uploads
        async with self._admitting:
            uploads = set(self._uploading)  # of those that end meanwhile the list may lack the file
            uploads |= {_key(each) for each in await asyncio.to_thread(self._uploaded)}
            taken = {_key(each) for each in self._engine.voices} | OPENAI_VOICES | self._uploading
            if key in taken:
                raise ApiError(409, f'A voice "{name}" exists already.', "voice_exists", "name")
            if len(uploads) >= limit:
                what = f"Clients have uploaded {len(uploads)} voices (limit {limit}). Delete one, "
                what += "or start the server with a greater --max-uploads."
                raise ApiError(409, what, "too_many_voices")
            self._uploading.add(key)
        try:
            voice = await self.clone(recording, transcript, name)
            voice = replace(voice, consent=consent, is_uploaded=True)
            await asyncio.to_thread(voice.save, self._folder / f"{name}{VOICE_SUFFIX}")
        finally:
            self._uploading.discard(key)
        logger.info('Voice "%s" was uploaded.', name)
        return _entry(name, uploaded=True)

    def delete(self, name: str) -> None:
        """Delete an uploaded voice; raises `ApiError` (404, 403) for the name of no such voice."""
        stored = self._stored(name)
        if stored is None:
            raise ApiError(404, f'No voice is called "{printable(name)}".', "not_found")
        if stored not in self._uploaded():
            what = f'The voice "{stored}" was not uploaded by a client, so clients may not delete'
            what += " it. The owner of the server can delete its file."
            raise ApiError(403, what, "voice_not_uploaded")
        (self._folder / f"{stored}{VOICE_SUFFIX}").unlink(missing_ok=True)
        logger.info('Voice "%s" was deleted.', stored)

    def _stored(self, name: str) -> str | None:
        """Return the engine's name of a voice, which may differ in case; None: there is none."""
        known = self._engine.voices
        alike = [name] if name in known else [each for each in known if _key(each) == _key(name)]
        return alike[0] if alike else None

    @property
    def _folder(self) -> Path:
        assert self._settings.voices is not None
        return Path(self._settings.voices)

    def _uploaded(self) -> set[str]:
        if self._settings.voices is None:
            return set()
        files = self._folder.glob(f"[!.]*{VOICE_SUFFIX}")
        return {path.name.removesuffix(VOICE_SUFFIX) for path in files if is_uploaded(path)}


def _key(name: str) -> str:
    """Return what names have in common that mean the same voice."""
    return composed_name(name).casefold()


def _entry(name: str, *, uploaded: bool) -> dict[str, Any]:
    return {"id": name, "name": name, "object": "voice", "uploaded": uploaded}


def _from_base64(text: str) -> bytes:
    """Decode base64, without the white space in it.

    It is decoded in pieces, because other threads, such as the event loop's, wait for each call.
    """
    data = b"".join(text.encode("ascii").split())
    begins = range(0, len(data), _BASE64_PIECE_BYTES)
    pieces = [data[begin : begin + _BASE64_PIECE_BYTES] for begin in begins]
    if any(piece.endswith(b"=") for piece in pieces[:-1]):
        raise ValueError("it goes on after its end")
    return b"".join(base64.b64decode(piece, validate=True) for piece in pieces)


def _decode(recording: bytes) -> tuple[np.ndarray, int]:
    """Return [num_samples] float32 mono and the rate of an untrusted file.

    Rate and channels are checked before decoding, since a small file can contain a gigabyte of
    silence, and decoding ends at the longest length that is allowed.
    """
    hint = f"Send WAV, FLAC, OGG or MP3, with {_MAX_CHANNELS} channels at most; "
    hint += "FFmpeg makes one of any other file."
    try:
        with recordings.opened(io.BytesIO(recording)) as file:
            container, rate, channels = file.format, file.samplerate, file.channels
            if container not in _CONTAINERS or not 1 <= channels <= _MAX_CHANNELS:
                what = f"The recording is {container} with {channels} channels."
                raise RecordingError(what, hint=hint)
            if rate > _MAX_RATE:
                what = f"The recording has {rate} samples per second; the limit is {_MAX_RATE}."
                raise RecordingError(what)
            return recordings.decode(file, recordings.MAX_SECONDS), rate
    except (OSError, RuntimeError, ValueError, MemoryError) as error:
        if isinstance(error, RecordingError):
            raise
        what = f"The recording cannot be read as audio: {recordings.why_unreadable(error)}."
        raise RecordingError(what, hint=hint) from error
