"""Speak through a Pipecat pipeline: python demo_pipeline.py --text "Hello." --output out.wav

Text source -> MegakernelTTSService -> file (and loudspeaker with --play). The demo records when
each chunk arrives. Even if Ctrl-C ends the demo, the file is complete.
"""

import argparse
import asyncio
import json
import queue
import re
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from qwen_megakernel import Voice, signals
from qwen_megakernel.audio import WavWriter, leading_silence_ms, playback_gaps
from qwen_megakernel.cli import options, parsing, running
from qwen_megakernel.engine import codes_file
from qwen_megakernel.errors import GenerationError, MissingPackageError, OutputError, QwenTTSError
from qwen_megakernel.installing import install_command

if TYPE_CHECKING:
    from qwen_megakernel import TTSEngine

# --token feeds words at this speed, which is that of a fast LLM.
WORDS_PER_S = 50
CLIENT_BUFFERS_MS = (0, 100)


def main(args: argparse.Namespace) -> int:
    """Speak, write the file, and print the figures."""
    _need_packages(args)
    text = running.read_speech(
        args.text,
        args.output,
        args.dump_codes,
        sample_rate=args.sample_rate,
        text_format=args.text_format,
    )
    with ExitStack() as stack:
        engine = stack.enter_context(options.engine_from_args(args))
        rate = args.sample_rate or engine.sample_rate
        file = stack.enter_context(WavWriter(args.output, rate))
        speaker = stack.enter_context(Speaker(rate, silent=not args.play))
        heard = Heard(rate, file, speaker, log=not (args.json or args.quiet))
        try:
            asyncio.run(speak(engine, text, args, heard))
        finally:  # after a Ctrl-C, the codes of the speech until then are written, too
            if args.dump_codes and heard.codes:
                codes_file.write(Path(args.dump_codes), np.concatenate(heard.codes))
    if heard.errors:
        raise heard.errors[0]
    facts = summary(heard, engine, args)
    if args.json:
        print(json.dumps(facts, indent=1))
    elif not args.quiet:
        print_summary(facts, args.output)
    return 0


async def speak(engine: "TTSEngine", text: str, args: argparse.Namespace, heard: "Heard") -> None:
    """Run a pipeline that speaks `text` and ends."""
    from pipecat.frames.frames import (
        EndFrame,
        ErrorFrame,
        Frame,
        LLMFullResponseEndFrame,
        LLMFullResponseStartFrame,
        LLMTextFrame,
        TTSAudioRawFrame,
        TTSSpeakFrame,
        TTSStoppedFrame,
    )
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.worker import PipelineWorker
    from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
    from pipecat.services.tts_service import TextAggregationMode
    from pipecat.workers.runner import WorkerRunner

    from qwen_megakernel.pipecat_tts import MegakernelTTSService

    class Sink(FrameProcessor):
        async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
            await super().process_frame(frame, direction)
            if isinstance(frame, TTSAudioRawFrame):
                heard.take(np.frombuffer(frame.audio, "<i2"))
            elif isinstance(frame, TTSStoppedFrame):
                # Only now: a pipeline that has its EndFrame no longer listens to Ctrl-C.
                await worker.queue_frame(EndFrame())
            await self.push_frame(frame, direction)

    speech = options.speech_options(args, engine)
    clones = {}
    if isinstance(speech["voice"], Voice):  # settings hold names only
        clones = {speech["voice"].name: speech["voice"]}
        speech["voice"] = speech["voice"].name
    tts = MegakernelTTSService(
        engine=engine,
        voices=clones,
        sample_rate=speech.pop("sample_rate"),
        text_aggregation_mode=(
            TextAggregationMode.TOKEN if args.token else TextAggregationMode.SENTENCE
        ),
        settings=MegakernelTTSService.Settings(**speech),
    )
    worker = PipelineWorker(Pipeline([tts, Sink()]), enable_rtvi=False, idle_timeout_secs=None)

    @tts.event_handler("on_speech_ended")
    async def on_speech_ended(_: MegakernelTTSService, context_id: str, stream: Any) -> None:
        num_frames = len(stream.codes)
        seconds = num_frames * engine.seconds_per_frame
        running.warn_of_end(stream.finish_reason, num_frames, seconds, stream.seed)
        heard.finish_reasons.append(stream.finish_reason)
        heard.seeds.append(stream.seed)
        heard.codes.append(stream.codes)

    @tts.event_handler("on_error")
    async def on_error(_: MegakernelTTSService, frame: ErrorFrame) -> None:
        known = isinstance(frame.exception, QwenTTSError)
        heard.errors.append(frame.exception if known else GenerationError(frame.error))

    @worker.event_handler("on_pipeline_started")
    async def on_pipeline_started(*_: object) -> None:
        heard.start()
        if not args.token:
            await worker.queue_frame(TTSSpeakFrame(text))
            return
        await worker.queue_frame(LLMFullResponseStartFrame())
        for word in re.findall(r"\s*\S+", text):
            await worker.queue_frame(LLMTextFrame(word))
            await asyncio.sleep(1 / WORDS_PER_S)
        heard.text_ms = 1000 * (time.perf_counter() - heard.started)
        await worker.queue_frame(LLMFullResponseEndFrame())

    # With the runner's own handler, Python would handle a second Ctrl-C.
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        asyncio.run_coroutine_threadsafe(runner.cancel("interrupted"), loop)

    with signals.deferred_signals(cancel):
        await runner.run()


