"""The Wyoming server, which speaks for Home Assistant and other Wyoming clients.

It shares the HTTP server's engine, queue, limits and metrics (`serve --wyoming-port`). The protocol
has no authentication, so bind it to loopback or to a network you trust.

A session answers its client's requests in order. The text of `synthesize-start`, `-chunk` and
`-stop` goes to the engine as it arrives, so audio is sent before the text is complete. An error
closes the connection: Home Assistant waits for the end of the audio and ignores errors.

Source: homeassistant/components/wyoming/tts.py; in a streamed request Home Assistant also sends the
whole text as `synthesize`, for old servers.
"""

import asyncio
import contextlib
import functools
import secrets
import socket
from typing import Any

from pydantic import ValidationError
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, async_read_event, async_write_event
from wyoming.info import Attribution, Describe, Info, TtsProgram, TtsVoice
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
)

from qwen_megakernel import __version__
from qwen_megakernel.errors import EngineBusy, QwenTTSError, UsageError
from qwen_megakernel.printable import get_logger, printable
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.error_responses import ApiError
from qwen_megakernel.server.responses import sent
from qwen_megakernel.server.schemas import (
    SpeechPlan,
    SpeechSettings,
    check_json_values,
    check_length,
)
from qwen_megakernel.server.service import Service
from qwen_megakernel.server.settings import ACCEPTS
from qwen_megakernel.server.utterance import Speaker, Utterance
from qwen_megakernel.text.languages import code_of_language

logger = get_logger(__name__)

MAX_CLIENTS = 64
DEFAULT_VOICE = "default"  # clients need a voice to choose, even if the checkpoint has none
# The protocol's formats of a text, and the engine's names of them.
TEXT_FORMATS = {None: "plain", "text": "plain", "ssml": "ssml"}
MAX_EVENT_BYTES = 1 << 20


