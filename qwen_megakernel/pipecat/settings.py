"""The settings of the Pipecat service, and how it cuts streamed text into words or sentences."""

import re
from abc import abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, fields, make_dataclass
from typing import TYPE_CHECKING, Any, Self, Unpack
from unicodedata import category

from pipecat.services.settings import TTSSettings
from pipecat.transcriptions.language import Language
from pipecat.utils.text.base_text_aggregator import Aggregation, BaseTextAggregator, TextType
from pipecat.utils.types import NOT_GIVEN, NotGiven

from qwen_megakernel.errors import check_names
from qwen_megakernel.speech_options import OPTIONS, SpeechKeywords, table
from qwen_megakernel.text.languages import AUTO, code_of_language
from qwen_megakernel.text.reading.sentence_ends import WINDOW, places
from qwen_megakernel.timing.words import whole_words

# Options of `SpeechOptions` that are arguments of the service, or fields of `TTSSettings`.
_NOT_HERE = ("voice", "language", "split", "first_chunk_frames", "chunk_frames", "sample_rate")
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
OWN = tuple(name for name in OPTIONS if name not in _NOT_HERE)

if TYPE_CHECKING:
    _OptionFields = TTSSettings  # mypy knows no class that is made at run time
else:
    _OptionFields = make_dataclass(
        "_OptionFields",
        [(name, Any, field(default_factory=lambda: NOT_GIVEN)) for name in OWN],
        bases=(TTSSettings,),
    )


@dataclass
class MegakernelTTSSettings(_OptionFields):
    """Settings that may change while the pipeline runs; a change applies from the next sentence.

    `voice` is a name from the engine's or the service's `voices`, or the path of a voice file;
    `language` a `Language`, a code, or the model's name for it. None is the default of every
    setting. A "request" is a sentence, in TOKEN mode a turn, which is not read as a whole
    ("full"); markup may continue from one sentence of a turn to the next.

    Parameters:
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            model: str | NotGiven | None = NOT_GIVEN,
            extra: dict[str, Any] = ...,
            **options: Unpack[SpeechKeywords],
        ) -> None: ...

    def __new__(cls, *_: object, **options: object) -> Self:  # before the dataclass refuses them
        check_names(options, [each.name for each in fields(cls)])
        return super().__new__(cls)

    @classmethod
    def stored(cls, given: "MegakernelTTSSettings | None", model: str) -> "MegakernelTTSSettings":
        """Return settings as a service keeps them: what is not given has its default."""
        names = (setting.name for setting in fields(cls) if setting.name != "extra")
        values: dict[str, Any] = dict.fromkeys(names) | {"model": model}
        store = cls(**values)
        if given is not None:
            store.apply_update(given)
        return store

    @property
    def stream_options(self) -> dict[str, Any]:
        """Keyword arguments for `TTSEngine.stream`; every field must have a value."""
        return {name: getattr(self, name) for name in ("voice", "language", *OWN)}


MegakernelTTSSettings.__doc__ = f"{MegakernelTTSSettings.__doc__}{table(OWN)}"


class TextHolder(BaseTextAggregator):
    """Holds streamed text back until a unit of it is complete."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self._held = ""

    @abstractmethod
    def _ends(self, num_new: int) -> list[int]:
        """Return where units of the held text end, of which `num_new` characters are new."""

    @property
    def text(self) -> Aggregation:
        """The unit that may still grow."""
        return self._unit(self._held)

    def _unit(self, text: str) -> Aggregation:
        return Aggregation(text, self.aggregation_type)

    async def aggregate(self, text: str) -> AsyncIterator[Aggregation]:
        """Take a piece of text; yield the units that are complete now."""
        self._held += text
        begin, held = 0, self._held
        ends = self._ends(len(text))
        self._held = held[ends[-1] :] if ends else held
        for end in ends:
            yield self._unit(held[begin:end])
            begin = end

    async def flush(self) -> Aggregation | None:
        held, self._held = self._held, ""
        return self._unit(held) if held else None

    async def reset(self) -> None:
        self._held = ""

    handle_interruption = reset


class WordAggregator(TextHolder):
    """Passes streamed text on in whole words, with their white space.

    LLMs also send parts of words ("50", "+"), and text transforms take one piece at a time.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(aggregation_type=TextType.TOKEN, **kwargs)

    def _ends(self, num_new: int) -> list[int]:
        end = whole_words(self._held)
        return [end] if end else []


class SentenceAggregator(TextHolder):
    """Passes streamed text on in sentences, which end where those of captions and parts do.

    Pipecat's own aggregator also ends sentences at "M.", "p.m. Eastern" and "mein 4.". Tags of
    markup are no words, so a sentence ends before them as before white space. It ends before an
    emoji, too, because Pipecat counts words by white space.
    """

    def _ends(self, num_new: int) -> list[int]:
        known = len(self._held) - num_new
        begin = max(0, known - 2 * WINDOW)
        seen = begin and begin + WINDOW  # an earlier call judged the places before it
        text = _TAG.sub(lambda tag: " " * len(tag[0]), self._held[begin:])
        return [
            begin + at
            for at, is_end in places(text)
            if begin + at > seen and (is_end or (at < len(text) and category(text[at]) == "So"))
        ]

    def _unit(self, text: str) -> Aggregation:
        return super()._unit(text.strip(" "))


def as_language(language: Language | str | NotGiven | None) -> Language | str:
    """Return the `Language` of a language, for the base class's splitter, or else the text."""
    if not isinstance(language, str):
        return AUTO
    code = code_of_language(language)
    return Language(code) if code else language
