"""Recordings for Qwen3-TTS: codes and x-vectors, a JSON object on each line, one for a recording.

    {"id": "0001", "audio": "wav/0001.wav", "text": "Hello.", "audio_codes": [[16 codes], ...],
     "x_vector": [...], "digest": "...", "model": "0b6-..."}

`audio`, `text` and `audio_codes` are fields of the official script's files, too.
Source: QwenLM/Qwen3-TTS, finetuning/prepare_data.py.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.cloning import recordings
from qwen_megakernel.cloning.voice_library import VoiceLibrary
from qwen_megakernel.errors import DatasetError, QwenTTSError
from qwen_megakernel.training.preparing import (
    METADATA,
    Report,
    Row,
    encode_rows,
    find_recording,
    mend,
    read_metadata,
)


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
        """Return the line of the file, without its end."""
        return json.dumps(asdict(self), ensure_ascii=False)


def read(path: Path) -> list[TrainingSample]:
    """Read a file of `prepare`.

    Raises:
        DatasetError: the file cannot be read, is empty, or a line is damaged; the error has its
            number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(
            f"{path} cannot be read: {error}.", hint="Make it with: qwen-megakernel train prepare"
        ) from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            sample = TrainingSample(**json.loads(line))
            codes = np.asarray(sample.audio_codes)
            if codes.ndim != 2 or not codes.size or not np.issubdtype(codes.dtype, np.integer):
                raise ValueError(f"audio_codes have shape {codes.shape}")
        except (TypeError, ValueError) as error:
            raise DatasetError(
                f"{path}, line {number} is damaged: {error}.",
                hint="Delete the line, and run train prepare again.",
            ) from error
        found.append(sample)
    if not found:
        raise DatasetError(f"{path} holds no recordings.")
    if len({(each.model, len(each.x_vector)) for each in found}) > 1:
        raise DatasetError(
            f"{path} mixes x-vectors of several models.", hint="Prepare it anew with one --model."
        )
    return found


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
        rows = _read_jsonl(place)
    elif (place / METADATA).is_file():
        rows = [_located(place, row) for row in read_metadata(place / METADATA, is_text=True)]
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
            fault = f"{row.id} is also on line {seen[row.id].number}"
            rows[at] = Row(row.number, row.id, row.text, fault, row.source)
        seen.setdefault(row.id, row)
    return rows


def prepare(
    place: Path,
    output: Path,
    checkpoint: Checkpoint,
    progress: Callable[[list[Row]], Iterator[Row]] = iter,
) -> Report:
    """Encode every recording that the output does not hold yet.

    A recording that cannot be trained on is logged with its line, and left out: unreadable, silent,
    too short or too long, without a text or with one that does not fit its length, or the same as
    another. One that is clipped, or whose text is doubtful, is logged and taken.

    Args:
        place: as `list_recordings` takes it.
        output: the JSONL file; its lines are kept.
        checkpoint: the Base model that will be trained.
        progress: wraps the rows, to show a bar.
    Raises:
        TaskError: the checkpoint has no speaker encoder, or its codec no encoder.
        DatasetError: there are no recordings, none could be used, or the output is damaged or of
            another model.
        OutputError: the output cannot be written.
    """
    library = VoiceLibrary(checkpoint)
    library.check_encoders()
    rows = list_recordings(place)
    done = read(output) if mend(output) else []
    if done and done[0].model != library.fingerprint:
        raise DatasetError(
            f"{output} was prepared with another model ({done[0].model}).",
            f"This one is {library.fingerprint}; its x-vectors differ.",
            "Write to another file.",
        )
    digests = {each.digest: each.id for each in done}

    def encode(row: Row) -> TrainingSample:
        try:
            sample = _encode(row, library)
        except DatasetError:
            raise
        except QwenTTSError as error:
            raise DatasetError(f"{row.id}: {error.what}") from error
        if twin := digests.get(sample.digest):
            raise DatasetError(f"{row.id} is the same recording as {twin}")
        digests[sample.digest] = row.id
        return sample

    report = encode_rows(rows, output, encode, {each.id for each in done}, progress)
    if not report.num_added + report.num_present:
        raise DatasetError(f"No recording of {place} could be used.", report.faults[0])
    return report


def _encode(row: Row, library: VoiceLibrary) -> TrainingSample:
    path, label = Path(row.audio), f"{row.source}, line {row.number}: {row.id}"
    samples, rate = recordings.read(path)
    recordings.check(samples, rate, label)  # warns about a clipped recording
    recordings.check_transcript(row.text, recordings.seconds_of_sound(samples, rate), label)
    return TrainingSample(
        row.id,
        row.audio,
        row.text,
        library.encode(samples, rate).tolist(),
        library.x_vector(samples, rate).tolist(),
        hashlib.sha256(np.ascontiguousarray(samples).data).hexdigest()[:32],
        library.fingerprint,
        len(samples) / rate,
    )


def _located(folder: Path, row: Row) -> Row:
    if row.fault:
        return row
    try:
        return Row(row.number, row.id, row.text, audio=str(find_recording(folder, row.id)))
    except DatasetError as error:
        return Row(row.number, row.id, row.text, error.what)


def _read_jsonl(path: Path) -> list[Row]:
    rows = []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path} cannot be read: {error}.") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            rows.append(_jsonl_row(path, number, line))
    return rows


def _jsonl_row(path: Path, number: int, line: str) -> Row:
    try:
        values: Any = json.loads(line)
        audio, text = values["audio"], values["text"]
        if not (isinstance(audio, str) and isinstance(text, str)):
            raise TypeError
    except (ValueError, KeyError, TypeError):
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
            text, fault = "", f"{path.name} has no readable {source.name}: {error}"
        rows.append(Row(1, path.stem, text, fault, source.name, str(path)))
    return rows
