"""Runs real Pipecat pipelines and records what passes through them."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from fake_engine import FakeEngine
from loguru import logger
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
    OutputAudioRawFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.tts_service import TextAggregationMode as Mode
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner
from waiting import lateness

from qwen_megakernel.pipecat.service import MegakernelTTSService

SENTENCE, TOKEN = Mode.SENTENCE, Mode.TOKEN
SPEECH = (TTSStartedFrame, TTSAudioRawFrame, TTSStoppedFrame)  # in the order of one speech

logger.remove()  # Pipecat's default handler prints everything
logger.add(sys.stderr, level="CRITICAL")


def service(engine: FakeEngine, mode: Mode = SENTENCE, **options: Any) -> MegakernelTTSService:
    """Return a service on an engine that hums."""
    return MegakernelTTSService(engine=engine, text_aggregation_mode=mode, **options)


def talk(mode: Mode = SENTENCE, **engine: Any) -> "Run":
    """Return a run of a service on an engine of its own, `run.engine`, a `FakeEngine`."""
    return Run(service(FakeEngine(**engine), mode))


class Recorder(FrameProcessor):
    """Keeps every frame that passes, with its time."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[float, Frame, FrameDirection]] = []
        self.passed: set[int] = set()  # ids of the frames that the next processor has

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.log.append((time.monotonic(), frame, direction))
        await self.push_frame(frame, direction)
        self.passed.add(frame.id)


class WavOutput(BaseOutputTransport):
    """A loudspeaker: plays each chunk in real time, and keeps what it has played."""

    def __init__(self, sample_rate: int = 24000, speed: float = 1.0):
        super().__init__(
            TransportParams(
                audio_out_enabled=True,
                audio_out_sample_rate=sample_rate,
                audio_out_end_silence_secs=0,
            )
        )
        self.heard = bytearray()
        self.gaps_s = 0.0  # gaps between chunks, also those of a busy machine
        self._speed = speed
        self._free_at = 0.0

    async def start(self, frame: Any) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        self.heard += frame.audio
        now = time.monotonic()
        if self._free_at:
            self.gaps_s += max(0.0, now - self._free_at)
        self._free_at = max(now, self._free_at) + frame.num_frames / frame.sample_rate / self._speed
        await asyncio.sleep(self._free_at - now)
        return True


