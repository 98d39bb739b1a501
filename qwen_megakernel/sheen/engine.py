"""The engine of the second family, Sheen: a `SpeechEngine` with stages of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from qwen_megakernel.checkpoint.config_fields import read_json
from qwen_megakernel.checkpoint.loading import GENERATION_CONFIG
from qwen_megakernel.cloning import recordings
from qwen_megakernel.decoders.backends import Backend, choose_backend, gpu_dtype
from qwen_megakernel.decoders.dtypes import dtype_of
from qwen_megakernel.engine.speech_engine import SpeechEngine
from qwen_megakernel.engine.stages import Stages
from qwen_megakernel.errors import (
    SetupError,
    TaskError,
    UnknownVoice,
    UnsupportedModel,
    UsageError,
    check_names,
)
from qwen_megakernel.marking import Marking, MarkKey
from qwen_megakernel.native import cpu_threads
from qwen_megakernel.printable import get_logger
from qwen_megakernel.records import Files
from qwen_megakernel.sheen import model_folder
from qwen_megakernel.sheen.codec import SnacCodec
from qwen_megakernel.sheen.codes import CODES_PER_FRAME
from qwen_megakernel.sheen.decoder import Prompts, SheenDecoder, num_positions
from qwen_megakernel.sheen.language_model import (
    KernelLanguageModel,
    LanguageModel,
    TorchLanguageModel,
)
from qwen_megakernel.sheen.model_folder import SNAC_FOLDER
from qwen_megakernel.sheen.text_input import TextInput
from qwen_megakernel.speech_options import Sampling, SpeechOptions
from qwen_megakernel.text.languages import AUTO, language_of_code, resolve_language
from qwen_megakernel.text.parts import TextEncoding
from qwen_megakernel.text.reading.lexicon import Lexicon
from qwen_megakernel.text.reading.reader import Reading
from qwen_megakernel.voice import Voice

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = get_logger(__name__)

# Options of `TTSEngine` that a trained voice lacks: what the error of a value says, and its hint.
LACKING = {
    "weights": ("has no {} weights", "Omit the option."),
    "keep_packed": ("has no packed weights", "Omit --keep-packed."),
    "adapter": ("takes no adapter", "Omit --adapter."),
}


class SheenEngine(SpeechEngine):
    """The engine of a trained voice, its only one, which is named after its folder.

    Make one with `SheenEngine.from_pretrained`.

    Args:
        files: the voice, from `model_folder.find`.
        backend: "kernel", "emulation", "torch" (transformers), or "auto": the kernel if it runs.
        device, dtype, num_threads, num_slots, warmup: see `TTSEngine`.
        max_frames: maximum number of frames of one part of a text; None: as many as the longest
            training sequence had room for.
        phonemes: whether texts are phonemes, even if the voice was trained with espeak-ng.
        order: "repair" or "refuse", see `decoder.ORDERS`.
        voices: a folder of voice files, which voices of this family cannot use.
        needed_voices: names of voices, which must be the voice's own.
        normalize: the meaning of "auto" in a request; "auto" means "off": espeak-ng reads numbers.
        lexicon, mark: respellings and marks for every request; see `TTSEngine`.
    Raises:
        ModelFilesError: a file is damaged, or does not fit the others.
        UsageError: an argument can never work.
    """

    def __init__(
        self,
        files: Files,
        *,
        backend: str = "auto",
        device: str | None = None,
        dtype: str | None = None,
        num_threads: int | None = None,
        num_slots: int = 1,
        max_frames: int | None = None,
        phonemes: bool = False,
        order: str = "repair",
        voices: str | Path | None = None,
        needed_voices: Iterable[str] = (),
        normalize: str = "auto",
        lexicon: Lexicon | Mapping[str, str] | str | Path | None = None,
        mark: Marking | MarkKey | str | Path | None = None,
        warmup: bool = True,
    ):
        asked_dtype, mark = dtype_of(dtype), Marking.of(mark)
        if voices is not None:
            raise self._one_voice("A folder of voices", files)
        chosen = _choose_backend(backend, device)
        self.backend, self.why, self.device = chosen.name, chosen.why, chosen.device
        self.files, self.num_slots = files, num_slots
        for name in needed_voices:
            self.find_voice(name)
        self.config = model_folder.read_config(files.folder)
        room = self.config.max_length // CODES_PER_FRAME
        self.max_frames = room if max_frames is None else max_frames
        on_gpu = self.device.type == "cuda"
        self.dtype = asked_dtype or (gpu_dtype(self.device) if on_gpu else torch.float32)
        path = files.folder / GENERATION_CONFIG
        with model_folder.readable(path, UsageError):
            values = read_json(path) if path.is_file() else {}
            self._defaults = SpeechOptions(sampling=Sampling.from_generation_config(values))
        tokenizer = model_folder.load_tokenizer(files.folder, local_files_only=True)
        tokens = model_folder.audio_tokens(files.folder, tokenizer)
        self._text = TextInput(tokenizer, None if phonemes else self.config.espeak)
        self.takes_phonemes = phonemes or not self.config.espeak

        def build() -> Stages:
            model = model_folder.load_language_model(
                files.folder, self.dtype, local_files_only=True
            )
            model_folder.check_rows(files.folder, model, tokens)
            if not on_gpu:
                num_bytes = CODES_PER_FRAME * model.num_parameters() * self.dtype.itemsize
                cpu_threads.limit_this_thread(cpu_threads.choose(num_bytes, num_threads))
            limit = model.config.max_position_embeddings
            positions = num_positions(self.config.max_length, self.max_frames, limit)
            model.to(self.device)  # type: ignore[arg-type]  # transformers hides its self
            language_model = self._language_model(model, positions, chosen)
            decoder = SheenDecoder(
                language_model,
                tokens,
                num_slots=num_slots,
                max_prompt=self.config.max_length,
                max_frames=self.max_frames,
                order=order,
            )
            return Stages(decoder, Prompts(tokens), self._codec)

        self._codec = SnacCodec(files.folder / SNAC_FOLDER, self.device)
        super().__init__(
            build,
            sample_rate=self._codec.sample_rate,
            seconds_per_frame=self._codec.seconds_per_frame,
            reading=Reading(False, normalize, Lexicon.of(lexicon)),
            mark=mark,
        )
        logger.info("%s on %s in %s: %s.", self.backend, self.device, self.dtype, self.why)
        if warmup:
            self._speak_both_ways("a", self._codec.lookahead + 1)  # "a" is a word and a phoneme

    @classmethod
    def from_pretrained(
        cls, model: str, *, local_files_only: bool = False, progress: bool = True, **options: Any
    ) -> SheenEngine:
        """Load a voice and start its engine.

        Args:
            model: the folder that `sheen train` wrote.
            local_files_only, progress: ignored, since a folder is complete.
            options: the keywords of `SheenEngine`.
        Raises:
            ModelFilesError: `model` is no such folder, or a file is damaged.
            UsageError: there is no such option, or a trained voice lacks it (`LACKING`).
        """
        for name, (why, hint) in LACKING.items():
            if value := options.pop(name, None):
                raise UsageError(f"A trained voice {why.format(value)}.", hint=hint)
        check_names(options, SheenEngine.__init__.__kwdefaults__ or ())
        return cls(model_folder.find(model), **options)

    # ---- for callers -----------------------------------------------------------------------------

    @property
    def voices(self) -> list[str]:
        return [self.default_voice]

    @property
    def default_voice(self) -> str:
        return self.files.folder.resolve().name

    @property
    def languages(self) -> list[str]:
        spoken = language_of_code(self.config.espeak or "")
        return [AUTO, spoken] if spoken else [AUTO]

    def find_voice(self, voice: str | Voice | None, style: str | None = None) -> str:
        if style is not None:
            raise TaskError(f"style is {style!r}; voices of this family have no styles.")
        if isinstance(voice, Voice):
            raise self._one_voice(f"The voice {voice.name!r}", self.files)
        if voice not in (None, self.default_voice):
            raise UnknownVoice(f'Unknown voice "{voice}". This model has: {self.default_voice}.')
        return self.default_voice

    def _encoding(self, request: SpeechOptions) -> TextEncoding:
        if request.instruct:
            raise TaskError("Voices of this family take no instruct; none was used in training.")
        if request.text_feed == "stepwise":
            raise TaskError('text_feed is "stepwise"; voices of this family read all text first.')
        resolve_language(request.language, self.languages)
        return self._text.encoding(request)

    def encode(self, audio: str | Path | np.ndarray, rate: int | None = None) -> np.ndarray:
        """Return the codes of a file, or of [num_samples] float samples at `rate`.

        They are [num_frames, 7] int32, which `decode` reverses.
        """
        if isinstance(audio, str | Path):
            audio, rate = recordings.read(audio)
        samples = recordings.to_mono(audio)
        return self._loop.run(lambda: self._codec.encode(samples, rate or self.sample_rate))

    def create_voice(self, audio: Any, *args: Any, **options: Any) -> Voice:
        raise self._one_voice("A recording", self.files)

    @staticmethod
    def _one_voice(what: str, files: Files) -> TaskError:
        return TaskError(
            f"{what} cannot be used: {files.name} has only the voice it was trained on.",
            hint="Clone voices with a Qwen3-TTS Base model.",
        )

    def _language_model(
        self, model: PreTrainedModel, max_positions: int, chosen: Backend
    ) -> LanguageModel:
        if chosen.name != "torch":
            try:
                return KernelLanguageModel(model, self.num_slots, max_positions)
            except (SetupError, UnsupportedModel) as error:
                if not chosen.may_change:
                    raise
                logger.warning("%s", error)
                self.backend, self.why = "torch", f"the kernel cannot run here: {error.what}"
        return TorchLanguageModel(model, self.num_slots)


def _choose_backend(requested: str, device: str | None) -> Backend:
    """Choose with `backends.choose_backend` among the kernel, its emulation and torch."""
    if requested in ("graph", "cpu", "coreml"):
        raise UsageError(
            f'backend is "{requested}"; '
            'voices of this family have "kernel", "torch" and "emulation".'
        )
    chosen = choose_backend(requested, device)
    if chosen.name in ("graph", "cpu"):
        why = f"{chosen.why}; backend {chosen.name} runs only Qwen3-TTS"
        return replace(chosen, name="torch", why=why, may_change=False)
    return chosen
