"""The voices of a checkpoint: cloned from recordings, found by name, cached while in use."""

import contextlib
import hashlib
import os
import reprlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np

from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.checkpoint.tensor_shapes import CODEC_ENCODER_PREFIX, SPEAKER_ENCODER_PREFIX
from qwen_megakernel.cloning import recordings
from qwen_megakernel.cloning.codec_encoder import CodecEncoder
from qwen_megakernel.cloning.mixing import mix_of
from qwen_megakernel.cloning.speaker_encoder import SpeakerEncoder
from qwen_megakernel.errors import (
    RecordingError,
    TaskError,
    UnknownVoice,
    UsageError,
    VoiceMismatch,
    check_type,
    plain_number,
)
from qwen_megakernel.printable import get_logger, printable
from qwen_megakernel.speech_options import check_text
from qwen_megakernel.voice import PRESETS_FILE, VOICE_SUFFIX, Voice, check_voices, unknown_voice

logger = get_logger(__name__)

# Silence after the reference of an in-context voice. The model continues from its last frame, so
# without silence the sound in which a recording was cut would begin the new speech.
SILENCE_TAIL_SECONDS = 0.5

# A file, [num_samples] or [num_samples, num_channels], or such samples with their rate.
Recording = str | Path | np.ndarray | tuple[np.ndarray, int]

CACHE_CAPACITY = 4  # recordings; each entry is an x-vector and the codes


class ReferenceCache:
    """Remembers the values that were computed from the last recordings, for all callers.

    If several requests need one recording, the first computes and the others wait for it.
    """

    def __init__(self) -> None:
        self.hits = 0  # requests that found everything
        self._lock = threading.Lock()
        # For each recording a lock, held while a value is computed, and its values.
        self._references: OrderedDict[bytes, tuple[threading.Lock, dict[object, np.ndarray]]]
        self._references = OrderedDict()

    def get(
        self, samples: np.ndarray, rate: int, wanted: dict[object, Callable[[], np.ndarray]]
    ) -> dict[object, np.ndarray]:
        """Look up, or compute, values of a recording.

        Args:
            samples, rate: the recording; its hash is the key.
            wanted: the function that computes each value, by the value's name.
        """
        digest = hashlib.sha256(str(rate).encode())
        digest.update(np.ascontiguousarray(samples).data)
        key = digest.digest()
        with self._lock:
            computing, values = self._references.setdefault(key, (threading.Lock(), {}))
            self._references.move_to_end(key)
            if len(self._references) > CACHE_CAPACITY:
                self._references.popitem(last=False)
        with computing:
            missing = [name for name in wanted if name not in values]
            for name in missing:
                values[name] = wanted[name]()
        with self._lock:
            self.hits += not missing
        return {name: values[name] for name in wanted}

    def clear(self) -> None:
        """Forget every recording, but keep the counter."""
        with self._lock:
            self._references.clear()

    def __len__(self) -> int:
        return len(self._references)


