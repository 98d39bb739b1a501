"""One Wyoming client: its events in, its audio out.

Requests are answered in order. The text of `synthesize-start`, `-chunk` and `-stop` goes to the
engine as it comes, so audio leaves before the text is complete. After an error the connection is
closed: Home Assistant waits for the end of the audio and does not look at errors.

Source: what Home Assistant sends (homeassistant/components/wyoming/tts.py): in a streamed request,
the whole text once more as `synthesize`, for old servers.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import Any

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, async_read_event, async_write_event
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
)

from qwen_megakernel.errors import DeadlineExceeded, QwenTTSError, TaskError, UsageError
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.schemas import SpeechSettings, check_length
from qwen_megakernel.server.service import Service

logger = logging.getLogger(__name__)

DEFAULT_VOICE = "default"  # a client needs a voice to choose, also where the checkpoint has none
MAX_EVENT_BYTES = 1 << 20


class Session:
    """Reads events here, while a task of its own sends the audio.

    Args:
        service: the engine, its door and its limits.
        info: what `describe` is answered with.
        reader, writer: the connection.
    """

    def __init__(
        self,
        service: Service,
        info: Callable[[], Info],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ):
        self._service, self._settings, self._info = service, service.settings, info
        self._reader, self._writer = _BoundedReader(reader), writer
        self._idle: asyncio.Timeout | None = None
        self._speaking: ActiveSpeech | None = None
        self._sending: asyncio.Task[None] | None = None  # the audio of `_speaking`
        self._options: dict[str, Any] | None = None  # of the text that is arriving
        self._takes_text = False  # `_speaking` takes that text as it comes
        self._pieces: list[str] = []  # else it waits here
        self._num_chars = 0  # of that text

    async def run(self) -> None:
        """Serve until the client goes, errs, or says nothing for too long."""
        try:
            async with asyncio.timeout(self._settings.idle_timeout_s) as self._idle:
                try:
                    while event := await self._read():
                        await self._handle(event)
                        self._expect_event()
                finally:
                    await self._stop_speaking()
        except TimeoutError:
            limit = self._settings.idle_timeout_s
            await self.refuse(UsageError(f"Nothing was sent for {limit:g} s."))
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
            async with asyncio.timeout(self._settings.stall_timeout_s):
                await self._writer.wait_closed()
        except OSError:  # it went first, or does not read what is left
            self._writer.transport.abort()

    # ---- what the client says --------------------------------------------------------------------

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
            await self._send(self._info().event())
        elif Ping.is_type(event.type):
            await self._send(Pong(text=event.data.get("text")).event())
        elif Synthesize.is_type(event.type):
            if self._options is None:  # else it is the text of the chunks once more
                text = _text(event)
                check_length(len(text), self._settings)
                await self._speak(text, await self._configure(event), is_streamed=False)
        elif SynthesizeStart.is_type(event.type):
            if self._options is not None:
                raise UsageError("synthesize-start before the synthesize-stop of the last one.")
            self._options = await self._configure(event)
            self._takes_text, self._pieces, self._num_chars = False, [], 0
        elif SynthesizeChunk.is_type(event.type):
            await self._take_text(event)
        elif SynthesizeStop.is_type(event.type):
            await self._end_text(event)
        else:
            logger.debug("Wyoming: event %s is not for us.", event.type)

    async def _take_text(self, event: Event) -> None:
        if self._options is None:
            raise UsageError(f"{event.type} without a synthesize-start.")
        text = _text(event)
        self._num_chars += len(text)
        check_length(self._num_chars, self._settings)
        if not text:
            return
        if not self._takes_text and not self._pieces:
            try:
                await self._speak(None, self._options, is_streamed=True)
                self._takes_text = True
            except TaskError:  # a voice in context needs the whole text
                logger.debug("Wyoming: this voice speaks when its text is complete.")
        if self._takes_text:
            self._speaking.stream.feed(text)
        else:
            self._pieces.append(text)

    async def _end_text(self, event: Event) -> None:
        if self._options is None:
            raise UsageError(f"{event.type} without a synthesize-start.")
        options, self._options = self._options, None
        if self._takes_text:
            self._speaking.stream.end_text()
        else:
            await self._speak("".join(self._pieces), options, is_streamed=True)

    async def _configure(self, event: Event) -> dict[str, Any]:
        """What an event asks of the engine: who speaks, in which language."""
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
        if name == DEFAULT_VOICE and not self._service.engine.voices:
            name = None
        body = SpeechSettings(voice=name, language=wanted.get("language"))
        options, warnings = await self._service.configure(body)
        for warning in warnings:
            logger.warning("Wyoming: %s", warning)
        return options

    def _expect_event(self) -> None:
        """Limit the wait for the next event, unless the client only has to listen."""
        if self._idle.expired():
            return
        only_listens = self._sending and not self._sending.done() and self._options is None
        now = asyncio.get_running_loop().time()
        self._idle.reschedule(None if only_listens else now + self._settings.idle_timeout_s)

    # ---- what the client hears -------------------------------------------------------------------

    async def _speak(self, text: str | None, options: dict[str, Any], *, is_streamed: bool) -> None:
        """Start a speech, once the one before it has been sent; None: its text will be fed."""
        if self._sending:
            self._idle.reschedule(None)
            await asyncio.wait([self._sending])
        self._speaking = self._service.speak(text, options, request_id=secrets.token_hex(16))
        self._sending = asyncio.create_task(self._send_speech(self._speaking, is_streamed))
        self._sending.add_done_callback(self._sent)

    async def _send_speech(self, speaking: ActiveSpeech, is_streamed: bool) -> None:
        """Send the audio of a speech; a failure ends the connection."""
        try:
            with speaking:
                async with asyncio.timeout(self._settings.deadline_s):
                    await self._relay(speaking, is_streamed)
        except QwenTTSError as error:
            await self.refuse(error)
        except TimeoutError:
            limit = self._settings.deadline_s
            await self.refuse(DeadlineExceeded(f"The speech was not over after {limit:g} s."))
        except ConnectionError as error:
            logger.debug("A Wyoming client does not hear its speech out: %s", error)

    async def _relay(self, speaking: ActiveSpeech, is_streamed: bool) -> None:
        rate = speaking.record.sample_rate
        sound = {"rate": rate, "width": 2, "channels": 1}
        num_samples = 0
        await self._send(AudioStart(**sound).event())
        async for chunk in speaking.chunks():
            if len(chunk.samples):
                ms = 1000 * num_samples // rate
                await self._send(AudioChunk(**sound, audio=chunk.pcm16, timestamp=ms).event())
                num_samples += len(chunk.samples)
        end = AudioStop(timestamp=1000 * num_samples // rate).event()
        # Not of the protocol, whose readers take what they know.
        stream = speaking.stream
        end.data |= {"finish_reason": speaking.finish_reason, "seed": stream.seed}
        if stream.is_normalized:
            end.data["spoken_text"] = stream.spoken_text
        if stream.warnings:
            end.data["warnings"] = stream.warnings
        await self._send(end)
        if is_streamed:
            await self._send(SynthesizeStopped().event())

    async def _send(self, event: Event) -> None:
        """Raises ConnectionError: the client is gone, or reads nothing any more."""
        limit = self._settings.stall_timeout_s
        try:
            async with asyncio.timeout(limit):
                await async_write_event(event, self._writer)
        except TimeoutError as error:
            self._writer.transport.abort()
            raise ConnectionAbortedError(f"Nothing was read for {limit:g} s.") from error

    def _sent(self, sending: asyncio.Task[None]) -> None:
        self._expect_event()
        if not sending.cancelled() and (error := sending.exception()):
            logger.error("Wyoming: a speech failed.", exc_info=error)
            self._writer.close()

    async def _stop_speaking(self) -> None:
        if self._sending:
            self._speaking.close()  # here too: a task that has not begun yet cleans nothing up
            self._sending.cancel()
            await asyncio.wait([self._sending])


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


def _text(event: Event) -> str:
    text = event.data.get("text")
    if not isinstance(text, str):
        raise UsageError(f"{event.type} has text {text!r}; it must be a string.")
    return text
