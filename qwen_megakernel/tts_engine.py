"""The engine of Qwen3-TTS: joins tokenizer, decoder, vocoder and voices in one `SpeechEngine`.

Callers give requests to its `StepLoop` and read chunks from their streams, so nothing blocks an
event loop and many callers share one model.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.checkpoint.codec_config import CodecConfig
from qwen_megakernel.checkpoint.frame_weights import frame_weights
from qwen_megakernel.checkpoint.safetensors_file import MappedTensors
from qwen_megakernel.choices import DEFAULT_MODEL, NORMALIZE
from qwen_megakernel.cloning.voice_library import SILENCE_TAIL_SECONDS, Recording, VoiceLibrary
from qwen_megakernel.decoders.backends import (
    Backend,
    check_form,
    choose_backend,
    default_dtype,
    load_decoder,
    memory_for,
)
from qwen_megakernel.decoders.cpu import conversion
from qwen_megakernel.decoders.cpu.decoder import CpuDecoder
from qwen_megakernel.decoders.dtypes import dtypes_of
from qwen_megakernel.decoders.frame_decoder import FrameDecoder
from qwen_megakernel.decoders.prompt import PromptBuilder
from qwen_megakernel.engine.stages import FrameVocoder, Stages
from qwen_megakernel.errors import (
    SetupError,
    UnsupportedModel,
    UsageError,
    check_choice,
    check_counts,
    check_names,
)
from qwen_megakernel.marking import Marking, MarkKey
from qwen_megakernel.native import cpu_threads
from qwen_megakernel.native.cpu_library import CpuPool, return_free_memory
from qwen_megakernel.official_api import OfficialNames
from qwen_megakernel.printable import get_logger
from qwen_megakernel.speech_options import SoundOptions, SpeechOptions
from qwen_megakernel.text.languages import AUTO
from qwen_megakernel.text.parts import TextEncoding
from qwen_megakernel.text.reading.lexicon import Lexicon
from qwen_megakernel.text.reading.reader import Reading
from qwen_megakernel.text.tokenizer import TextTokenizer
from qwen_megakernel.training.trained_voice import TrainedVoice
from qwen_megakernel.vocoder.cpu.vocoder import PACKED, TABLES, CpuVocoder
from qwen_megakernel.vocoder.graph_vocoder import GraphVocoder
from qwen_megakernel.vocoder.vocoder import MAX_TAIL_FRAMES_PER_PASS, Vocoder
from qwen_megakernel.voice import Voice, check_voices

logger = get_logger(__name__)

T = TypeVar("T")


class TTSEngine(OfficialNames):
    """Text in, speech out, streamed. Make one with `TTSEngine.from_pretrained`.

    Args:
        loaded: a checkpoint, from `loading.load`.
        backend: "auto", "kernel", "graph", "cpu", "torch", "emulation" or "coreml"; the attribute
            `backend` names the backend that runs, and `why` the reason for it.
        device: "cpu", "cuda", "cuda:1"; None: a GPU if there is one.
        dtype: "float32" or "bfloat16", or torch's dtype; None: bf16 on a GPU that has it, float32
            in the CPU decoder. "talker=bfloat16,predictor=float32", or the reverse, is for the
            backends "torch" and "graph".
        weights: "int8-talker", "int8" (code predictor, too) or another of `choices.WEIGHTS`, at the
            cost that docs/precision.md documents; None: as the checkpoint stores them.
        num_threads: threads that compute on a CPU; None: as many as speed up a model of this size,
            at most the cores that the process may use (docs/operations.md).
        num_slots: streams that are spoken at the same time; further ones wait.
        max_frames: maximum number of frames of one part of a text; sizes the KV cache.
        voices: a folder of voice files; requests name a file without its ending.
        needed_voices: names of voices, all of which must be known before the weights are read.
        normalize: the meaning of "auto" in a request: "on", "off", or (again "auto") the
            choice of the checkpoint: on for demo-voice, off for the released models, which read
            most numbers themselves (docs/speech-control.md).
        lexicon: respellings of every request: a file, words with respellings, or a `Lexicon`.
        mark: what says that speech is synthetic: a `Marking`, or, for a watermark beside the
            metadata, a `MarkKey` or the file of `mark new-key`; None: metadata alone.
        warmup: speak a sentence, greedily and at random, so that the first request is as fast as
            the tenth; on a GPU also record the vocoder's graphs for every chunk length, which
            takes seconds.
    """

    def __init__(
        self,
        loaded: loading.Checkpoint,
        *,
        backend: str = "auto",
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        weights: str | None = None,
        num_threads: int | None = None,
        num_slots: int = 1,
        max_frames: int = 1000,
        voices: str | Path | None = None,
        needed_voices: Iterable[str] = (),
        normalize: str = "auto",
        lexicon: Lexicon | Mapping[str, str] | str | Path | None = None,
        mark: Marking | MarkKey | str | Path | None = None,
        warmup: bool = True,
    ):
        if not isinstance(loaded, loading.Checkpoint):
            raise UsageError(
                f"loaded is {loaded!r}; it must be a checkpoint.",
                hint=f'Use TTSEngine.from_pretrained("{loaded}").',
            )
        asked_dtype, predictor_dtype = dtypes_of(dtype)
        self.predictor_dtype = predictor_dtype
        chosen = choose_backend(backend, device, weights, dtype)
        self.weights = weights = check_form(loaded, chosen.name, weights)
        self.config, self.ignores_instruct = loaded.config, loaded.config.drops_instruct
        self.files, self.max_frames, self.num_slots = loaded.files, max_frames, num_slots
        self.max_new_tokens = loaded.max_new_tokens
        sound = SoundOptions(leading_silence=loaded.config.leading_silence)
        self._defaults = SpeechOptions(sampling=loaded.sampling, sound=sound)
        self._high_pass = loaded.config.high_pass
        self._voices = VoiceLibrary(loaded, voices)
        if isinstance(needed_voices, str):
            raise UsageError(f"needed_voices is {needed_voices!r}; it must be a list of names.")
        for name in needed_voices:
            self.find_voice(name)
        self.can_clone = self._voices.can_clone
        self._identify = self._voices.x_vector if self.can_clone else None
        self._tokenizer = TextTokenizer(loaded.files.folder, loaded.config)

        width = (asked_dtype or default_dtype(loaded, chosen)).itemsize
        num_bytes = frame_weights(loaded.config).num_bytes(
            width, predictor_dtype.itemsize if predictor_dtype else width
        )
        threads = cpu_threads.choose(num_bytes, num_threads)
        # `build` must not hold on to `self`, which closes the loop.
        made: list[tuple[FrameDecoder, PromptBuilder, Backend]] = []

        def build() -> Stages:
            if chosen.device.type == "cpu":
                cpu_threads.limit_this_thread(threads)
            decoder, running = load_decoder(
                loaded,
                chosen,
                num_slots=num_slots,
                max_frames=max_frames,
                dtype=asked_dtype,
                predictor_dtype=predictor_dtype,
                weights=weights,
                num_threads=num_threads,
            )
            prompts = PromptBuilder(loaded.config, decoder.embeddings)
            with memory_for(
                f"Next to the decoder, the vocoder and its graphs for {num_slots} streams",
                hint="Use fewer slots, or warmup=False, which records fewer graphs.",
            ):
                codec = loaded.codec_config, loaded.codec_decoder
                vocoder: FrameVocoder | None = None
                if isinstance(decoder, CpuDecoder):
                    vocoder, running = _native_vocoder(*codec, decoder.pool, running)
                elif chosen.device.type == "cuda":
                    vocoder = graphs = GraphVocoder(*codec, chosen.device)
                    if warmup:
                        graphs.record(num_slots)
                if vocoder is None:
                    vocoder = Vocoder(*codec, chosen.device)
            made.append((decoder, prompts, running))
            return Stages(decoder, prompts, vocoder, decoder.is_asynchronous)

        super().__init__(
            build,
            sample_rate=loaded.codec_config.sample_rate,
            seconds_per_frame=loaded.codec_config.frame_seconds,
            reading=Reading(
                loaded.config.normalize, normalize, Lexicon.of(lexicon), loaded.config.names_letters
            ),
            mark=mark,
        )
        decoder, self._prompts, running = made.pop()
        self.dtype, self.num_threads = decoder.dtype, decoder.num_threads or self.num_threads
        self.backend, self.why, self.device = running.name, running.why, running.device
        packed = loaded.codec_decoder.get(PACKED)
        if packed is not None and packed.dtype == torch.float16:
            self.vocoder_weights = "float16"
            self.why += "; the vocoder's in float16"
        self._read_languages = [name for name in self.languages if name != AUTO]
        logger.info("%s on %s in %s: %s.", self.backend, self.device, self.dtype_name, self.why)
        if warmup:
            self._reading.warm_up()
            started = time.perf_counter()
            self.real_time_factor = rtf = self._warm_up()
            logger.debug("Warmed up in %.2f s.", time.perf_counter() - started)
            if rtf > 1 and self.backend == "cpu" and not weights:
                logger.warning(
                    "On this CPU, speech takes %.1f times as long to make as to play. 8-bit "
                    "weights are read in half the time: --weights int8, in Python weights='int8'.",
                    rtf,
                )

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path = DEFAULT_MODEL,
        *,
        adapter: str | Path | None = None,
        local_files_only: bool = False,
        progress: bool = True,
        keep_packed: bool = False,
        **options: Any,
    ) -> Self:
        """Load a model and start its engine.

        Args:
            model: hub id, folder, "demo-voice", or random weights ("tiny-random", ...).
            adapter: folder of a voice of `train run`, or "NAME=FOLDER", to merge with its base
                model while that is loaded: the engine then has this speaker alone.
            local_files_only: use only local files, without any network access.
            progress: show a download bar on stderr.
            keep_packed: keep the weights in the cache as the native CPU decoder reads them; later
                starts map them (docs/operations.md).
            options: backend, device, dtype, weights, num_threads, num_slots, max_frames, voices,
                needed_voices, normalize, lexicon, mark and warmup of `TTSEngine`.
        Raises:
            ModelFilesError: files are missing, unreachable or damaged.
            SetupError: the requested backend cannot run on this machine.
            UsageError: there is no such option.
        """
        known = (TTSEngine.from_pretrained, TTSEngine.__init__)
        check_names(options, [name for each in known for name in each.__kwdefaults__ or ()])
        # What no model can have is refused before a download.
        options["mark"] = Marking.of(options.get("mark"))
        options["lexicon"] = Lexicon.of(options.get("lexicon"))
        check_choice("normalize", options.get("normalize", AUTO), NORMALIZE)
        check_voices(options.get("voices"))
        dtypes_of(options.get("dtype"))
        counts = ("num_slots", "max_frames", "num_threads")
        check_counts(**{name: options.get(name) for name in counts})
        asked = [options.get(name) for name in ("device", "weights", "dtype")]
        chosen = choose_backend(options.get("backend", "auto"), *asked)
        if keep_packed and chosen.name != "cpu":
            raise UsageError(
                f"keep_packed is for the native CPU decoder; the backend is {chosen.name}.",
                hint="Leave it out, or use backend cpu.",
            )
        if keep_packed and adapter is not None:
            raise UsageError(
                "keep_packed keeps the weights of a model; those of an adapter are made at load.",
                hint="Merge the adapter first: qwen-megakernel train merge",
            )
        trained = None if adapter is None else TrainedVoice.read(adapter)
        files = loading.resolve(model, local_files_only=local_files_only, progress=progress)
        if keep_packed:
            files = conversion.kept(files, options.get("weights"))
        loaded = loading.load(files, chosen.device)  # the native decoder takes addresses
        if trained:
            trained.merge_into(loaded)
        return cls(loaded, **options)

    # ---- for callers -----------------------------------------------------------------------------

    # This holds even if all of an open text has arrived when its prompt is built.
    _open_text_feed = "stepwise"

    @property
    def voices(self) -> list[str]:
        return self._voices.speakers + self._voices.presets

    @property
    def default_voice(self) -> str | None:
        return next(iter(self.config.talker.speakers), None)

    def find_voice(self, voice: str | Voice | None, style: str | None = None) -> str | Voice | None:
        if voice is None:
            voice = self.default_voice
            if style is None:
                return voice
        return self._voices.resolve(voice, style)

    @property
    def languages(self) -> list[str]:
        return self._prompts.languages

    def _encoding(self, request: SpeechOptions) -> TextEncoding:
        return self._tokenizer.encoding(self._prompts.resolve(request))

    def check_continuity(self) -> list[str]:
        if not self.config.continues_speech:
            return super().check_continuity()
        if self.config.model_type == "base":
            return []
        return [
            f'continuity "context" is untried on released {self.config.model_type} weights, whose '
            "training may have had no frames in context"
        ]

    def create_voice(
        self,
        audio: Recording,
        text: str | None = None,
        *,
        rate: int | None = None,
        name: str | None = None,
        silence_tail: float = SILENCE_TAIL_SECONDS,
    ) -> Voice:
        """Clone a voice from 1 to 60 s of one speaker; see `VoiceLibrary.create`.

        With `text`, which must be the exact transcript, the voice is used in context, otherwise by
        its x-vector alone.
        The engine remembers the last few recordings: a repeated call only computes a hash. With the
        native CPU decoder, cloning uses one core, so that the engine can continue to speak.
        """
        return self._beside_speech(
            lambda: self._voices.create(
                audio, text, rate=rate, name=name, silence_tail=silence_tail
            )
        )

    def encode(self, audio: Recording, rate: int | None = None) -> np.ndarray:
        """Return a recording's codes, [num_frames, num_code_groups] int32; `decode` reverses it."""
        return self._beside_speech(lambda: self._voices.encode(audio, rate))

    def _beside_speech(self, work: Callable[[], T]) -> T:
        return work() if self.backend != "cpu" else self._workers.submit(work).result()

    @property
    def reference_cache_hits(self) -> int:
        return self._voices.cache.hits

    def clear_reference_cache(self) -> None:
        """Forget every recording; voices that were made stay usable."""
        self._voices.cache.clear()

    def _warm_up(self) -> float:
        """Run every stage, with greedy and with random draws; return the real-time factor.

        PyTorch prepares each chunk size of the default ramp when it is first used. Native code has
        nothing to prepare; one pass of the vocoder at its longest allocates all of its buffers.
        """
        voice: Voice | None = None
        if self.config.model_type == "base":  # without a voice it would log a warning
            width = self.config.talker.stack.hidden_size
            voice = Voice("warm-up", x_vector=np.zeros(width, dtype=np.float32))
        is_native = isinstance(self._loop.stages.vocoder, CpuVocoder)
        return self._speak_both_ways(
            "This takes two seconds to say, and so it has every chunk size.",
            MAX_TAIL_FRAMES_PER_PASS if is_native else 25,
            voice=voice,
            # Stepwise, the decoder would refuse a text with more rows than `max_frames`.
            text_feed="full",
            first_chunk_frames=MAX_TAIL_FRAMES_PER_PASS if is_native else 1,
        )