class VoiceLibrary:
    """Makes voices for a checkpoint, and finds the voices with which it can speak.

    Args:
        loaded: the checkpoint; its encoders are read when they are first needed.
        folder: a folder of voice files and possibly a `voice_presets.bin`; None: there is none.
            Every request reads it again, so files may be added and deleted.
    Raises:
        UsageError: there is no folder `folder`.
    """

    def __init__(self, loaded: Checkpoint, folder: str | Path | None = None):
        check_voices(folder)
        self.cache = ReferenceCache()
        self._loaded = loaded
        self._folder = None if folder is None else Path(folder)
        self._damaged: RecordingError | None = None  # of the presets that were read last
        self._speakers = {name.lower(): name for name in loaded.config.talker.speakers}

    # ---- finding ---------------------------------------------------------------------------------

    @property
    def speakers(self) -> list[str]:
        """Names of the checkpoint's own speakers."""
        return sorted(self._speakers.values())

    @property
    def presets(self) -> list[str]:
        """Names of the voices in the voices folder and beside the model's weights."""
        names = set(self._read_presets())
        if self._folder is not None:
            files = self._folder.glob(f"[!.]*{VOICE_SUFFIX}")
            names |= {path.name.removesuffix(VOICE_SUFFIX) for path in files if path.is_file()}
        return sorted(names)

    def resolve(self, voice: str | Voice | None, style: str | None = None) -> str | Voice:
        """Find a voice: a speaker's name, or a `Voice`.

        Args:
            voice: a `Voice`; or a speaker of the checkpoint (in any case), a preset's name, the
                path of a voice file, or a mix of them as in "anna(2)+ben", tried in this order.
                None needs a `style`, and is refused.
            style: a style of a cloned voice; None: its default.
        Raises:
            UnknownVoice: there is no voice of that name; the error lists the known ones.
            VoiceMismatch: the voice was made with the encoders of another checkpoint.
            RecordingError: the voice's file is damaged.
            UsageError: the voice has no such style; the error lists those that it has.
        """
        check_type("voice", voice, str | Voice | None, "a name or a Voice")
        speaker = self._speakers.get(voice.lower()) if isinstance(voice, str) else None
        if style is not None and (speaker or voice is None):
            whose = f"the speaker {speaker!r} is" if speaker else "the model's own voice is"
            raise UsageError(
                f"style is {printable(style)!r}; {whose} part of the checkpoint and has no styles.",
                hint="A voice file can have styles: qwen-megakernel voices create FOLDER -o FILE",
            )
        if speaker:
            return speaker
        assert voice is not None
        found = voice if isinstance(voice, Voice) else self._find(voice)
        fingerprint = found.fingerprint
        if fingerprint is not None and self.can_clone and fingerprint != self.fingerprint:
            raise VoiceMismatch(
                f"Voice {found.name!r} was made with {fingerprint}; the loaded model is "
                f"{self.fingerprint}.",
                "An x-vector works only with the checkpoint whose encoder made it.",
                f"Re-create it: qwen-megakernel voices create RECORDING -o {found.name}"
                f"{VOICE_SUFFIX} --model {self._loaded.files.name}",
            )
        return found if style is None else found.in_style(style)

    def _find(self, name: str) -> Voice:
        presets = self.presets
        if name in presets:  # the voice's file may have been deleted since
            path = None if self._folder is None else self._folder / f"{name}{VOICE_SUFFIX}"
            with contextlib.suppress(KeyError, UnknownVoice):
                return Voice.load(path) if path and path.is_file() else self._read_presets()[name]
            presets.remove(name)
        elif name.endswith(VOICE_SUFFIX) and ("+" not in name or os.path.isfile(name)):
            return Voice.load(name)
        if mixed := mix_of(name, self.resolve):
            return mixed
        if self._damaged:  # it may have had the voice
            raise self._damaged.with_traceback(None)
        raise unknown_voice(name, self._loaded.config.model_type, self.speakers, presets)

    def _read_presets(self) -> dict[str, Voice]:
        presets: dict[str, Voice] = {}
        damaged: RecordingError | None = None
        for folder in filter(None, (self._loaded.files.folder, self._folder)):
            try:
                presets |= Voice.load_presets(folder / PRESETS_FILE)
            except UnknownVoice:  # there is no such file
                continue
            except RecordingError as error:  # other files have voices, too
                damaged = error
        if damaged and str(damaged) != str(self._damaged):  # once, not at every request
            logger.warning("Its voices are missing: %s", damaged)
        self._damaged = damaged
        return presets

    # ---- making ----------------------------------------------------------------------------------

    def create(
        self,
        audio: Recording,
        text: str | None = None,
        *,
        rate: int | None = None,
        name: str | None = None,
        silence_tail: float = SILENCE_TAIL_SECONDS,
    ) -> Voice:
        """Clone a voice.

        Args:
            audio: 1 to 60 s of one speaker: a file; [num_samples] or [num_samples, channels]; or
                (samples, rate), as in the official package.
            text: exactly what is said, for in-context cloning; None: the x-vector alone.
            rate: samples per second of an array; None for a file, which has its own.
            name: the voice's name; None: the file's name.
            silence_tail: seconds of silence after the recording of an in-context voice.
        Raises:
            TaskError: the checkpoint cannot clone, or its codec cannot encode.
            RecordingError: the recording or its transcript cannot be used.
        """
        self._require_cloning()
        if text is not None:
            self._require_codec()
        check_text(text=text, name=name)
        silence_tail = plain_number(float, "silence_tail", silence_tail)
        longest = recordings.MAX_SECONDS
        if not 0 <= silence_tail <= longest:
            raise UsageError(f"silence_tail is {silence_tail}; it must be 0 to {longest:g} s.")
        label = str(audio) if isinstance(audio, str | Path) else "The recording"
        samples, rate = samples_of(audio, rate)
        recordings.check_samples(samples, rate, label)

        def x_vector() -> np.ndarray:
            recordings.check(samples, rate, label)  # here, so once for each recording
            return self.x_vector(samples, rate)

        wanted: dict[object, Callable[[], np.ndarray]] = {"x_vector": x_vector}
        if text is not None:
            recordings.check_transcript(text, recordings.seconds_of_sound(samples, rate))
            codes = ("codes", silence_tail)
            wanted[codes] = lambda: self._codes(samples, rate, silence_tail)
        found = self.cache.get(samples, rate, wanted)
        if name is None:
            name = Path(audio).stem if isinstance(audio, str | Path) else "reference"
        return Voice(
            name,
            x_vector=found["x_vector"],
            codes=None if text is None else found[codes],
            transcript=text,
            fingerprint=self.fingerprint,
        )

    def encode(self, audio: Recording, rate: int | None = None) -> np.ndarray:
        """Return the codes of a recording of up to 60 s: [num_frames, num_code_groups] int32.

        Raises:
            TaskError: the codec cannot encode.
            RecordingError: the recording is empty or not audio, or `recordings.check_samples`
                raises it.
        """
        self._require_codec()
        samples, rate = samples_of(audio, rate)
        recordings.check_samples(samples, rate, "The recording", shortest=0.0)
        return self._codes(samples, rate, silence_tail=0)

    @cached_property
    def fingerprint(self) -> str:
        """The identity of the encoders of voices: the model's size, and a hash of two tensors.

        The tensors are the last layer of the speaker encoder, if there is one, and the first
        codebook, which every training changes and which are read in milliseconds.
        """
        tensors = [
            self._loaded.codec_decoder["quantizer.rvq_first.vq.layers.0._codebook.embedding_sum"]
        ]
        if self.can_clone:
            tensors.insert(0, self._loaded.load_prefix(SPEAKER_ENCODER_PREFIX)["fc.weight"])
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.float().numpy().tobytes())
        return f"{self._loaded.config.model_size}-{digest.hexdigest()[:16]}"

    def x_vector(self, samples: np.ndarray, rate: int) -> np.ndarray:
        """Return the x-vector of checked samples: [num_samples] float32 -> [enc_dim] float32."""
        encoder = self._speaker_encoder
        return encoder.encode(recordings.resample(samples, rate, encoder.config.sample_rate))

    def _codes(self, samples: np.ndarray, rate: int, silence_tail: float) -> np.ndarray:
        codec_rate = self._loaded.codec_config.sample_rate
        samples = recordings.resample(samples, rate, codec_rate)
        return self._codec_encoder.encode(np.pad(samples, (0, round(silence_tail * codec_rate))))

    @cached_property
    def _speaker_encoder(self) -> SpeakerEncoder:
        config = self._loaded.config.speaker_encoder
        assert config is not None  # checked by `_require_cloning`
        return SpeakerEncoder(config, self._loaded.load_prefix(SPEAKER_ENCODER_PREFIX))

    @cached_property
    def _codec_encoder(self) -> CodecEncoder:
        tensors = self._loaded.load_prefix(CODEC_ENCODER_PREFIX)
        return CodecEncoder(self._loaded.codec_config, tensors)

    @property
    def can_clone(self) -> bool:
        """Whether the checkpoint has a speaker encoder."""
        return self._loaded.config.speaker_encoder is not None

    def speaker_row(self, samples: np.ndarray, rate: int) -> np.ndarray:
        """Return the speaker's row for training on a recording: [hidden_size] float32.

        It is the recording's x-vector, or, without a speaker encoder, the only speaker's row.
        """
        if (speaker_id := self._loaded.config.only_speaker_id) is None:
            return self.x_vector(samples, rate)
        return self._loaded.talker["model.codec_embedding.weight"][speaker_id].float().numpy()

    def check_encoders(self) -> None:
        """Raise a TaskError if training has no row for a speaker, or the codec cannot encode."""
        if self._loaded.config.only_speaker_id is None:
            self._require_cloning()
        self._require_codec()

    def _require_cloning(self) -> None:
        if not self.can_clone:
            config, name = self._loaded.config, self._loaded.files.name
            raise TaskError(
                f"{name} ({config.model_type}) cannot clone; it has no speaker encoder.",
                "Cloning needs a Base model.",
                "Load for example Qwen/Qwen3-TTS-12Hz-0.6B-Base.",
            )

    def _require_codec(self) -> None:
        if not self._loaded.has_codec_encoder:
            raise TaskError(
                f"The codec of {self._loaded.files.name} has no encoder: it can only decode.",
                "In-context cloning needs the codes of the recording.",
                "Leave the transcript out (x-vector only), or load a released Base model.",
            )


