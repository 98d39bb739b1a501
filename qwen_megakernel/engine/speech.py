"""A whole utterance, as `SpeechEngine.synthesize` returns it."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qwen_megakernel import audio
from qwen_megakernel.engine.stream import SpeechStream
from qwen_megakernel.errors import UsageError
from qwen_megakernel.marking import Marking
from qwen_megakernel.records import FinishReason
from qwen_megakernel.timing import subtitles
from qwen_megakernel.timing.speech_timer import SpeechTimer
from qwen_megakernel.timing.words import Segment, TimedWord


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Speech:
    """A whole utterance; compared by identity."""

    audio: np.ndarray  # [num_samples] float32 in [-1, 1]
    sample_rate: int
    codes: np.ndarray  # [num_frames, num_code_groups] int32
    finish_reason: FinishReason
    seed: int
    parts: int
    timings: dict[str, float]
    spoken_text: str  # the text that the model received, with numbers as words
    mark: Marking  # of the files of `save`
    _times: SpeechTimer

    def __repr__(self) -> str:
        seconds = len(self.audio) / self.sample_rate
        how = f"{self.sample_rate} Hz, {self.finish_reason}, seed {self.seed}"
        return f"Speech({seconds:.2f} s, {how})"

    def _repr_html_(self) -> str:
        """Return a player, which notebooks show."""
        file = io.BytesIO()
        with audio.new_sound_file(file, self.sample_rate, self.mark.comment, format="WAV") as wav:
            wav.write(audio.to_int16(self.audio))
        data = base64.b64encode(file.getvalue()).decode()
        return f'<audio controls src="data:audio/wav;base64,{data}"></audio><br>{self!r}'

    @property
    def words(self) -> list[TimedWord]:
        """The words of the user's text, with their times."""
        return self._times.words

    @property
    def segments(self) -> list[Segment]:
        """The sentences of the user's text, with their times."""
        return self._times.segments

    def save(self, path: str | Path, encoding: str = "pcm") -> None:
        """Write the audio, marked; the extension picks the format (wav, flac, ogg, mp3), and
        `encoding` that of a wav file: "pcm" (16-bit), "ulaw" or "alaw".
        """
        audio.write_wav(path, self.audio, self.sample_rate, encoding, self.mark)

    def save_subtitles(self, path: str | Path) -> None:
        """Write the times of words and sentences; the extension picks the format (srt, vtt, json).

        Raises:
            UsageError, OutputError: the extension is unknown, or the path cannot be written.
        """
        subtitles.write(Path(path), self.words, self.segments)

    @staticmethod
    def collect(stream: SpeechStream) -> "Speech":
        """Read `stream` to its end; a UsageError: some of it was read before."""
        chunks, text = list(stream), stream.text
        if missing := chunks[0].frame_index if chunks else len(stream.codes):
            raise UsageError(
                f"The first {missing} frames of the stream were read before Speech.collect.",
                hint="Give it a stream that nothing reads, or join the samples of the chunks.",
            )
        assert stream.finish_reason
        return Speech(
            audio=audio.to_float32(audio.joined(chunk.samples for chunk in chunks)),
            sample_rate=stream.sample_rate,
            codes=stream.codes,
            finish_reason=stream.finish_reason,
            seed=stream.seed,
            parts=text.num_parts,
            timings=stream.timings,
            spoken_text=text.spoken,
            mark=stream._mark,
            _times=stream.times,  # a reference to the stream would keep the engine alive
        )
