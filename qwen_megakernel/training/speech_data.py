"""Recordings for Qwen3-TTS: codes and x-vectors, a JSON object on each line, one for a recording.

    {"id": "0001", "audio": "wav/0001.wav", "text": "Hello.", "audio_codes": [[16 codes], ...],
     "x_vector": [...], "digest": "...", "model": "0b6-..."}

`audio`, `text` and `audio_codes` are fields of the official script's files, too.
Source: QwenLM/Qwen3-TTS, finetuning/prepare_data.py.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.cloning import recordings
from qwen_megakernel.cloning.voice_library import VoiceLibrary
from qwen_megakernel.errors import DatasetError
from qwen_megakernel.training import preparing
from qwen_megakernel.training.preparing import METADATA, Report, Row

PREPARE = "train prepare"  # the command that writes a file of them


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A recording, ready to be trained on."""

    id: str
    audio: str
    text: str
    audio_codes: list[list[int]]  # [num_frames][num_code_groups]
    x_vector: list[float]  # [hidden_size of the talker]
    digest: str  # of the samples, to notice a recording that is there twice
    model: str  # fingerprint of the encoders
    seconds: float

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def parse(line: str) -> TrainingSample:
    """Read one line of a file of `prepare`.

    Raises:
        DatasetError: the line is no recording.
    """
    try:
        values = json.loads(line)
        if missing := {each.name for each in fields(TrainingSample)} - set(values):
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        sample = TrainingSample(**values)
        for name in ("id", "audio", "text", "digest", "model"):
            if not isinstance(values[name], str):
                raise ValueError(f"{name} is no string")
        codes = np.asarray(sample.audio_codes)
        if codes.ndim != 2 or not codes.size or not np.issubdtype(codes.dtype, np.integer):
            raise ValueError(f"audio_codes have shape {codes.shape}")
        x_vector = np.array(sample.x_vector, np.float32)
        if x_vector.ndim != 1:
            raise ValueError("x_vector is no list of numbers")
        if not np.isfinite(x_vector).all():
            raise ValueError("x_vector has a value that is not finite")
        if not sample.seconds >= 0:
            raise ValueError(f"seconds is {sample.seconds}")
        if not sample.text.strip():
            raise ValueError("text is empty")
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise DatasetError(f"it is damaged: {error}.") from error
    return sample


def read(path: Path) -> list[TrainingSample]:
    """Read a file of `prepare`.

    Raises:
        DatasetError: the file cannot be read, is empty, or a line is damaged; the error has its
            number.
    """
    return preparing.read_samples(path, parse, PREPARE, "train verify")


def fitting(sample: TrainingSample, config: ModelConfig, fingerprint: str) -> TrainingSample:
    """Return the recording, if a model of this config and `VoiceLibrary.fingerprint` can learn it.

    Raises:
        DatasetError: other encoders made the recording, or it has another shape or other codes.
    """
    if sample.model != fingerprint:
        raise DatasetError(
            f"{sample.id} was prepared with another model ({sample.model}).",
            f"This one is {fingerprint}; its x-vectors differ.",
            "Prepare the recordings anew, into another file, with the --model that is trained.",
        )
    talker, codes = config.talker, np.array(sample.audio_codes)
    shape = (codes.shape[1], len(sample.x_vector))
    wanted = (talker.num_code_groups, talker.stack.hidden_size)
    if shape != wanted:
        raise DatasetError(
            f"{sample.id} has frames of {shape[0]} codes and an x-vector of {shape[1]} values; the "
            f"model takes {wanted[0]} and {wanted[1]}."
        )
    last = config.predictor.vocab_size - 1
    if codes.min() < 0 or codes.max() > last:
        raise DatasetError(
            f"{sample.id} has codes of {codes.min()} .. {codes.max()}; they must be 0 .. {last}."
        )
    return sample


def mean_x_vector(samples: Sequence[TrainingSample]) -> np.ndarray:
    """Return the speaker row of a voice: the mean over all recordings, [hidden_size] float32."""
    vectors = np.array([each.x_vector for each in samples], dtype=np.float64)
    return vectors.mean(axis=0).astype(np.float32)


