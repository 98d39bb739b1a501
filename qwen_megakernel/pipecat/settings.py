"""What a caller may set on the Pipecat service, and how it cuts the text of a turn."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, fields
from typing import Any

from pipecat.services.settings import TTSSettings
from pipecat.transcriptions.language import Language
from pipecat.utils.text.base_text_aggregator import Aggregation, BaseTextAggregator, TextType
from pipecat.utils.types import NOT_GIVEN, NotGiven

from qwen_megakernel.records import Sampling, SoundOptions
from qwen_megakernel.text.languages import AUTO, code_of_language
from qwen_megakernel.text.reading.lexicon import Lexicon
from qwen_megakernel.timing.words import whole_words


@dataclass
class MegakernelTTSSettings(TTSSettings):
    """What may change while the pipeline runs; it holds from the next sentence on.

    `voice` is a name from the engine's or the service's `voices`, or the path of a voice file;
    `language` a `Language`, a code, or the model's name for it. None is the model's default.

    Parameters:
        instruct: How to speak, in words, for models that take it.
        seed: The same seed and text give the same codes; None draws one per request.
        max_frames: Longest speech of one request (a sentence; in TOKEN mode a turn), in frames
            of 80 ms.
        text_feed: "stepwise" adds a text row to each frame, "full" puts the text into the prompt
            (not in TOKEN mode); None or "auto" is the official choice for the model.
        normalize: "on" reads numbers, dates, abbreviations and Markdown as words, "off" does not;
            None or "auto" is the engine's choice (docs/speech-control.md).
        lexicon: Respellings of words, before the engine's own: a file, a dict or a `Lexicon`.
        speed: 0.25 to 4; 2 is heard in half the time, at the same pitch.
        volume: In dB, -60 to 20; what is made louder does not clip.
        leading_silence: At most so many ms before a request's first sound; None is the model's.
        trailing_silence: At most so many ms after a request's last sound; None is the model's.
        do_sample: Whether code 0 of a frame is drawn, or always the most probable one.
        temperature: Of code 0.
        top_k: Of code 0; 0 is off.
        top_p: Of code 0.
        repetition_penalty: Of code 0.
        subtalker_do_sample: As `do_sample`, of a frame's other codes.
        subtalker_temperature: Of the other codes.
        subtalker_top_k: Of the other codes.
        subtalker_top_p: Of the other codes.
    """

    instruct: str | NotGiven | None = NOT_GIVEN
    seed: int | NotGiven | None = NOT_GIVEN
    max_frames: int | NotGiven | None = NOT_GIVEN
    text_feed: str | NotGiven | None = NOT_GIVEN
    normalize: str | NotGiven | None = NOT_GIVEN
    lexicon: Lexicon | dict[str, str] | str | NotGiven | None = NOT_GIVEN
    speed: float | NotGiven | None = NOT_GIVEN
    volume: float | NotGiven | None = NOT_GIVEN
    leading_silence: float | NotGiven | None = NOT_GIVEN
    trailing_silence: float | NotGiven | None = NOT_GIVEN
    do_sample: bool | NotGiven | None = NOT_GIVEN
    temperature: float | NotGiven | None = NOT_GIVEN
    top_k: int | NotGiven | None = NOT_GIVEN
    top_p: float | NotGiven | None = NOT_GIVEN
    repetition_penalty: float | NotGiven | None = NOT_GIVEN
    subtalker_do_sample: bool | NotGiven | None = NOT_GIVEN
    subtalker_temperature: float | NotGiven | None = NOT_GIVEN
    subtalker_top_k: int | NotGiven | None = NOT_GIVEN
    subtalker_top_p: float | NotGiven | None = NOT_GIVEN

    @classmethod
    def defaults(cls, model: str) -> "MegakernelTTSSettings":
        """Settings in which every field has a value, as a service keeps them."""
        unset = {setting.name: None for setting in fields(cls) if setting.name != "extra"}
        return cls(**unset | {"model": model})

    @property
    def sampling_knobs(self) -> dict[str, Any]:
        """What `records.Sampling` can override."""
        return {knob.name: getattr(self, knob.name) for knob in fields(Sampling)}

    @property
    def sound(self) -> dict[str, Any]:
        """What `records.SoundOptions` can override, but for the sample rate."""
        names = [option.name for option in fields(SoundOptions)]
        return {name: getattr(self, name) for name in names if name != "sample_rate"}


class WordAggregator(BaseTextAggregator):
    """Passes streamed text on in whole words.

    What an LLM sends need not be words ("50", "+"), and text transforms see one piece at a time.
    """

    def __init__(self, **kwargs: Any):
        """Initialize the aggregator.

        Args:
            **kwargs: For the base class.
        """
        super().__init__(aggregation_type=TextType.TOKEN, **kwargs)
        self._held = ""

    @property
    def text(self) -> Aggregation:
        """The word that may still grow."""
        return Aggregation(self._held, TextType.TOKEN)

    async def aggregate(self, text: str) -> AsyncIterator[Aggregation]:
        """Take a piece of text; yields what is whole words now, with their white space."""
        self._held += text
        end = whole_words(self._held)
        if end:
            words, self._held = self._held[:end], self._held[end:]
            yield Aggregation(words, TextType.TOKEN)

    async def flush(self) -> Aggregation | None:
        """The last word, if there is one."""
        held, self._held = self._held, ""
        return Aggregation(held, TextType.TOKEN) if held else None

    async def handle_interruption(self) -> None:
        """Forget the last word."""
        self._held = ""

    async def reset(self) -> None:
        """Forget the last word."""
        self._held = ""


def as_language(language: Language | str | None) -> Language | str:
    """The form in which the base class takes a language; its sentence splitter needs a code."""
    if language is None:
        return AUTO
    code = code_of_language(language)
    return Language(code) if code else language