def samples_of(audio: Recording, rate: int | None) -> tuple[np.ndarray, int]:
    """Read a recording: [num_samples] float32 mono, and its rate.

    Raises:
        UsageError: `audio` is no recording, or its rate is missing or given twice.
        RecordingError: the recording cannot be read as audio.
    """
    if isinstance(audio, tuple) and len(audio) == 2:
        if rate is not None:
            raise UsageError(f"rate is {rate}, but audio is (samples, rate), which has its own.")
        audio, rate = audio
    if isinstance(audio, str | Path):
        if rate is not None:
            raise UsageError(f"rate is {rate}, but {audio} is a file, which has its own.")
        return recordings.read(audio)
    if isinstance(audio, tuple) or not (hasattr(audio, "__array__") or isinstance(audio, list)):
        raise UsageError(
            f"audio is {reprlib.repr(audio)}; it must be the path of a file, an array of samples, "
            "or (samples, rate)."
        )
    if rate is None:
        raise UsageError("Samples need their rate.", hint="Pass (samples, rate).")
    rate = plain_number(int, "rate", rate)
    if rate <= 0:
        raise RecordingError(f"The recording has a sample rate of {rate}; it must be above 0.")
    try:
        samples = np.asarray(audio)
    except (TypeError, ValueError, RuntimeError) as error:  # a GPU's tensor, lists of two lengths
        raise UsageError(
            f"audio is {reprlib.repr(audio)}; it cannot be an array: {error}"
        ) from error
    if samples.ndim == 2 and 0 < samples.shape[0] < samples.shape[1]:
        raise RecordingError(
            f"The recording has shape {samples.shape}: {samples.shape[0]} samples of "
            f"{samples.shape[1]} channels.",
            hint="Samples come first: pass samples.T.",
        )
    return recordings.to_mono(samples), rate
