"""Speak through a Pipecat pipeline: python demo_pipeline.py --text "Hello." --output out.wav

Text source -> MegakernelTTSService -> file (and loudspeaker with --play). The demo records when
each chunk arrives. Even if Ctrl-C ends the demo, the file is complete.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.playback import leading_silence_ms, playback_gaps
from qwen_megakernel import Voice, signals
from qwen_megakernel.audio import WavWriter
from qwen_megakernel.cli import options, parsing, running
from qwen_megakernel.engine import codes_file
from qwen_megakernel.errors import GenerationError, QwenTTSError
from qwen_megakernel.installing import require
from qwen_megakernel.sound.loudspeaker import check_loudspeaker, loudspeaker

if TYPE_CHECKING:
    from qwen_megakernel import TTSEngine
    from qwen_megakernel.engine.stream import SpeechStream

WORDS_PER_S = 50  # of --token: the speed of a fast LLM
CLIENT_BUFFERS_MS = (0, 100)


@dataclass
class Heard:
    """What has left the pipeline, and when, in ms from the moment that the text was sent."""

    outputs: list[Callable[[np.ndarray], object]]  # each takes a chunk, [num_samples] int16
    chunks: list[np.ndarray] = field(default_factory=list)
    times_ms: list[float] = field(default_factory=list)
    text_ms: float = 0.0  # when the last word was sent
    streams: list["SpeechStream"] = field(default_factory=list)  # those that have ended
    errors: list[Exception] = field(default_factory=list)

    def take(self, samples: np.ndarray, at_ms: float) -> None:
        """Take a chunk. After an error only the silence that replaces speech arrives."""
        if not self.errors:
            self.times_ms.append(at_ms)
            self.chunks.append(samples)
            try:
                for output in self.outputs:
                    output(samples)
            except QwenTTSError as error:  # a pipeline would log the error and go on
                self.errors.append(error)


def main(args: argparse.Namespace) -> int:
    """Speak, write the file, and print the figures."""
    with require("pipecat", by="This demo", package="pipecat-ai 1.14"):
        from loguru import logger

        logger.remove()  # Pipecat logs a greeting when it is imported
        logger.add(sys.stderr, level="DEBUG" if args.debug else "CRITICAL")
        import pipecat.services.tts_service  # noqa: F401
    if args.play:
        check_loudspeaker()
    checked = {"sample_rate": args.sample_rate, "text_format": args.text_format}
    text = running.read_speech(args.text, args.output, args.dump_codes, **checked)
    with ExitStack() as stack:
        engine = stack.enter_context(options.engine_from_args(args))
        rate = args.sample_rate or engine.sample_rate
        writer = WavWriter(args.output, rate, mark=engine.mark)
        heard = Heard([stack.enter_context(writer).write])
        if args.play:
            heard.outputs.append(stack.enter_context(loudspeaker(rate)))
        if not (args.json or args.quiet):
            heard.outputs.append(lambda samples: print_chunk(heard, rate))
        try:
            asyncio.run(speak(engine, text, args, heard))
        finally:  # after a Ctrl-C, the codes of the speech until then are written, too
            if args.dump_codes and heard.streams:
                codes = np.concatenate([stream.codes for stream in heard.streams])
                codes_file.write(Path(args.dump_codes), codes)
    if heard.errors:
        raise heard.errors[0]
    facts = figures(heard, engine, args)
    if args.json:
        facts = json.loads(json.dumps(facts), parse_float=lambda text: round(float(text), 4))
        print(json.dumps(facts, indent=1))
    elif not args.quiet:
        print_figures(facts, args.output)
    return 0


async def speak(engine: "TTSEngine", text: str, args: argparse.Namespace, heard: Heard) -> None:
    """Run a pipeline that speaks `text` and ends."""
    from pipecat.frames import frames
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.worker import PipelineWorker
    from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
    from pipecat.services.tts_service import TextAggregationMode
    from pipecat.workers.runner import WorkerRunner

    from qwen_megakernel.pipecat_tts import MegakernelTTSService

    started = time.perf_counter()

    def now_ms() -> float:
        return 1000 * (time.perf_counter() - started)

    class Sink(FrameProcessor):
        async def process_frame(self, frame: frames.Frame, direction: FrameDirection) -> None:
            await super().process_frame(frame, direction)
            if isinstance(frame, frames.TTSAudioRawFrame):
                heard.take(np.frombuffer(frame.audio, "<i2"), now_ms())
            elif isinstance(frame, frames.TTSStoppedFrame):
                # Only now: a pipeline that has its EndFrame no longer listens to Ctrl-C.
                await worker.queue_frame(frames.EndFrame())
            await self.push_frame(frame, direction)

    speech, clones = options.speech_options(args, engine), {}
    if isinstance(speech["voice"], Voice):  # settings hold names only
        clones = {speech["voice"].name: speech["voice"]}
        speech["voice"] = speech["voice"].name
    mode = TextAggregationMode.TOKEN if args.token else TextAggregationMode.SENTENCE
    tts = MegakernelTTSService(
        engine=engine,
        voices=clones,
        sample_rate=speech.pop("sample_rate"),
        text_aggregation_mode=mode,
        settings=MegakernelTTSService.Settings(**speech),
    )
    worker = PipelineWorker(Pipeline([tts, Sink()]), enable_rtvi=False, idle_timeout_secs=None)

    @tts.event_handler("on_speech_ended")
    async def on_speech_ended(_: object, context_id: str, stream: "SpeechStream") -> None:
        heard.streams.append(stream)
        running.warn_of_end(stream, engine.seconds_per_frame)

    @tts.event_handler("on_error")
    async def on_error(_: object, frame: frames.ErrorFrame) -> None:
        known = isinstance(frame.exception, QwenTTSError)
        heard.errors.append(frame.exception if known else GenerationError(frame.error))

    @worker.event_handler("on_pipeline_started")
    async def on_pipeline_started(*_: object) -> None:
        nonlocal started
        started = time.perf_counter()
        if not args.token:
            await worker.queue_frame(frames.TTSSpeakFrame(text))
            return
        await worker.queue_frame(frames.LLMFullResponseStartFrame())
        for word in re.findall(r"\s*\S+", text):
            await worker.queue_frame(frames.LLMTextFrame(word))
            await asyncio.sleep(1 / WORDS_PER_S)
        heard.text_ms = now_ms()
        await worker.queue_frame(frames.LLMFullResponseEndFrame())

    # With the runner's own handler, Python would handle a second Ctrl-C.
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        asyncio.run_coroutine_threadsafe(runner.cancel("interrupted"), loop)

    with signals.deferred_signals(cancel):
        await runner.run()


def figures(heard: Heard, engine: "TTSEngine", args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a run, named as in benchmarks/common.py if they mean the same."""
    rate = args.sample_rate or engine.sample_rate
    times, durations = heard.times_ms, [1000 * len(chunk) / rate for chunk in heard.chunks]
    silence_ms = leading_silence_ms(np.concatenate(heard.chunks), rate)
    underruns = {ms: len(playback_gaps(times, durations, ms)) for ms in CLIENT_BUFFERS_MS}
    pairs = zip(times, durations, strict=True)
    return {
        "model": engine.files.name,
        "is_synthetic": engine.files.is_synthetic,
        "banner": engine.files.banner,
        "backend": engine.backend,
        "device": str(engine.device),
        "mode": "token" if args.token else "sentence",
        "seeds": [stream.seed for stream in heard.streams],
        "finish_reasons": [stream.finish_reason for stream in heard.streams],
        "text_ms": heard.text_ms,
        "ttfb_ms": times[0],
        "leading_silence_ms": silence_ms,
        "first_audible_ms": times[0] + silence_ms,
        "max_gap_ms": max(np.diff(times), default=0.0),
        "total_ms": times[-1],
        "audio_s": sum(durations) / 1000,
        "rtf": times[-1] / sum(durations),
        "underruns": {f"{ms}ms": number for ms, number in underruns.items()},
        "chunks": [{"at_ms": at, "audio_ms": duration} for at, duration in pairs],
    }


