"""Speak with Pipecat's ElevenLabs service and this server: python examples/pipecat_elevenlabs.py

Only the `url` differs from a program that uses the hosted voice. The example prints each word when
it is heard, and writes elevenlabs.wav. Start the server first:

    python -m qwen_megakernel serve --model demo-voice --voice-fallback demo
    python examples/pipecat_elevenlabs.py "Your table is ready."
"""

import argparse
import asyncio
import sys
import wave

from qwen_megakernel.cli import running

with running.needed("pipecat", by="pipecat_elevenlabs.py"):
    from pipecat.frames.frames import EndFrame, Frame, TTSAudioRawFrame, TTSSpeakFrame, TTSTextFrame
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.worker import PipelineWorker
    from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
    from pipecat.services.elevenlabs.tts import ElevenLabsTTSService
    from pipecat.workers.runner import WorkerRunner


class Listener(FrameProcessor):
    """Prints the words of the speech, and keeps its audio."""

    pcm = b""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Take a frame; Pipecat calls this."""
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.pcm += frame.audio
        elif isinstance(frame, TTSTextFrame):
            print(frame.text)
        await self.push_frame(frame, direction)


async def speak(url: str, text: str) -> bytes:
    """Return the speech, 16-bit mono at 24 kHz; empty if there is no server."""
    settings = ElevenLabsTTSService.Settings(voice="21m00Tcm4TlvDq8ikWAM")
    tts = ElevenLabsTTSService(api_key="any", url=url, sample_rate=24000, settings=settings)
    listener, runner = Listener(), WorkerRunner()
    worker = PipelineWorker(Pipeline([tts, listener]))
    await worker.queue_frames([TTSSpeakFrame(text), EndFrame()])
    await runner.add_workers(worker)
    await runner.run()
    return listener.pcm


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="?", default="Your table is ready.")
    parser.add_argument("--url", default="ws://127.0.0.1:8090", help="address of the server")
    args = parser.parse_args()
    pcm = asyncio.run(speak(args.url, args.text))
    if not pcm:
        sys.exit(f"No speech came from {args.url}. Is the server running?")
    with wave.open("elevenlabs.wav", "wb") as file:
        file.setparams((1, 2, 24000, 0, "NONE", ""))
        file.writeframes(pcm)