@dataclass
class Heard:
    """Everything that has left the pipeline, and when."""

    sample_rate: int
    file: WavWriter
    speaker: "Speaker"
    log: bool
    chunks: list[np.ndarray] = field(default_factory=list)  # each [num_samples] int16
    times_ms: list[float] = field(default_factory=list)
    codes: list[np.ndarray] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    errors: list[QwenTTSError] = field(default_factory=list)
    started: float = 0.0
    text_ms: float = 0.0  # until the last word was sent, from the first

    def start(self) -> None:
        """Start the clock, when the text is about to be sent."""
        self.started = time.perf_counter()

    def take(self, samples: np.ndarray) -> None:
        """Take a chunk. After an error only the silence that replaces speech arrives."""
        if self.errors:
            return
        self.times_ms.append(1000 * (time.perf_counter() - self.started))
        self.chunks.append(samples)
        try:
            self.file.write(samples)
        except OutputError as error:  # a pipeline would log the error and go on
            self.errors.append(error)
            return
        self.speaker.play(samples)
        if self.log:
            print(
                f"chunk {len(self.chunks):3}  at {self.times_ms[-1]:8.1f} ms"
                f"  {1000 * len(samples) / self.sample_rate:6.0f} ms of audio"
                f"  {self.audio_s:6.2f} s in all",
                file=sys.stderr,
            )

    @property
    def durations_ms(self) -> list[float]:
        return [1000 * len(samples) / self.sample_rate for samples in self.chunks]

    @property
    def audio_s(self) -> float:
        return sum(self.durations_ms) / 1000