def print_chunk(heard: Heard, rate: int) -> None:
    """Print a line about the last chunk on stderr."""
    print(
        f"chunk {len(heard.chunks):3}  at {heard.times_ms[-1]:8.1f} ms"
        f"  {1000 * len(heard.chunks[-1]) / rate:6.0f} ms of audio"
        f"  {sum(map(len, heard.chunks)) / rate:6.2f} s in all",
        file=sys.stderr,
    )


def print_figures(facts: dict[str, Any], output: str) -> None:
    """Print the figures as sentences on stderr, because --json prints its facts on stdout."""
    reasons = ", ".join(dict.fromkeys(facts["finish_reasons"]))
    seeds = ", ".join(map(str, facts["seeds"]))
    underruns, lead_ms = facts["underruns"], facts["text_ms"] - facts["ttfb_ms"]
    print(
        f"{output}: {facts['audio_s']:.2f} s of speech in {facts['total_ms'] / 1000:.2f} s "
        f"(RTF {facts['rtf']:.3f}), {reasons}, seed {seeds}\n"
        f"first byte after {facts['ttfb_ms']:.0f} ms, {abs(lead_ms):.0f} ms "
        f"{'before' if lead_ms > 0 else 'after'} the text was complete; first audible sample after "
        f"{facts['first_audible_ms']:.0f} ms ({facts['leading_silence_ms']:.0f} ms of silence)\n"
        f"underruns: {underruns['0ms']} without a buffer, {underruns['100ms']} with 100 ms; "
        f"longest wait for a chunk {facts['max_gap_ms']:.0f} ms",
        file=sys.stderr,
    )


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = parsing.Parser(description=__doc__)
    options.add_text_options(parser)
    add = parsing.adder(parser)
    add("-o --output", "file to write: wav, flac, ogg or mp3", parsing.file_name, "out.wav")
    add("--token", "feed the text word by word, as an LLM would", bool)
    add("--play", "play the speech on the loudspeaker, too", bool)
    add("--json", "print the figures as JSON on standard output", bool)
    add("--dump-codes FILE", "file to write the codes to, one row per frame", parsing.file_name)
    options.add_model_options(parser)
    options.add_speech_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    sys.exit(running.run(main, args))