def _native_vocoder(
    config: CodecConfig, tensors: dict[str, Tensor], pool: CpuPool, running: Backend
) -> tuple[CpuVocoder | None, Backend]:
    """Create the native vocoder, which runs in the decoder's threads.

    Returns:
        The vocoder and `running`; or, if the vocoder cannot run and "auto" chose the backend, None
        and `running` with a reason that names PyTorch's vocoder.
    Raises:
        UnsupportedModel, SetupError: the vocoder cannot run, and the user chose the backend.
        OutOfMemory: the vocoder does not fit; as in `load_decoder`, nothing replaces it.
    """
    try:
        vocoder = CpuVocoder(config, tensors, pool)
    except (UnsupportedModel, SetupError) as error:
        if not running.may_change or PACKED in tensors:
            raise
        logger.warning("%s The vocoder is PyTorch's instead, which takes twice as long.", error)
        return None, replace(running, why=f"{running.why}; the vocoder by PyTorch: {error.what}")
    cpu_threads.limit_this_thread(1)  # torch's threads spin for milliseconds, on the pool's cores
    if isinstance(tensors, MappedTensors):  # the vocoder has copied what it reads, but for two
        tensors.release(tensors.keys() - {PACKED, TABLES})
    return_free_memory()
    return vocoder, running
