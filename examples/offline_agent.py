"""Run a voice agent without network, key or microphone: python examples/offline_agent.py

A scripted user asks, listens, and then talks over the answer. The recogniser and the LLM are
scripted, too; voice activity detection, turns, barge-in, context, Qwen3-TTS and a loudspeaker that
plays in real time are real. The example writes what the loudspeaker played to a file.

The agent speaks with demo-voice, which the package contains, unless --model names another model.

    python examples/offline_agent.py --output agent.wav
    python examples/offline_agent.py --token --vad silero --user question.wav
"""

import argparse
import asyncio
import re
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qwen_megakernel import audio, signals
from qwen_megakernel.audio import WavWriter
from qwen_megakernel.cli import options, parsing, running
from qwen_megakernel.cloning import recordings
from qwen_megakernel.speech_options import SpeechOptions

with running.needed("pipecat", by="offline_agent.py"):
    from loguru import logger
    from pipecat.audio.vad.vad_analyzer import VADAnalyzer, VADParams
    from pipecat.frames.frames import (
        BotStartedSpeakingFrame,
        Frame,
        InputAudioRawFrame,
        LLMContextFrame,
        LLMFullResponseEndFrame,
        LLMFullResponseStartFrame,
        OutputAudioRawFrame,
        StartFrame,
        TranscriptionFrame,
    )
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.worker import PipelineParams, PipelineWorker
    from pipecat.processors.aggregators.llm_context import LLMContext
    from pipecat.processors.aggregators.llm_response_universal import (
        LLMContextAggregatorPair,
        LLMUserAggregatorParams,
    )
    from pipecat.processors.frame_processor import FrameDirection
    from pipecat.services.llm_service import LLMService
    from pipecat.services.settings import LLMSettings, STTSettings
    from pipecat.services.stt_service import SegmentedSTTService
    from pipecat.services.tts_service import TextAggregationMode
    from pipecat.transports.base_input import BaseInputTransport
    from pipecat.transports.base_output import BaseOutputTransport
    from pipecat.transports.base_transport import TransportParams
    from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
    from pipecat.turns.user_turn_strategies import UserTurnStrategies
    from pipecat.utils.time import time_now_iso8601
    from pipecat.workers.runner import WorkerRunner

    from qwen_megakernel.pipecat_tts import MegakernelTTSService

IN_RATE = 16000
OUT_RATE = 24000
FRAME_S = 0.02
WORDS_PER_S = 50  # pace of the scripted LLM

QUESTIONS = ("Tell me a story.", "Stop. What time is it?")
ANSWERS = (
    "Once upon a time there was a very small house at the edge of a wood. In it lived a fox who "
    "could play the violin. Every evening the animals came to listen.",
    "It is half past nine.",
)


class EnergyVAD(VADAnalyzer):
    """Takes any sound for speech; Silero, which detects voices, needs a recording of one."""

    def num_frames_required(self) -> int:
        """Return how many samples are judged at a time."""
        return int(self.sample_rate * FRAME_S)

    def voice_confidence(self, buffer: bytes) -> float:
        """Return 1 for sound, 0 for silence."""
        return float(np.abs(np.frombuffer(buffer, np.int16).astype(int)).mean() > 500)


class User(BaseInputTransport):
    """The user: asks, listens to the answer for a while, and interrupts it with the next question.

    Args:
        speech: [num_samples] int16 at 16 kHz, the sound of every question.
        num_questions: how many to ask.
        patience_s: seconds to listen before interrupting.
    """

    def __init__(self, speech: np.ndarray, num_questions: int, patience_s: float):
        super().__init__(TransportParams(audio_in_enabled=True, audio_in_sample_rate=IN_RATE))
        self.spoken: list[tuple[float, float]] = []  # begin and end of each question
        self._speech, self._num_questions, self._patience_s = speech, num_questions, patience_s
        self._answered = asyncio.Event()
        self._talking: asyncio.Task | None = None

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)
        self._talking = self.create_task(self._talk())

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, BotStartedSpeakingFrame):
            self._answered.set()
        await super().process_frame(frame, direction)

    async def cleanup(self) -> None:
        if self._talking:
            await self.cancel_task(self._talking)
        await super().cleanup()

    async def _talk(self) -> None:
        ask_at: float | None = time.monotonic() + 0.3
        samples_per_frame = int(IN_RATE * FRAME_S)
        silence, left = np.zeros(samples_per_frame, np.int16), self._speech[:0]
        due = time.monotonic()
        while True:
            now = time.monotonic()
            if ask_at is None and self._answered.is_set():
                ask_at = now + self._patience_s
            elif ask_at is not None and now > ask_at and len(self.spoken) < self._num_questions:
                self._answered.clear()
                self.spoken.append((now, now + len(self._speech) / IN_RATE))
                ask_at, left = None, self._speech
            samples, left = left[:samples_per_frame], left[samples_per_frame:]
            audio = samples if len(samples) == samples_per_frame else silence
            await self.push_audio_frame(InputAudioRawFrame(audio.tobytes(), IN_RATE, 1))
            due += FRAME_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))


