"""Measure what the Pipecat service adds: time from chunk to frame, blocked event loop, barge-in.

No model runs: a thread hands chunks to the service as the engine's thread does, at the pace of a
GPU, so that the figures are the service's own.
"""

import argparse
import asyncio
import gc
import time
from collections.abc import Callable

from loguru import logger

from benchmarks import common, option_types
from benchmarks.measures.paced_engine import FRAME_S, PacedEngine, handed_over

TEXT = "Your table for two is ready. We will meet you at the hotel on Friday. See you soon then."
LIMITS = {"overhead_ms": 2.0, "loop_held_ms": 5.0, "quiet_ms": 1000 * FRAME_S}

METRICS = {
    "overhead_ms": "time from the engine's chunk to the frame after the service",
    "loop_held_ms": "longest callback of the event loop, in CPU time of its thread",
    "loop_held_wall_ms": "longest callback by the clock, which includes other work of the machine",
    "quiet_ms": "time from an interruption in the service to its arrival at the engine",
}


@common.takes(
    common.add_plain_options,
    common.count("--pipelines", 4, "number of pipelines at once"),
    common.count("--turns", 5, "number of turns of each pipeline in a run"),
    common.count("--runs", 3, "number of runs whose figures count"),
    common.option("--rtf", "real-time factor of the chunks", option_types.positive, 0.25),
    common.option("--token", "feed text in Pipecat's TOKEN mode", bool),
)
def pipecat(args: argparse.Namespace) -> int:
    """Measure, report, and compare with the limits."""
    logger.remove()
    asyncio.run(asyncio.wait_for(run_once(args), 120))  # the warm-up
    # As an agent should do (docs/pipecat.md): a garbage collection over the libraries' objects
    # blocks the event loop for a tenth of a second.
    gc.collect()
    gc.freeze()
    runs = [asyncio.run(asyncio.wait_for(run_once(args), 120)) for _ in range(args.runs)]
    values = {name: [value for run in runs for value in run[name]] for name in METRICS}
    settings = ("pipelines", "turns", "rtf", "token", "runs")
    return common.hold_against(LIMITS, args, settings, METRICS, values)


async def run_once(args: argparse.Namespace) -> dict[str, list[float]]:
    """Speak in all pipelines at once, then interrupt each."""
    from pipecat.frames.frames import (
        Frame,
        InterruptionFrame,
        TTSAudioRawFrame,
        TTSSpeakFrame,
        TTSStoppedFrame,
    )
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.worker import PipelineWorker
    from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
    from pipecat.services.tts_service import TextAggregationMode
    from pipecat.workers.runner import WorkerRunner

    from qwen_megakernel.pipecat.service import MegakernelTTSService

    engine = PacedEngine(args.rtf)
    found: dict[str, list[float]] = {"overhead_ms": [], "quiet_ms": []}

    class Sink(FrameProcessor):
        stopped = 0
        audio = 0

        async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
            now = time.perf_counter()
            await super().process_frame(frame, direction)
            if isinstance(frame, TTSAudioRawFrame):
                found["overhead_ms"].append(1000 * (now - handed_over(frame.audio)))
                self.audio += 1
            self.stopped += isinstance(frame, TTSStoppedFrame)
            await self.push_frame(frame, direction)

    runner = WorkerRunner(handle_sigint=False, check_dangling_tasks=False)
    mode = TextAggregationMode.TOKEN if args.token else TextAggregationMode.SENTENCE
    pipelines = []
    for _ in range(args.pipelines):
        tts = MegakernelTTSService(engine=engine, text_aggregation_mode=mode)
        sink = Sink()
        worker = PipelineWorker(Pipeline([tts, sink]), enable_rtvi=False)
        await runner.add_workers(worker)
        pipelines.append((tts, sink, worker))
    running = asyncio.create_task(runner.run())
    await asyncio.sleep(0.3)  # setting up is not measured
    held = _watch_loop()
    for turn in range(args.turns):
        for _, _, worker in pipelines:
            await worker.queue_frame(TTSSpeakFrame(TEXT))
            await asyncio.sleep(0.01)
        while any(sink.stopped <= turn for _, sink, _ in pipelines):
            await asyncio.sleep(0.005)
    for tts, sink, worker in pipelines:
        audio = sink.audio
        await worker.queue_frame(TTSSpeakFrame(TEXT))
        while sink.audio == audio:
            await asyncio.sleep(0.001)
        at = time.perf_counter()
        await tts.queue_frame(InterruptionFrame())
        while not engine.states[-1].cancelled:
            await asyncio.sleep(0)
        found["quiet_ms"].append(1000 * (time.perf_counter() - at))
    found["loop_held_ms"], found["loop_held_wall_ms"] = ([1000 * each] for each in held())
    for _, _, worker in pipelines:
        await worker.cancel()
    await running
    engine.close()
    return found


def _watch_loop() -> Callable[[], tuple[float, float]]:
    """Time every callback of the event loop. Calling the result stops this and returns the longest
    CPU time and the longest wall time, in s.

    The limit is on the CPU time: on a busy machine, wall time includes other programs, and the
    service waits for nothing but the event loop.
    """
    longest = [0.0, 0.0]
    original = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        cpu, wall = time.thread_time(), time.perf_counter()
        original(handle)
        longest[0] = max(longest[0], time.thread_time() - cpu)
        longest[1] = max(longest[1], time.perf_counter() - wall)

    def stop() -> tuple[float, float]:
        asyncio.Handle._run = original
        return longest[0], longest[1]

    asyncio.Handle._run = timed
    return stop
