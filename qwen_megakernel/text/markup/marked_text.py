"""The words to speak of a text with markup, divided at each pause and each change of manner."""

from __future__ import annotations

import reprlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from qwen_megakernel.errors import MarkupError
from qwen_megakernel.records import Manner
from qwen_megakernel.text.languages import AUTO
from qwen_megakernel.text.markup.items import (
    Item,
    Parser,
    Pause,
    Replaced,
    SayAs,
    SentenceEnd,
    Words,
)
from qwen_megakernel.text.markup.pauses import PauseParser
from qwen_megakernel.text.markup.script import ScriptParser
from qwen_megakernel.text.markup.ssml import SsmlParser
from qwen_megakernel.text.reading.reader import TextReader
from qwen_megakernel.text.reading.surroundings import CLOSING, SENTENCE_ENDS
from qwen_megakernel.text.request_text import Cut, RequestText
from qwen_megakernel.text.sentences import PARAGRAPH_SEPARATOR
from qwen_megakernel.text.unreadable import TextWatch

_MAX_WARNINGS = 20  # for each text


def new_parser(text_format: str, check: Callable[[Manner], object] = lambda _: None) -> Parser:
    """Return a new parser of a format; `check` may refuse the manners of "ssml" and "script"."""
    if text_format == "pauses":
        return PauseParser()
    return SsmlParser(check) if text_format == "ssml" else ScriptParser(check)


def check_markup(text: str, text_format: str) -> None:
    """Raise MarkupError if the markup of a complete text is broken."""
    parser = new_parser(text_format)
    parser.feed(text)
    parser.end()
    if parser.error:
        raise parser.error


class MarkedText(RequestText):
    """The words of one text with markup, whole or as it arrives. Not thread-safe.

    Args:
        parser: the parser for the text's format.
        reader: the request's reader, which turns the words of the text into words to speak.
        language_of: returns the engine's name for a language, or None if it does not speak it.
        watch: see `RequestText`.
        language: the language of the text where the markup names none.
        takes_phonemes: whether the voice accepts phonemes.
    """

    _reader: TextReader

    def __init__(
        self,
        parser: Parser,
        reader: TextReader,
        language_of: Callable[[str], str | None],
        watch: TextWatch | None = None,
        *,
        language: str = AUTO,
        takes_phonemes: bool = False,
    ):
        super().__init__(reader, watch)
        self._parser = parser
        self._language_of, self._language = language_of, language
        self._takes_phonemes = takes_phonemes
        self._is_begun = False
        self._manner = Manner()
        self._last = ""  # the last character that is spoken
        self._is_after_sentence = False  # a sentence has ended, and no text has followed yet
        self._warnings: list[str] = []
        self._warned: set[str] = set()

    @property
    def error(self) -> MarkupError | None:
        return self._parser.error

    def take_warnings(self) -> list[str]:
        warnings, self._warnings = self._warnings, []
        return self._parser.take_warnings() + warnings + super().take_warnings()

    def feed(self, text: str) -> Iterator[str | Cut]:
        if not self._is_begun:  # a file may begin with a byte order mark
            text, self._is_begun = text.removeprefix("\ufeff"), bool(text)
        yield from self._spoken(self._parser.feed(text))
        if self.error:
            yield self._reader.end()

    def end(self) -> Iterator[str | Cut]:
        if not self.error:
            yield from self._spoken(self._parser.end())
            yield self._reader.end()

    def _spoken(self, items: Iterable[Item]) -> Iterator[str | Cut]:
        for item in items:
            if isinstance(item, Pause | Manner):
                yield from self._cut(item)
            else:
                yield self._read(item)

    def _read(self, item: Words | Replaced | SayAs | SentenceEnd) -> str:
        """Give an item to the reader; returns the words that no later item can change."""
        reader = self._reader
        if isinstance(item, SentenceEnd):
            return self._end_sentence()
        if isinstance(item, Words):
            return self._plain(item.text)
        words: str | None
        if isinstance(item, SayAs):
            words = reader.read_as(item.written, item.kind, item.form)
            if words is None:
                self._warn_once(
                    f"<say-as> cannot read {reprlib.repr(item.written)} as {item.kind}, so it is "
                    "read as it is written"
                )
        elif not item.is_phonemes:
            words = reader.read_apart(item.spoken)
        else:
            words = item.spoken if self._takes_phonemes else None
            if words is None:
                self._warn_once(
                    "the text inside <phoneme> is read, because this voice accepts no phonemes"
                )
        if words is None:
            return self._plain(item.written)
        self._note(words)
        self._written.append(item.written)
        return reader.give(words, len(item.written))

    def _plain(self, text: str) -> str:
        self._note(text)
        written = text
        if self._is_after_sentence and text:
            self._is_after_sentence = False
            if text[0] == " ":
                written = PARAGRAPH_SEPARATOR + text[1:]
        self._written.append(written)
        return self._reader.feed(text)

    def _note(self, text: str) -> None:
        """Remember the last character of a text, apart from closing quotes and brackets."""
        self._last = text.rstrip(CLOSING + " ")[-1:] or self._last

    def _end_sentence(self) -> str:
        """Add a full stop to a sentence that has no punctuation mark at its end."""
        last, self._last = self._last, ""
        self._is_after_sentence = True
        if not last or last in SENTENCE_ENDS:
            return ""
        return self._reader.insert("。" if unicodedata.east_asian_width(last) in "WF" else ".")

    def _cut(self, item: Pause | Manner) -> Iterator[str | Cut]:
        """Begin a new passage if the item is a pause or changes the manner."""
        pause_s = item.seconds if isinstance(item, Pause) else 0.0
        manner = self._manner if isinstance(item, Pause) else self._known(item)
        if not pause_s and manner == self._manner:
            return
        yield self._reader.end()
        if manner.voice != self._manner.voice:
            self._turns.append((len(self._written), manner.voice))
        self._manner, self._last = manner, ""
        self._reader.turn(manner.language or self._language)
        yield Cut(manner, pause_s)

    def _known(self, manner: Manner) -> Manner:
        """Replace the language of a manner by the engine's name for it."""
        if manner.language is None:
            return manner
        name = self._language_of(manner.language)
        if name is None:
            self._warn_once(
                f"xml:lang {reprlib.repr(manner.language)} has no effect, because the model does "
                "not speak this language"
            )
        return replace(manner, language=name)

    def _warn_once(self, warning: str) -> None:
        if warning not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(warning)
            self._warnings.append(warning)