class ScriptedSTT(SegmentedSTTService):
    """Returns the script's next question for any speech."""

    def __init__(self, questions: Sequence[str]):
        super().__init__(
            sample_rate=IN_RATE,
            ttfs_p99_latency=0.25,
            settings=STTSettings(model="script", language=None),
        )
        self._questions = iter(questions)

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        yield TranscriptionFrame(next(self._questions), "user", time_now_iso8601())


class ScriptedLLM(LLMService):
    """Sends the script's next answer, word by word."""

    def __init__(self, answers: Sequence[str]):
        settings = {name: None for name in LLMSettings.__dataclass_fields__ if name[0] != "_"}
        super().__init__(settings=LLMSettings(**settings | {"model": "script", "extra": {}}))
        self._answers = iter(answers)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Answer a context; pass all other frames on."""
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        await self.push_frame(LLMFullResponseStartFrame())
        for piece in re.findall(r"\s*\S+", next(self._answers)):
            await self._push_llm_text(piece)
            await asyncio.sleep(1 / WORDS_PER_S)
        await self.push_frame(LLMFullResponseEndFrame())


class Loudspeaker(BaseOutputTransport):
    """Plays each chunk in real time, and keeps the samples and their times."""

    def __init__(self) -> None:
        super().__init__(
            TransportParams(
                audio_out_enabled=True, audio_out_sample_rate=OUT_RATE, audio_out_end_silence_secs=0
            )
        )
        self.played: list[tuple[float, np.ndarray]] = []  # begin, [num_samples] int16
        self._free_at = 0.0

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Play a chunk; returns when a listener would have heard it."""
        now = time.monotonic()
        begin = max(now, self._free_at)
        self.played.append((begin, np.frombuffer(frame.audio, np.int16)))
        self._free_at = begin + frame.num_frames / frame.sample_rate
        await asyncio.sleep(self._free_at - now)
        return True


@dataclass
class Conversation:
    """The messages of a conversation and the times of its audio, in seconds of one clock."""

    messages: list[dict[str, str]] = field(default_factory=list)
    spoken: list[tuple[float, float]] = field(default_factory=list)  # each question: begin, end
    played: list[tuple[float, np.ndarray]] = field(default_factory=list)  # each chunk of answers

    def answer_after_s(self, question: int) -> float:
        """Return the time from the end of a question to the first chunk of its answer."""
        until = self.spoken[question][1]
        return min(begin for begin, _ in self.played if begin > until) - until

    def talked_over_s(self, question: int) -> float:
        """Return how many seconds of a question pass before the bot is silent."""
        begin, until = self.spoken[question]
        ends = [at + len(pcm) / OUT_RATE for at, pcm in self.played if begin < at < until]
        return max(ends, default=begin) - begin

    def timeline(self) -> np.ndarray:
        """Return [num_samples] int16, what the loudspeaker played, pauses included."""
        start = self.spoken[0][0]
        end = max(at + len(pcm) / OUT_RATE for at, pcm in self.played)
        samples = np.zeros(int((end - start) * OUT_RATE) + 1, np.int16)
        for at, pcm in self.played:
            first = int((at - start) * OUT_RATE)
            samples[first : first + len(pcm)] = pcm[: len(samples) - first]
        return samples