class WyomingServer:
    """Accepts Wyoming clients.

    Args:
        listener: a listening socket, which `close` closes.
    """

    def __init__(self, service: Service, listener: socket.socket):
        self._service, self._listener = service, listener
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to accept clients; returns at once."""
        self._server = await asyncio.start_server(
            self._accept, sock=self._listener, backlog=ACCEPTS
        )

    async def close(self) -> None:
        """Stop accepting clients and close every connection."""
        if self._server:
            self._server.close()
        clients = list(self._clients)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = Session(self._service, reader, writer)
        what = f"{MAX_CLIENTS} Wyoming clients are connected (limit {MAX_CLIENTS})."
        full = EngineBusy(what) if len(self._clients) >= MAX_CLIENTS else None
        client = asyncio.create_task(session.refuse(full) if full else session.run())
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)


class Session:
    """Reads events, while a second task sends the audio."""

    def __init__(
        self, service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ):
        self._service, self._settings = service, service.settings
        self._reader, self._writer = _BoundedReader(reader), writer
        self._idle = asyncio.timeout(None)  # limits the wait for the next event
        self._speaker = Speaker(asyncio.create_task, self._serve, self._expect_event)

    async def run(self) -> None:
        """Serve until the client disconnects, sends something wrong, or nothing for too long."""
        try:
            async with self._idle:
                await self._expect_event()
                try:
                    while event := await self._read():
                        await self._handle(event)
                        await self._expect_event()
                finally:
                    self._speaker.cancel()
                    if task := self._speaker.task:
                        task.cancel()
                        await asyncio.wait([task])
        except TimeoutError:
            limit = self._settings.idle_timeout_s
            await self.refuse(UsageError(f"The client sent nothing for {limit:g} s."))
        except ConnectionError as error:
            logger.debug("A Wyoming client is gone: %s", error)
        except Exception as error:
            await self.refuse(error)
        finally:
            await self._hang_up()

    async def refuse(self, error: Exception) -> None:
        """Log any error, send it if the client still reads, and close the connection."""
        text = ApiError.of(error).message
        if isinstance(error, QwenTTSError | ApiError | ValidationError):
            logger.warning("Wyoming: %s", " ".join(text.splitlines()))
        else:
            text = "Internal error; the server's log reports it."
            logger.error("Wyoming: a session failed.", exc_info=error)
        named = (isinstance(error, ApiError) and error.__cause__) or error
        with contextlib.suppress(ConnectionError):
            await self._send(Error(text=text, code=type(named).__name__).event())
        await self._hang_up()

    async def _hang_up(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(self._settings.stall_timeout_s):
                await self._writer.wait_closed()
        except OSError:  # the client disconnected first, or does not read the rest
            self._writer.transport.abort()

    # ---- events from the client ------------------------------------------------------------------

    async def _read(self) -> Event | None:
        """Return the next event, or None at the end; raises `UsageError` for anything else."""
        try:
            # `async_read_event` uses the two methods that `_BoundedReader` has.
            event = await async_read_event(self._reader)  # type: ignore[arg-type]
        except (AttributeError, KeyError, TypeError, RecursionError, EOFError) as error:
            # No object, no type, a length that is no number, nested too deep, cut off.
            raise UsageError(f"This is not a Wyoming event: {_shown(error)}.") from error
        except OSError as error:
            raise ConnectionAbortedError(str(error)) from error
        if event and not (isinstance(event.type, str) and isinstance(event.data, dict)):
            what = f"An event has type {_shown(event.type)} and data {_shown(event.data)}"
            raise UsageError(f"{what}; they must be a string and an object.")
        return event

    async def _handle(self, event: Event) -> None:
        if Describe.is_type(event.type):
            engine = self._service.engine
            await self._send(_info(engine).event(), **engine.mark.fields)
        elif Ping.is_type(event.type):
            try:
                await self._send(Pong(text=event.data.get("text")).event())
            except UnicodeEncodeError as error:  # half a surrogate pair
                raise UsageError(f"The ping is not Unicode text: {_shown(event.data)}.") from error
        elif Synthesize.is_type(event.type):
            if self._speaker.writing is None:  # otherwise it repeats the text of the chunks
                text = _text(event)
                check_length(len(text), self._settings)
                await (await self._begin(event, is_streamed=False)).feed(text)
                self._speaker.end()
        elif SynthesizeStart.is_type(event.type):
            if self._speaker.writing:
                what = "synthesize-start came before the synthesize-stop of the last text."
                raise UsageError(what)
            await self._begin(event, is_streamed=True)
        elif SynthesizeChunk.is_type(event.type) or SynthesizeStop.is_type(event.type):
            if self._speaker.writing is None:
                raise UsageError(f"{event.type} came before a synthesize-start.")
            if SynthesizeStop.is_type(event.type):
                self._speaker.end()
            elif text := _text(event):
                check_length(self._speaker.writing.num_chars + len(text), self._settings)
                await self._speaker.writing.feed(text)
        else:
            logger.debug("Wyoming: ignored an event %s.", event.type)

    async def _begin(self, event: Event, *, is_streamed: bool) -> Utterance:
        """Begin the text of an event when the one before it has been sent."""
        plan = await self._configure(event)
        if task := self._speaker.task:
            self._idle.reschedule(None)
            await asyncio.wait([task])
        return self._speaker.begin(
            Utterance(plan=plan, may_be_blank=False, is_streamed=is_streamed)
        )

    async def _configure(self, event: Event) -> SpeechPlan:
        """Return the plan for an event: voice, language and format of the text."""
        text_format, voice = event.data.get("text_format"), event.data.get("voice")
        if text_format not in (*TEXT_FORMATS,):
            known = ", ".join(filter(None, TEXT_FORMATS))
            raise UsageError(f"text_format is {_shown(text_format)}; known: {known}.")
        wanted = {} if voice is None else voice
        if not isinstance(wanted, dict) or {*map(type, wanted.values())} - {str, type(None)}:
            raise UsageError(f"voice is {_shown(wanted)}; it must be an object of strings.")
        name = wanted.get("name")
        if wanted.get("speaker"):
            shown, speaker = printable(str(name)), printable(wanted["speaker"])
            raise UsageError(f'Voice "{shown}" has no speakers, such as "{speaker}".')
        if name == DEFAULT_VOICE and not self._service.engine.voices:
            name = None
        fields = {"voice": name, "language": wanted.get("language"), "response_format": "pcm"}
        fields["text_format"] = TEXT_FORMATS[text_format]
        plan = await self._service.configure(SpeechSettings.model_validate(fields))
        for warning in plan.warnings:
            logger.warning("Wyoming: %s", warning)
        return plan

    async def _expect_event(self) -> None:
        """Limit the wait for the next event, unless the client only has to listen."""
        if self._idle.expired():
            return
        only_listens = self._speaker.task and self._speaker.writing is None
        now = asyncio.get_running_loop().time()
        self._idle.reschedule(None if only_listens else now + self._settings.idle_timeout_s)

    # ---- audio to the client ---------------------------------------------------------------------

    async def _serve(self, text: Utterance, sending: contextlib.ExitStack) -> None:
        """Send the audio of a text; an error closes the connection."""
        try:
            await text.speak(self._start, functools.partial(self._relay, text), sending)
        except ConnectionError as error:
            logger.debug("A Wyoming client disconnected during its speech: %s", error)
        except Exception as error:
            await self.refuse(error)
        self._speaker.waiting.popleft()

    async def _start(self, text: str | None, plan: SpeechPlan) -> ActiveSpeech:
        return await self._service.speak(text, plan, secrets.token_hex(16))

    async def _relay(self, text: Utterance, speaking: ActiveSpeech) -> None:
        rate, num_samples = speaking.record.sample_rate, 0
        sound = {"rate": rate, "width": 2, "channels": 1}
        await self._send(AudioStart(**sound).event(), **speaking.mark.fields)
        async for chunk in speaking.chunks():
            ms = 1000 * num_samples // rate
            await self._send(AudioChunk(**sound, audio=chunk.pcm16, timestamp=ms).event())
            num_samples += len(chunk.samples)
        names = ("finish_reason", "seed", "spoken_text", "warnings")
        facts = {name: value for name, value in speaking.facts().items() if name in names}
        await self._send(AudioStop(timestamp=1000 * num_samples // rate).event(), **facts)
        if text.is_streamed:
            await self._send(SynthesizeStopped().event())

    async def _send(self, event: Event, **facts: Any) -> None:
        """Send an event; raises `ConnectionError` if the client is gone or does not read.

        Args:
            facts: fields that the protocol does not have, which clients ignore.
        """
        event.data |= facts
        limit_s, abort = self._settings.stall_timeout_s, self._writer.transport.abort
        try:
            await sent(async_write_event(event, self._writer), limit_s, abort)
        except (OSError, RuntimeError) as error:  # asyncio's, and uvloop's for a closed transport
            raise ConnectionAbortedError(str(error)) from error


class _BoundedReader:
    """The methods of a StreamReader that the wyoming package uses, with limits on an event.

    The package takes any ValueError, such as that of wrong JSON, for the end of the connection.
    It parses JSON on the event loop, and a thread would hold Python's lock for as long.
    """

    def __init__(self, reader: asyncio.StreamReader):
        self._reader = reader
        self.readline = reader.readline  # it has a limit of its own, 64 KiB

    async def readexactly(self, num_bytes: int) -> bytes:
        if num_bytes > MAX_EVENT_BYTES:
            raise ValueError(f"{num_bytes} bytes; the limit is {MAX_EVENT_BYTES}")
        part = await self._reader.readexactly(num_bytes)
        check_json_values(part)  # or a payload, which no event for this server has
        return part


def _info(engine: Any) -> Info:
    """Return the program and its current voices."""
    languages = [code_of_language(name) or name for name in engine.languages[1:]]
    source = Attribution("Qwen team", "https://github.com/QwenLM/Qwen3-TTS")
    common: dict[str, Any] = {"attribution": source, "installed": True}
    voices = [
        TtsVoice(name=name, description=name, version=None, languages=languages, **common)
        for name in engine.voices or [DEFAULT_VOICE]
    ]
    about = common | {"description": engine.files.name, "version": __version__}
    about |= {"voices": voices, "supports_synthesize_streaming": True}
    return Info(tts=[TtsProgram(name="qwen_megakernel", **about)])


def _text(event: Event) -> str:
    text = event.data.get("text")
    if not isinstance(text, str):
        raise UsageError(f"{event.type} has text {_shown(text)}; it must be a string.")
    return text


def _shown(value: object) -> str:
    """Return a value of the client's as an error quotes it."""
    return printable(repr(value))
