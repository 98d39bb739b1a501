"""Wyoming server: the voice of Home Assistant, or of any other Wyoming client.

A connection is one client, whose requests are answered in order. The text of `synthesize-start`,
`-chunk` and `-stop` goes to the engine as it comes, so audio leaves before the text is complete.
After an error the connection is closed: Home Assistant waits for the end of the audio and does not
look at errors. The protocol knows no authentication, so bind it to loopback or a network you trust.

Source: the protocol's own description, and what Home Assistant sends (homeassistant/components/
wyoming/tts.py): in a streamed request, the whole text once more as `synthesize`, for old servers.
"""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

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
from qwen_megakernel.errors import (
    EngineBusy,
    EngineClosed,
    GenerationError,
    OutputError,
    QwenTTSError,
    TaskError,
    TextTooLong,
    UsageError,
)
from qwen_megakernel.languages import AUTO, code_of_language

if TYPE_CHECKING:
    from qwen_megakernel.speech_stream import SpeechStream
    from qwen_megakernel.tts_engine import TTSEngine

logger = logging.getLogger(__name__)

DEFAULT_PORT = 10200  # Home Assistant's own servers of speech use it
DEFAULT_VOICE = "default"  # a client needs a voice to choose, also where the checkpoint has none

MAX_CLIENTS = 64
MAX_EVENT_BYTES = 1 << 20
IDLE_TIMEOUT_S = 60.0  # without an event while we are waiting for one
AUDIO_TIMEOUT_S = 120.0  # the engine, for the next chunk; its queue is part of that
WRITE_TIMEOUT_S = 30.0  # a client that reads nothing keeps its slot no longer than this