def summary(heard: Heard, engine: "TTSEngine", args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a run, named as in benchmarks/common.py if they mean the same."""
    silence_ms = leading_silence_ms(np.concatenate(heard.chunks), heard.sample_rate)
    times, durations = heard.times_ms, heard.durations_ms
    return {
        "model": engine.files.name,
        "is_synthetic": engine.files.is_synthetic,
        "banner": engine.files.banner,
        "backend": engine.backend,
        "device": str(engine.device),
        "mode": "token" if args.token else "sentence",
        "seeds": heard.seeds,
        "finish_reasons": heard.finish_reasons,
        "text_ms": heard.text_ms,
        "ttfb_ms": times[0],
        "leading_silence_ms": silence_ms,
        "first_audible_ms": times[0] + silence_ms,
        "max_gap_ms": max(np.diff(times), default=0.0),
        "total_ms": times[-1],
        "audio_s": heard.audio_s,
        "rtf": times[-1] / 1000 / heard.audio_s,
        "underruns": {
            f"{buffer_ms}ms": len(playback_gaps(times, durations, buffer_ms))
            for buffer_ms in CLIENT_BUFFERS_MS
        },
        "chunks": [
            {"at_ms": at, "audio_ms": duration}
            for at, duration in zip(times, durations, strict=True)
        ],
    }


def print_summary(facts: dict[str, Any], output: str) -> None:
    """Print the figures as sentences on stderr, because --json prints its facts on stdout."""
    reasons = ", ".join(dict.fromkeys(facts["finish_reasons"]))
    seeds = ", ".join(map(str, facts["seeds"]))
    print(
        f"{output}: {facts['audio_s']:.2f} s of speech in {facts['total_ms'] / 1000:.2f} s "
        f"(RTF {facts['rtf']:.3f}), {reasons}, seed {seeds}",
        file=sys.stderr,
    )
    print(
        f"first byte after {facts['ttfb_ms']:.0f} ms, first audible sample after "
        f"{facts['first_audible_ms']:.0f} ms ({facts['leading_silence_ms']:.0f} ms of silence); "
        f"the text was complete after {facts['text_ms']:.0f} ms",
        file=sys.stderr,
    )
    underruns = facts["underruns"]
    print(
        f"underruns: {underruns['0ms']} without a buffer, {underruns['100ms']} with 100 ms; "
        f"longest wait for a chunk {facts['max_gap_ms']:.0f} ms",
        file=sys.stderr,
    )


class Speaker:
    """The loudspeaker, fed from a thread of its own. Leaving the block waits for the last sample.

    Args:
        silent: play nothing.
    """

    def __init__(self, rate: int, *, silent: bool):
        self._queue: queue.Queue[bytes | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        if silent:
            return
        import sounddevice

        try:
            self._stream = sounddevice.RawOutputStream(rate, channels=1, dtype="int16")
        except sounddevice.PortAudioError as error:
            raise OutputError(f"--play finds no loudspeaker: {error}.") from error
        self._thread = threading.Thread(target=self._run, name="speaker", daemon=True)

    def play(self, samples: np.ndarray) -> None:
        """Queue [num_samples] int16; returns at once."""
        if self._thread:
            self._queue.put(samples.tobytes())

    def _run(self) -> None:
        with self._stream:  # starts it; stopping plays what is queued in the device
            while (pcm := self._queue.get()) is not None:
                self._stream.write(pcm)

    def __enter__(self) -> Self:
        if self._thread:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread:
            self._queue.put(None)
            self._thread.join()


def _need_packages(args: argparse.Namespace) -> None:
    """Raise an error for a missing package; silence Pipecat's logger, which prints a greeting."""
    try:
        from loguru import logger

        logger.remove()
        logger.add(sys.stderr, level="DEBUG" if args.debug else "CRITICAL")
        import pipecat.services.tts_service  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"This demo needs pipecat-ai 1.14 ({error}).", hint=install_command("pipecat")
        ) from error
    if args.play:
        try:
            import sounddevice

            sounddevice.query_devices(kind="output")
        except ImportError as error:
            raise MissingPackageError(
                f"--play needs sounddevice ({error}).", hint=install_command("play")
            ) from error
        except OSError as error:  # the package is installed, but the library that it loads is not
            raise MissingPackageError(
                f"--play needs the system's PortAudio library ({error}).",
                hint="Install libportaudio2 (Debian, Ubuntu) or portaudio (Fedora, Homebrew).",
            ) from error
        except sounddevice.PortAudioError as error:
            raise OutputError(f"--play finds no loudspeaker: {error}.") from error


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = parsing.Parser(description=__doc__.splitlines()[0])
    options.add_text_options(parser)
    parser.add_argument(
        "-o", "--output", default="out.wav", help="file to write: wav, flac, ogg or mp3"
    )
    parser.add_argument(
        "--token", action="store_true", help="feed the text word by word, as an LLM would"
    )
    parser.add_argument(
        "--play", action="store_true", help="play the speech on the loudspeaker, too"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the figures as JSON on standard output"
    )
    parser.add_argument(
        "--dump-codes", metavar="FILE", help="file to write the codes to, one row per frame"
    )
    options.add_model_options(parser)
    options.add_speech_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    sys.exit(running.run(main, args))
