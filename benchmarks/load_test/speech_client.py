"""A client of any OpenAI-compatible speech server that times the answers.

Times of a request count from the first byte of its body, without connecting, as in nari-labs'
benchmark; `planned` times count from the moment at which the load generator meant to send it, as in
SGLang's. A simulated player without a buffer plays the audio.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

from benchmarks import playback

# For servers that do not send X-Sample-Rate: OpenAI's rate, and that of every server of this model.
SAMPLE_RATE = 24000
PLAYABLE_GAP_MS = 50  # SGLang's c50 requires that no silence is longer


@dataclass(slots=True)
class Heard:
    """One request as its client saw it; times are `time.perf_counter()` seconds."""

    planned: float
    sent: float = 0.0  # first byte of the body, or the first word
    arrivals: list[float] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)  # raw 16-bit samples, one for each arrival
    ended: float = 0.0
    request_id: str | None = None  # from servers that send one
    error: str | None = None

    def add(self, piece: bytes) -> None:
        """Record a piece of audio and the time of its arrival."""
        self.arrivals.append(time.perf_counter())
        self.pieces.append(piece)

    def figures(self, rate: int) -> dict[str, Any]:
        """Return the figures of the request.

        Args:
            rate: samples a second.
        Returns:
            Milliseconds since the first byte of the body; of a failed request, only `error`.
        """
        if self.error:
            return {"error": self.error}
        times = [1000 * (at - self.sent) for at in self.arrivals]
        # A piece may end inside a sample.
        bounds = np.cumsum([0] + [len(piece) for piece in self.pieces]) // 2
        durations = list(np.diff(bounds) * 1000 / rate)
        samples = np.frombuffer(b"".join(self.pieces)[: 2 * bounds[-1]], "<i2")
        gaps = playback.playback_gaps(times, durations, 0)
        silence = playback.leading_silence_ms(samples, rate)
        return {
            "first_byte_ms": times[0],
            "first_byte_planned_ms": times[0] + 1000 * (self.sent - self.planned),
            "first_audible_ms": played_at_ms(times, durations, silence),
            "leading_silence_ms": silence,
            "underruns": len(gaps),
            "underruns_100ms": len(playback.playback_gaps(times, durations, 100)),
            "longest_gap_ms": max(gaps, default=0.0),
            "e2e_ms": 1000 * (self.ended - self.sent),
            "audio_s": sum(durations) / 1000,
        }


def played_at_ms(times_ms: list[float], durations_ms: list[float], position_ms: float) -> float:
    """Return when a player that starts at once plays the sound at `position_ms` of the audio.

    Args:
        times_ms: when each piece arrived, in order.
        durations_ms: how long each piece plays.
        position_ms: 0 .. sum(durations_ms).
    """
    played_until = begin_ms = 0.0
    for arrived, duration in zip(times_ms, durations_ms, strict=True):
        starts = max(arrived, played_until)
        if position_ms < begin_ms + duration:
            return starts + position_ms - begin_ms
        begin_ms += duration
        played_until = starts + duration
    return played_until


class SpeechClient:
    """Sends requests to one server.

    Args:
        url: address of the server, without /v1.
        body: fields of every request but `input`.
        api_key: sent as a bearer token.
        timeout_s: the longest time for a whole request.
        word_ms: milliseconds between two words of the text, which are then sent over the WebSocket
            of vLLM-Omni; None: send the whole text over HTTP.
    """

    def __init__(
        self,
        url: str,
        body: dict[str, Any],
        api_key: str | None,
        timeout_s: float,
        word_ms: float | None = None,
    ):
        self._url, self._body, self._word_ms = url.rstrip("/"), body, word_ms
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self.in_flight = 0
        self.rate = SAMPLE_RATE

    async def __aenter__(self) -> "SpeechClient":
        trace = aiohttp.TraceConfig()
        trace.on_request_chunk_sent.append(_note_sent)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=self._timeout,
            headers=self._headers,
            trace_configs=[trace],
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def model(self) -> str | None:
        """Return the first model that the server lists; None if it lists none."""
        try:
            async with self._session.get(f"{self._url}/v1/models") as response:
                return (await response.json())["data"][0]["id"]
        except (aiohttp.ClientError, ValueError, KeyError, IndexError, TypeError):
            return None

    async def facts(self, request_id: str) -> dict[str, Any]:
        """Return what this project's server reports about a request."""
        async with self._session.get(f"{self._url}/v1/audio/speech/{request_id}") as response:
            return await response.json()

    async def speak(self, text: str, planned: float) -> Heard:
        """Send one request and read all of its answer; failures are in `Heard.error`."""
        heard = Heard(planned)
        self.in_flight += 1
        try:
            async with asyncio.timeout(self._timeout.total):
                if self._word_ms is None:
                    await self._post(text, heard)
                else:
                    await self._talk(text, heard)
            if not heard.error and sum(map(len, heard.pieces)) < 2:
                heard.error = "no audio"
        except (TimeoutError, aiohttp.ClientError) as error:
            heard.error = type(error).__name__
        finally:
            heard.ended = time.perf_counter()
            self.in_flight -= 1
        return heard

    async def _post(self, text: str, heard: Heard) -> None:
        async with self._session.post(
            f"{self._url}/v1/audio/speech",
            json={**self._body, "input": text},
            trace_request_ctx=heard,
        ) as response:
            if response.status != 200:
                heard.error = f"{response.status} {(await response.text())[:200]}"
                return
            heard.request_id = response.headers.get("X-Request-Id")
            self.rate = int(response.headers.get("X-Sample-Rate", SAMPLE_RATE))
            async for piece in response.content.iter_any():
                heard.add(piece)

    async def _talk(self, text: str, heard: Heard) -> None:
        address = f"{self._url}/v1/audio/speech/stream"
        async with self._session.ws_connect(address, max_msg_size=0) as socket:
            await socket.send_json({"type": "session.config", **self._body})
            writing = asyncio.create_task(self._write(socket, text, heard))
            try:
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.BINARY:
                        heard.add(message.data)
                        continue
                    facts = message.json()
                    if facts["type"] == "audio.start":
                        self.rate, heard.request_id = facts["sample_rate"], facts.get("request_id")
                    elif facts["type"] == "error":
                        heard.error = str(facts["message"])[:200]
                        break
                    elif facts["type"] == "session.done":
                        break
                else:
                    heard.error = "the server closed the connection"
            finally:
                writing.cancel()

    async def _write(
        self, socket: aiohttp.ClientWebSocketResponse, text: str, heard: Heard
    ) -> None:
        for word in text.split():
            heard.sent = heard.sent or time.perf_counter()
            await socket.send_json({"type": "input.text", "text": f"{word} "})
            await asyncio.sleep(self._word_ms / 1000)
        await socket.send_json({"type": "input.done"})


async def _note_sent(_: Any, context: Any, __: Any) -> None:
    """Note the time; aiohttp calls this before it writes each piece of a body."""
    heard = context.trace_request_ctx
    if heard and not heard.sent:
        heard.sent = time.perf_counter()