class WyomingServer:
    """Speaks for Wyoming clients, all with one engine.

    Args:
        engine: shared with whoever else uses it; it is not closed here.
        max_chars: of text in one request.
    """

    def __init__(self, engine: "TTSEngine", *, max_chars: int = 4096):
        self.engine, self.max_chars = engine, max_chars
        self.is_closing = False
        self._listener: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[None], _Client] = {}

    async def start(self, host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> int:
        """Listen; returns the port, which the system picks for 0.

        Raises:
            OutputError: the address cannot be had; names it.
        """
        try:
            self._listener = await asyncio.start_server(self._accept, host, port)
        except OSError as error:
            raise OutputError(
                f"Cannot listen on {host}:{port} for Wyoming: {error.strerror or error}.",
                cure="Choose another port with --wyoming-port.",
            ) from error
        port = self._listener.sockets[0].getsockname()[1]
        logger.info("Wyoming on tcp://%s:%d.", host, port)
        return port

    async def close(self, grace_s: float = 0.0) -> None:
        """Accept nobody any more, let what is being spoken end for `grace_s`, then hang up."""
        self.is_closing = True
        if self._listener:
            self._listener.close()
        speeches = [client.speech for client in self._clients.values() if client.speech]
        if speeches:
            await asyncio.wait(speeches, timeout=grace_s)
        tasks = list(self._clients)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def info(self) -> Info:
        """Who we are and whom clients can choose; asked again by each `describe`."""
        languages = [code_of_language(name) or name for name in self.engine.languages[1:]]
        source = Attribution("Qwen team", "https://github.com/QwenLM/Qwen3-TTS")
        voices = [
            TtsVoice(
                name=name,
                attribution=source,
                installed=True,
                description=name,
                version=None,
                languages=languages,
            )
            for name in self.engine.voices or [DEFAULT_VOICE]
        ]
        program = TtsProgram(
            name="qwen_megakernel",
            attribution=source,
            installed=True,
            description=self.engine.files.name,
            version=__version__,
            voices=voices,
            supports_synthesize_streaming=True,
        )
        return Info(tts=[program])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(self, reader, writer)
        if len(self._clients) < MAX_CLIENTS:
            task = asyncio.create_task(client.run())
        else:
            error = EngineBusy(f"{MAX_CLIENTS} clients are connected already.")
            task = asyncio.create_task(client.refuse(error))
        self._clients[task] = client
        task.add_done_callback(self._clients.pop)


class _BoundedReader:
    """The part of a StreamReader that the wyoming package reads from, with a limit on its size.

    The package takes a ValueError, also of what is no JSON, for the end of the connection.
    """

    def __init__(self, reader: asyncio.StreamReader):
        self._reader = reader
        self.readline = reader.readline  # which has a limit of its own, 64 KiB

    async def readexactly(self, num_bytes: int) -> bytes:
        if num_bytes > MAX_EVENT_BYTES:
            raise ValueError(f"{num_bytes} bytes; the limit is {MAX_EVENT_BYTES}")
        return await self._reader.readexactly(num_bytes)


class _Client:
    """One connection: reads events here, while a task of its own sends the audio."""

    def __init__(
        self, server: WyomingServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ):
        self._server, self._writer = server, writer
        self._reader = _BoundedReader(reader)
        self.speech: asyncio.Task[None] | None = None
        self._stream: SpeechStream | None = None  # which `speech` sends
        self._start: Event | None = None  # synthesize-start of the text that is arriving
        self._takes_pieces = False  # `_stream` takes that text as it comes
        self._pieces: list[str] = []  # else it waits here
        self._num_chars = 0  # of that text
        self._idle: asyncio.Timeout | None = None

    async def run(self) -> None:
        """Serve until the client goes, errs, or says nothing for too long."""
        try:
            async with asyncio.timeout(IDLE_TIMEOUT_S) as self._idle:
                try:
                    while event := await self._read():
                        await self._handle(event)
                        self._expect_event()
                finally:
                    await self._stop_speaking()
        except TimeoutError:
            await self.refuse(UsageError(f"Nothing was sent for {IDLE_TIMEOUT_S:g} s."))
        except QwenTTSError as error:
            await self.refuse(error)
        except ConnectionError as error:
            logger.debug("A Wyoming client is gone: %s", error)
        finally:
            await self._hang_up()

    async def refuse(self, error: QwenTTSError) -> None:
        """Tell the error, as far as the client still reads, and hang up."""
        logger.warning("Wyoming: %s", error)
        with contextlib.suppress(ConnectionError):
            await self._send(Error(text=str(error), code=type(error).__name__).event())
        await self._hang_up()

    async def _hang_up(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._writer.wait_closed()
        except OSError:  # it went first, or does not read what is left
            self._writer.transport.abort()

    async def _read(self) -> Event | None:
        """The next event; None: the client has hung up, or we have.

        Raises:
            UsageError: what came is no event.
        """
        try:
            event = await async_read_event(self._reader)
        except (AttributeError, KeyError, TypeError, RecursionError, EOFError) as error:
            # No object, no type, a length that is no number, too deep, cut off.
            raise UsageError(f"That is no Wyoming event: {error!r}.") from error
        if event and not (isinstance(event.type, str) and isinstance(event.data, dict)):
            raise UsageError(f"An event of type {event.type!r} whose data is {event.data!r}.")
        return event

    async def _handle(self, event: Event) -> None:
        if Describe.is_type(event.type):
            await self._send(self._server.info().event())
        elif Ping.is_type(event.type):
            await self._send(Pong(text=event.data.get("text")).event())
        elif Synthesize.is_type(event.type):
            if self._start is None:  # else it is the text of the chunks once more
                text = _text(event)
                self._check_length(len(text))
                await self._speak(event, text=text)
        elif SynthesizeStart.is_type(event.type):
            await self._begin_text(event)
        elif SynthesizeChunk.is_type(event.type):
            self._add_text(event)
        elif SynthesizeStop.is_type(event.type):
            await self._end_text(event)
        else:
            logger.debug("Wyoming: event %s is not for us.", event.type)

    async def _begin_text(self, event: Event) -> None:
        if self._start is not None:
            raise UsageError("synthesize-start before the synthesize-stop of the last one.")
        self._start, self._num_chars, self._pieces = event, 0, []
        try:
            await self._speak(event, text_open=True)
            self._takes_pieces = True
        except TaskError:  # a voice in context needs the whole text, or this voice cannot speak
            self._takes_pieces = False

    def _add_text(self, event: Event) -> None:
        if self._start is None:
            raise UsageError(f"{event.type} without a synthesize-start.")
        text = _text(event)
        self._num_chars += len(text)
        self._check_length(self._num_chars)
        if self._takes_pieces:
            self._stream.feed(text)
        else:
            self._pieces.append(text)

    async def _end_text(self, event: Event) -> None:
        if self._start is None:
            raise UsageError(f"{event.type} without a synthesize-start.")
        start, self._start = self._start, None
        if self._takes_pieces:
            self._stream.end_text()
        else:
            await self._speak(start, text="".join(self._pieces))

    def _check_length(self, num_chars: int) -> None:
        if num_chars > self._server.max_chars:
            raise TextTooLong(
                f"{num_chars} characters; limit {self._server.max_chars}.",
                cure="Split the text or raise --max-chars.",
            )

    async def _speak(self, event: Event, **text: Any) -> None:
        """Start the speech that `event` asks for, once the one before it has been sent."""
        if self.speech:
            self._idle.reschedule(None)
            await asyncio.wait([self.speech])
        if self._server.is_closing:
            raise EngineClosed("The server is shutting down.")
        self._stream = self._server.engine.stream(**text, **self._options(event))
        is_streamed = SynthesizeStart.is_type(event.type)
        self.speech = asyncio.create_task(self._send_speech(self._stream, is_streamed))
        self.speech.add_done_callback(self._spoken)

    def _options(self, event: Event) -> dict[str, Any]:
        """Options of `TTSEngine.stream`: who speaks, in which language."""
        if event.data.get("text_format") not in (None, "text"):
            raise UsageError(f"text_format is {event.data['text_format']!r}; only text is spoken.")
        wanted = event.data.get("voice")
        wanted = {} if wanted is None else wanted
        if not isinstance(wanted, dict) or not all(
            value is None or isinstance(value, str) for value in wanted.values()
        ):
            raise UsageError(f"voice is {wanted!r}; it must be an object of strings.")
        name = wanted.get("name")
        if wanted.get("speaker"):
            raise UsageError(f'Voice "{name}" has no speakers; "{wanted["speaker"]}" was asked.')
        if name == DEFAULT_VOICE and not self._server.engine.voices:
            name = None
        return {"voice": name, "language": wanted.get("language") or AUTO}

    async def _send_speech(self, stream: "SpeechStream", is_streamed: bool) -> None:
        """Send the audio of `stream`; a failure ends the connection."""
        sound = {"rate": self._server.engine.sample_rate, "width": 2, "channels": 1}
        num_samples = 0
        try:
            await self._send(AudioStart(**sound).event())
            while chunk := await self._next_chunk(stream):
                if chunk.num_frames:
                    ms = 1000 * num_samples // sound["rate"]
                    await self._send(AudioChunk(**sound, audio=chunk.pcm16, timestamp=ms).event())
                    num_samples += len(chunk.samples)
            end = AudioStop(timestamp=1000 * num_samples // sound["rate"]).event()
            # Not of the protocol, whose readers take what they know.
            end.data |= {"finish_reason": stream.finish_reason, "seed": stream.seed}
            await self._send(end)
            if is_streamed:
                await self._send(SynthesizeStopped().event())
        except QwenTTSError as error:
            await self.refuse(error)
        except ConnectionError as error:
            logger.debug("A Wyoming client does not hear its speech out: %s", error)
        finally:
            stream.close()

    async def _next_chunk(self, stream: "SpeechStream") -> Any:
        try:
            async with asyncio.timeout(AUDIO_TIMEOUT_S):
                return await anext(stream, None)
        except TimeoutError as error:
            raise GenerationError(f"No audio from the engine for {AUDIO_TIMEOUT_S:g} s.") from error

    async def _send(self, event: Event) -> None:
        """Raises ConnectionError: the client is gone, or takes nothing for `WRITE_TIMEOUT_S`."""
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await async_write_event(event, self._writer)
        except TimeoutError as error:
            self._writer.transport.abort()
            raise ConnectionAbortedError(f"Nothing was read for {WRITE_TIMEOUT_S:g} s.") from error

    def _expect_event(self) -> None:
        """Limit the wait for the next event, unless the client only has to listen."""
        if self._idle.expired():
            return
        only_listens = self.speech and not self.speech.done() and self._start is None
        limit = None if only_listens else asyncio.get_running_loop().time() + IDLE_TIMEOUT_S
        self._idle.reschedule(limit)

    def _spoken(self, speech: asyncio.Task[None]) -> None:
        self._expect_event()
        if not speech.cancelled() and (error := speech.exception()):
            logger.error("Wyoming: a speech failed.", exc_info=error)
            self._writer.close()

    async def _stop_speaking(self) -> None:
        if self.speech:
            self._stream.close()  # here too: a task that has not begun yet has nothing to clean up
            self.speech.cancel()
            await asyncio.wait([self.speech])


def _text(event: Event) -> str:
    text = event.data.get("text")
    if not isinstance(text, str):
        raise UsageError(f"{event.type} has text {text!r}; it must be a string.")
    return text