def list_recordings(place: Path) -> list[Row]:
    """Return the recordings of a list or a folder, each with its text or its fault.

    Args:
        place: a JSONL file in the official form (`audio`, `text`, paths relative to the file); a
            folder with metadata.csv (LJSpeech); or a folder of NAME.wav beside NAME.txt.
    Raises:
        DatasetError: there is no such place, or it holds no recordings.
    """
    if place.is_file():
        if place.suffix.lower() in (".csv", *recordings.SUFFIXES):
            raise DatasetError(
                f"{place} is no JSONL file.", hint=f"Name the folder that holds it: {place.parent}"
            )
        rows = [_jsonl_row(place, number, line) for number, line in preparing.lines(place, "")]
    elif (place / METADATA).is_file():
        rows = preparing.read_metadata(place / METADATA, is_text=True)
    else:
        rows = _read_pairs(place)
    if not rows:
        raise DatasetError(
            f"{place} holds no recordings.",
            f"Looked for a JSONL file, for {METADATA}, and for NAME.txt beside NAME.wav.",
        )
    seen: dict[str, Row] = {}
    for at, row in enumerate(rows):
        if row.fault:
            continue
        if row.id in seen:
            rows[at] = replace(row, fault=f"{row.id} is also on line {seen[row.id].number}")
        seen.setdefault(row.id, row)
    return rows


def prepare(
    place: Path,
    output: Path,
    checkpoint: Checkpoint,
    progress: Callable[[list[Row]], Iterator[Row]] = iter,
    workers: int | None = None,
) -> Report:
    """Encode every recording that the output does not hold yet.

    A recording that cannot be trained on is logged with its line, and left out: unreadable, silent,
    too short or too long, without a text or with one that does not fit its length, or the same as
    another. One that is clipped, or whose text is doubtful, is logged and taken.

    Args:
        place: as `list_recordings` takes it.
        output: the JSONL file; its lines are kept.
        checkpoint: the model that will be trained.
        progress, workers: as `encode_rows` takes them.
    Raises:
        TaskError: see `VoiceLibrary.check_encoders`.
        DatasetError: there are no recordings, none could be used, or the output is damaged or of
            another model.
        OutputError: the output cannot be written.
    """
    library = VoiceLibrary(checkpoint)
    library.check_encoders()
    rows = list_recordings(place)
    encode, digests = partial(_encode, place=place, library=library), dict[str, str]()

    def fault_of(sample: TrainingSample) -> str:
        twin = digests.setdefault(sample.digest, sample.id)
        return "" if twin == sample.id else f"{sample.id} is the same recording as {twin}"

    with preparing.growing(output, PREPARE, parse) as has_lines:
        texts = {}
        for sample in read(output) if has_lines else []:
            fitting(sample, checkpoint.config, library.fingerprint)
            texts[sample.id], digests[sample.digest] = sample.text, sample.id
        for at, row in enumerate(rows):
            if not row.fault and row.text != texts.get(row.id, row.text):
                fault = f"{row.id} is in {output} with another text; delete its line there"
                rows[at] = replace(row, fault=fault)
        return preparing.encode_rows(
            place, rows, output, encode, texts, progress, workers=workers, fault_of=fault_of
        )


def _encode(row: Row, place: Path, library: VoiceLibrary) -> tuple[TrainingSample, float]:
    path = Path(row.audio) if row.audio else preparing.find_recording(place, row.id)
    label = f"{row.source}, line {row.number}: {row.id}"
    samples, rate = recordings.read(path)
    recordings.check(samples, rate, label)  # warns about a clipped recording
    recordings.check_transcript(row.text, recordings.seconds_of_sound(samples, rate), label)
    sample = TrainingSample(
        *(row.id, str(path), row.text),
        library.encode(samples, rate).tolist(),
        library.speaker_row(samples, rate).tolist(),
        hashlib.sha256(np.ascontiguousarray(samples).data).hexdigest()[:32],
        library.fingerprint,
        len(samples) / rate,
    )
    return sample, sample.seconds


def _jsonl_row(path: Path, number: int, line: str) -> Row:
    try:
        values: Any = json.loads(line)
        audio, text = values["audio"], values["text"]
        if not (isinstance(audio, str) and isinstance(text, str)):
            raise TypeError
    except (ValueError, KeyError, RecursionError, TypeError):
        return Row(number, "", "", "it is no object with `audio` and `text`", path.name)
    name = str(values.get("id", Path(audio).with_suffix("")))
    fault = "" if text.strip() else f"{name} has no text"
    return Row(number, name, text.strip(), fault, path.name, str(path.parent / audio))


def _read_pairs(folder: Path) -> list[Row]:
    rows = []
    if not folder.is_dir():
        raise DatasetError(f"There is no {folder}.", hint="Name a folder, or a JSONL file.")
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in recordings.SUFFIXES:
            continue
        source = path.with_suffix(".txt")
        try:
            text = source.read_text(encoding="utf-8-sig").strip()
            fault = "" if text else f"{path.stem} has no text"
        except (OSError, UnicodeDecodeError) as error:
            text, fault = "", f"{source.name} cannot be read: {preparing.why_no_text(error)}"
        rows.append(Row(1, path.stem, text, fault, source.name, str(path)))
    return rows
