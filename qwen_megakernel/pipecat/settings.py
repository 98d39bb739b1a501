"""The settings of the Pipecat service, and how it cuts streamed text into words."""

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
    """Settings that may change while the pipeline runs; a change applies from the next sentence.

    `voice` is a name from the engine's or the service's `voices`, or the path of a voice file;
    `language` a `Language`, a code, or the model's name for it. None is the model's default.

    Parameters:
        instruct: How to speak, in words, for models that follow it.
        seed: The same seed and text give the same codes; None draws a seed for each request.
        max_frames: Longest speech of one request (a sentence; in TOKEN mode a turn), in frames
            of 80 ms.
        text_feed: "stepwise" reads a token of text for each frame, "full" all of it before
            speaking (not in TOKEN mode); None or "auto" chooses as the official package does.
        text_format: "ssml" (markup, which may continue from one sentence of a turn to the next) or
            "pauses" (plain text with "[pause 1.5s]" in it); None or "plain": no markup is read
            (docs/speech-control.md).
        normalize: "on" reads numbers, dates, abbreviations and Markdown as words, "off" does not;
            None or "auto" is the engine's choice (docs/speech-control.md).
        lexicon: Respellings of words, before the engine's own: a file, a dict or a `Lexicon`.
        speed: 0.25 to 4; at 2 the speech takes half the time, at the same pitch.
        volume: Change of volume in dB, -60 to 20; a limiter prevents clipping.
        leading_silence: Longest silence before a request's first sound, ms; None: the model's.
        trailing_silence: Longest silence after a request's last sound, ms; None: the model's.
        do_sample: True draws code 0 of each frame, False takes the most probable one.
        temperature: Temperature of code 0.
        top_k: Number of most probable codes to draw code 0 from; 0 is all.
        top_p: Share of the probability to draw code 0 from.
        repetition_penalty: Factor that makes values of code 0 that were drawn before less likely.
        subtalker_do_sample: `do_sample` for a frame's other codes.
        subtalker_temperature: `temperature` for the other codes.
        subtalker_top_k: `top_k` for the other codes.
        subtalker_top_p: `top_p` for the other codes.
    """

    instruct: str | NotGiven | None = NOT_GIVEN
    seed: int | NotGiven | None = NOT_GIVEN
    max_frames: int | NotGiven | None = NOT_GIVEN
    text_feed: str | NotGiven | None = NOT_GIVEN
    text_format: str | NotGiven | None = NOT_GIVEN
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
        """Return settings in which every field has a value, as a service keeps them."""
        names = (setting.name for setting in fields(cls) if setting.name != "extra")
        values: dict[str, Any] = dict.fromkeys(names) | {"model": model}
        return cls(**values)

    @property
    def sampling_knobs(self) -> dict[str, Any]:
        """Keyword arguments for `Sampling.override`."""
        return {knob.name: getattr(self, knob.name) for knob in fields(Sampling)}

    @property
    def sound(self) -> dict[str, Any]:
        """Keyword arguments for `SoundOptions.override`, without the sample rate."""
        names = [option.name for option in fields(SoundOptions)]
        return {name: getattr(self, name) for name in names if name != "sample_rate"}

    @property
    def stream_options(self) -> dict[str, Any]:
        """Keyword arguments for `TTSEngine.stream`; every field must have a value."""
        names = ("voice", "language", "instruct", "seed", "max_frames")
        options = {name: getattr(self, name) for name in names}
        return options | {"text_feed": self.text_feed or "auto"} | self.sampling_knobs


class WordAggregator(BaseTextAggregator):
    """Passes streamed text on in whole words.

    LLMs also send parts of words ("50", "+"), and text transforms take one piece at a time.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(aggregation_type=TextType.TOKEN, **kwargs)
        self._held = ""

    @property
    def text(self) -> Aggregation:
        """The word that may still grow."""
        return Aggregation(self._held, TextType.TOKEN)

    async def aggregate(self, text: str) -> AsyncIterator[Aggregation]:
        """Take a piece of text; yield the words that are complete now, with their white space."""
        self._held += text
        end = whole_words(self._held)
        if end:
            words, self._held = self._held[:end], self._held[end:]
            yield Aggregation(words, TextType.TOKEN)

    async def flush(self) -> Aggregation | None:
        """Return the last word, if there is one."""
        held, self._held = self._held, ""
        return Aggregation(held, TextType.TOKEN) if held else None

    async def handle_interruption(self) -> None:
        """Forget the last word."""
        self._held = ""

    async def reset(self) -> None:
        """Forget the last word."""
        self._held = ""


def as_language(language: Language | str | NotGiven | None) -> Language | str:
    """Return the `Language` of a language, for the base class's splitter, or else the text."""
    if not isinstance(language, str):
        return AUTO
    code = code_of_language(language)
    return Language(code) if code else language