class Run:
    """`async with Run(tts) as run:` runs a pipeline and ends it.

    Args:
        tts: the service under test.
        behind: processors after it.
        ahead: processors before it.
        sample_rate: of the pipeline's output.
    """

    def __init__(
        self,
        tts: FrameProcessor,
        *behind: FrameProcessor,
        ahead: tuple[FrameProcessor, ...] = (),
        sample_rate: int = 24000,
        **worker: Any,
    ):
        self.before, self.after, self.end = Recorder(), Recorder(), Recorder()
        self.tts = tts
        processors = [*ahead, self.before, tts, self.after, *behind, self.end]
        self.worker = PipelineWorker(
            Pipeline(processors),
            params=PipelineParams(
                enable_metrics=True, enable_usage_metrics=True, audio_out_sample_rate=sample_rate
            ),
            enable_rtvi=False,
            **worker,
        )
        self._runner = WorkerRunner(handle_sigint=False)
        self._task: asyncio.Task | None = None
        self._sent: Frame | None = None  # the last
        self._lateness = lateness()

    async def __aenter__(self) -> "Run":
        self._late_s = await self._lateness.__aenter__()
        await self._runner.add_workers(self.worker)
        self._task = asyncio.create_task(self._runner.run())
        return self

    async def __aexit__(self, kind: Any, *_: object) -> None:
        if kind is None and not self._task.done():
            await self.finish()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._lateness.__aexit__(None, None, None)

    async def finish(self, timeout_s: float = 30.0) -> None:
        """Queue an EndFrame and wait for the pipeline to end by itself."""
        await self.send(EndFrame())
        await self.ended(timeout_s)

    async def ended(self, timeout_s: float = 30.0) -> None:
        await asyncio.wait_for(asyncio.shield(self._task), timeout_s)

    async def send(
        self, *frames: Frame, stops: int = 0, ends: int = 0, timeout_s: float = 20.0
    ) -> None:
        """Queue frames, and wait until `stops` speeches have stopped and `ends` answers ended."""
        self._sent = frames[-1]
        await self.worker.queue_frames(list(frames))
        await self.until(TTSStoppedFrame, stops, timeout_s)
        await self.until(LLMFullResponseEndFrame, ends, timeout_s)

    async def say(self, text: str, *, interruptible: bool = True, **wait: Any) -> None:
        """Send a text to speak; see `send`."""
        frame = TTSSpeakFrame(text)
        frame.interruptible = interruptible
        await self.send(frame, **wait)

    async def turn(self, *pieces: str, **wait: Any) -> None:
        """Send the frames that an LLM sends for one answer; see `send`."""
        words = map(LLMTextFrame, pieces)
        await self.send(LLMFullResponseStartFrame(), *words, LLMFullResponseEndFrame(), **wait)

    async def interrupt(self) -> None:
        """Interrupt from in front of the service, as a user aggregator does, behind all that was
        sent; what comes to the service later is not interrupted."""
        if self._sent:
            await self.until(lambda: self._sent.id in self.before.passed)
            await asyncio.sleep(0)  # an interruption overtakes what the service has not taken yet
        await self.before.broadcast_interruption()

    async def until(
        self, seen: type[Frame] | Callable[[], Any], count: int = 1, timeout_s: float = 20.0
    ) -> None:
        """Wait until `count` frames of a type have passed the service, or until a condition."""
        condition = (lambda: len(self.frames(seen)) >= count) if isinstance(seen, type) else seen
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await asyncio.sleep(0.005)
        except TimeoutError as error:
            passed = [type(frame).__name__ for _, frame, _ in self.after.log]
            raise AssertionError(
                f"{seen} did not come; passed {passed}, errors {self.errors}"
            ) from error

    @property
    def engine(self) -> FakeEngine:
        return self.tts._engine

    @property
    def sent(self) -> bytes:
        """All the audio that the engine has delivered."""
        return b"".join(stream.sent for stream in self.engine.streams)

    @property
    def slack_s(self) -> float:
        """The delay that this machine may have added to data that tasks pass to each other."""
        return 10 * self._late_s()

    # ---- what happened -------------------------------------------------------------------------

    def frames(self, *kinds: type[Frame]) -> list[Frame]:
        """Return frames of these types that the service pushed downstream, in order."""
        return [
            frame
            for _, frame, direction in self.after.log
            if isinstance(frame, kinds) and direction == FrameDirection.DOWNSTREAM
        ]

    def order(self, *kinds: type[Frame]) -> list[type[Frame]]:
        """Return the types of those frames, with runs of audio folded into one."""
        order: list[type[Frame]] = []
        for frame in self.frames(*kinds):
            if type(frame) is not TTSAudioRawFrame or order[-1:] != [TTSAudioRawFrame]:
                order.append(type(frame))
        return order

    def when(self, kind: type[Frame]) -> list[float]:
        """Return when each frame of a type left the service."""
        return [at for at, frame, _ in self.after.log if isinstance(frame, kind)]

    @property
    def pcm(self) -> bytes:
        return b"".join(frame.audio for frame in self.frames(TTSAudioRawFrame))

    @property
    def errors(self) -> list[ErrorFrame]:
        return [frame for _, frame, _ in self.before.log if isinstance(frame, ErrorFrame)]

    def metrics(self, kind: type) -> list[Any]:
        """Return the measurements of a type that the service reported."""
        return [
            data
            for frame in self.frames(MetricsFrame)
            for data in frame.data
            if isinstance(data, kind) and data.processor == self.tts.name
        ]


@contextlib.contextmanager
def logged(level: str = "WARNING") -> Iterator[list[str]]:
    """Collect the lines that Pipecat's logger gets in the block."""
    lines: list[str] = []
    handler = logger.add(lines.append, level=level, format="{message}")
    try:
        yield lines
    finally:
        logger.remove(handler)