async def converse(
    tts: MegakernelTTSService,
    *,
    vad: VADAnalyzer | None = None,
    speech: np.ndarray | None = None,
    patience_s: float = 1.5,
) -> Conversation:
    """Run the conversation of the scripted user and the agent.

    Args:
        tts: the service that speaks for the agent.
        vad: detects the user's speech; None: `EnergyVAD`.
        speech: [num_samples] int16 at 16 kHz, the sound of the user's questions; None: a hum.
        patience_s: seconds after which the user talks over the first answer.
    """
    if speech is None:
        t = np.arange(int(0.7 * IN_RATE)) / IN_RATE
        speech = (9000 * np.sin(2 * np.pi * 180 * t)).astype(np.int16)
    vad = vad or EnergyVAD(params=VADParams(start_secs=0.1, stop_secs=0.2, min_volume=0.0))
    user, loudspeaker = User(speech, len(QUESTIONS), patience_s), Loudspeaker()
    context = LLMContext()
    stop = SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.2)
    aggregators = LLMContextAggregatorPair(
        context,
        user_params=LLMUserAggregatorParams(
            vad_analyzer=vad, user_turn_strategies=UserTurnStrategies(stop=[stop])
        ),
    )
    pipeline = Pipeline(
        [
            user,
            ScriptedSTT(QUESTIONS),
            aggregators.user(),
            ScriptedLLM(ANSWERS),
            tts,
            loudspeaker,
            aggregators.assistant(),
        ]
    )
    worker = PipelineWorker(
        pipeline,
        params=PipelineParams(audio_in_sample_rate=IN_RATE, audio_out_sample_rate=OUT_RATE),
        enable_rtvi=False,
    )
    num_answers = 0

    @aggregators.assistant().event_handler("on_assistant_turn_stopped")
    async def on_assistant_turn_stopped(*_: Any) -> None:
        nonlocal num_answers
        num_answers += 1
        if num_answers == len(ANSWERS):
            await worker.stop_when_done()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        asyncio.run_coroutine_threadsafe(runner.cancel("interrupted"), loop)

    with signals.deferred_signals(cancel):
        await runner.run()
    return Conversation(list(context.messages), user.spoken, loudspeaker.played)


def main(args: argparse.Namespace) -> int:
    """Run the conversation, write what was played, and print the delays."""
    logger.remove()
    logger.add(sys.stderr, level="DEBUG" if args.debug else "ERROR")
    # Refuse wrong arguments before a model is loaded.
    audio.check_path(args.output)
    SpeechOptions(seed=args.seed or 0)
    speech, vad = None, None
    if args.user:
        samples = recordings.resample(*recordings.read(args.user), IN_RATE)
        speech = (samples * 32767).astype(np.int16)
    if args.vad == "silero":
        from pipecat.audio.vad.silero import SileroVADAnalyzer

        vad = SileroVADAnalyzer()
    mode = TextAggregationMode.TOKEN if args.token else TextAggregationMode.SENTENCE
    with options.engine_from_args(args) as engine, WavWriter(args.output, OUT_RATE) as file:
        tts = MegakernelTTSService(
            engine=engine,
            text_aggregation_mode=mode,
            settings=MegakernelTTSService.Settings(voice=args.voice, seed=args.seed),
        )
        said = asyncio.run(converse(tts, vad=vad, speech=speech))
        file.write(said.timeline())
    for message in said.messages:
        print(f"{message['role']:>9}: {message['content']}")
    for i, question in enumerate(QUESTIONS):
        print(f"answer {1000 * said.answer_after_s(i):.0f} ms after the end of {question!r}")
    print(f"silent {1000 * said.talked_over_s(1):.0f} ms after the user talked over it")
    return 0


def parse_args() -> argparse.Namespace:
    parser = parsing.Parser(description=__doc__.splitlines()[0])
    add = parsing.adder(parser)
    add("-o --output", "audio file to write", parsing.file_name, "agent.wav")
    add("--token", "speak each turn as one request, fed word by word", bool)
    add("--vad", "detector of the user's speech", ("energy", "silero"), "energy")
    add("--user WAV", "recording of the user's speech (default: a hum)", parsing.file_name)
    add("--voice", "speaker of the model, or name of a file in --voices")
    add("--seed", "number that makes speech repeatable (default: drawn)", int)
    options.add_model_options(parser, default="demo-voice")
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    sys.exit(running.run(main, args))
