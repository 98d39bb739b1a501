"""Run a voice agent for the browser: python examples/voice_agent.py

Talk to it at http://localhost:7860, over the browser's microphone and loudspeaker (WebRTC). Whisper
recognises speech in this process, any LLM with an OpenAI-compatible server answers it, and this
process speaks the answer: with demo-voice, the small voice in the package, unless --model names
another model. You can interrupt it at any time.

    pip install -e ".[pipecat]" "pipecat-ai[webrtc,runner,whisper]"
    export LLM_BASE_URL=http://localhost:11434/v1 LLM_MODEL=qwen3:4b  # such as Ollama
    python examples/voice_agent.py --model Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice

Environment:
    LLM_BASE_URL, LLM_MODEL, LLM_API_KEY   the LLM; default: OpenAI with OPENAI_API_KEY
    TTS_VOICE, TTS_LANGUAGE                default: aiden if the model has this voice; auto
    TTS_MODE                               sentence (default) or token
    STT_MODEL                              default: small
"""

import argparse
import functools
import gc
import importlib.util
import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads it when it is imported

from qwen_megakernel.cli import options, parsing, running

with running.needed("pipecat", by="voice_agent.py", also=["pipecat-ai[webrtc,runner,whisper]"]):
    from pipecat.audio.vad.silero import SileroVADAnalyzer
    from pipecat.frames.frames import LLMRunFrame
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.worker import PipelineParams, PipelineWorker
    from pipecat.processors.aggregators.llm_context import LLMContext
    from pipecat.processors.aggregators.llm_response_universal import (
        LLMContextAggregatorPair,
        LLMUserAggregatorParams,
    )
    from pipecat.processors.frame_processor import FrameProcessor
    from pipecat.runner.types import RunnerArguments
    from pipecat.runner.utils import create_transport
    from pipecat.services.openai.llm import OpenAILLMService
    from pipecat.services.tts_service import TextAggregationMode
    from pipecat.transports.base_transport import BaseTransport, TransportParams
    from pipecat.workers.runner import WorkerRunner

from qwen_megakernel.engine.speech_engine import SpeechEngine
from qwen_megakernel.pipecat_tts import MegakernelTTSService

INSTRUCTION = (
    "You are on the phone with the user. Answer in one to three short spoken sentences, without "
    "lists, headings or emoji."
)

transport_params = {
    "webrtc": lambda: TransportParams(audio_in_enabled=True, audio_out_enabled=True)
}


def model_parser() -> argparse.ArgumentParser:
    """Return the parser of the script's own options; Pipecat's runner adds its own."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_model_options(parser, default="demo-voice")
    return parser


@functools.cache
def load_engine() -> SpeechEngine:
    """Load the engine that the command line names, once for all calls."""
    args, _ = model_parser().parse_known_args()
    return options.engine_from_args(args, num_slots=4)


def preload(_: argparse.Namespace) -> int:
    """Load the engine before the first call."""
    load_engine()
    # A full collection looks at every object of the libraries, and no audio is sent until it ends.
    gc.collect()
    gc.freeze()
    return 0


def make_stt() -> FrameProcessor:
    """Make the speech recognition, which runs in this process."""
    from pipecat.services.whisper.stt import WhisperSTTService

    model = os.environ.get("STT_MODEL", "small")
    return WhisperSTTService(settings=WhisperSTTService.Settings(model=model))


def make_llm() -> FrameProcessor:
    """Make the client of any server that has OpenAI's chat completions."""
    settings = OpenAILLMService.Settings(system_instruction=INSTRUCTION)
    if "LLM_MODEL" in os.environ:
        settings.model = os.environ["LLM_MODEL"]
    base_url = os.environ.get("LLM_BASE_URL")
    key = os.environ.get("LLM_API_KEY") or (
        "none" if base_url else os.environ.get("OPENAI_API_KEY")
    )
    return OpenAILLMService(base_url=base_url, api_key=key, settings=settings)


def make_tts(engine: SpeechEngine) -> MegakernelTTSService:
    """Make the service of a call; all calls share one engine."""
    voice = os.environ.get("TTS_VOICE", "aiden" if "aiden" in engine.voices else None)
    return MegakernelTTSService(
        engine=engine,
        text_aggregation_mode=TextAggregationMode(os.environ.get("TTS_MODE", "sentence")),
        settings=MegakernelTTSService.Settings(
            voice=voice, language=os.environ.get("TTS_LANGUAGE", "auto")
        ),
    )


def make_worker(
    transport: BaseTransport, stt: FrameProcessor, llm: FrameProcessor, tts: MegakernelTTSService
) -> PipelineWorker:
    """Make the pipeline of a call."""
    context = LLMContext()
    aggregators = LLMContextAggregatorPair(
        context, user_params=LLMUserAggregatorParams(vad_analyzer=SileroVADAnalyzer())
    )
    pipeline = Pipeline(
        [
            transport.input(),
            stt,
            aggregators.user(),
            llm,
            tts,
            transport.output(),
            aggregators.assistant(),
        ]
    )
    worker = PipelineWorker(
        pipeline, params=PipelineParams(enable_metrics=True, enable_usage_metrics=True)
    )

    @transport.event_handler("on_client_connected")
    async def on_client_connected(*_: object) -> None:
        context.add_message({"role": "user", "content": "Greet me in one short sentence."})
        await worker.queue_frames([LLMRunFrame()])

    @transport.event_handler("on_client_disconnected")
    async def on_client_disconnected(*_: object) -> None:
        await worker.cancel()

    return worker


async def bot(runner_args: RunnerArguments) -> None:
    """Run a call; Pipecat's runner calls this."""
    transport = await create_transport(runner_args, transport_params)
    worker = make_worker(transport, make_stt(), make_llm(), make_tts(load_engine()))
    runner = WorkerRunner(handle_sigint=runner_args.handle_sigint)
    await runner.add_workers(worker)
    await runner.run()


if __name__ == "__main__":
    from pipecat.runner.run import main

    if not {"-h", "--help"} & set(sys.argv):
        extras = ["pipecat-ai[webrtc,runner,whisper]"]
        with running.needed("pipecat", by="voice_agent.py", also=extras):
            # Pipecat imports these when a browser loads the page or opens a connection.
            for name in ("aiortc", "faster_whisper", "pipecat_ai_prebuilt"):
                if importlib.util.find_spec(name) is None:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        code = running.run(preload, model_parser().parse_known_args()[0])
        if code:
            sys.exit(code)
    main(parsing.Parser(description=__doc__.splitlines()[0], parents=[model_parser()]))
