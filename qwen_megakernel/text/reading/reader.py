"""The reader of a text, which may arrive in pieces.

Words that the reader has returned never change, and its results do not depend on time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from qwen_megakernel.choices import NORMALIZE
from qwen_megakernel.errors import check_choice
from qwen_megakernel.text.languages import AUTO
from qwen_megakernel.text.reading.codes import MAX_PAST
from qwen_megakernel.text.reading.languages import ENGLISH, ScriptWatch, grammar_of, missing
from qwen_megakernel.text.reading.lexicon import Entry, Lexicon, folded
from qwen_megakernel.text.reading.markdown import Markdown
from qwen_megakernel.text.reading.say_as import words_of
from qwen_megakernel.text.reading.segments import is_too_long, run_end, segment_end
from qwen_megakernel.text.reading.spoken import GIVEN, RESPELT, Draft, Piece, SpokenText
from qwen_megakernel.text.reading.surroundings import bare, open_quotes
from qwen_megakernel.text.reading.typography import BEYOND_ASCII, Typography, base_letter

_QUOTED_NUMBER = re.compile(r'"\d[\d./]*"')


class Reading:
    """The settings with which one engine reads texts.

    Args:
        is_on: the meaning of normalize="auto" for the checkpoint: whether expressions become words.
        normalize: the setting of the engine, one of `NORMALIZE`; "auto" keeps `is_on`.
        lexicon: the lexicon for all requests.
        names_letters: whether the checkpoint reads words of ASCII letters alone, so that letters
            are named ("pee em") and lose their accents.
    """

    def __init__(
        self,
        is_on: bool = False,
        normalize: str = AUTO,
        lexicon: Lexicon | None = None,
        names_letters: bool = False,
    ):
        check_choice("normalize", normalize, NORMALIZE)
        self.is_on = is_on if normalize == AUTO else normalize == "on"
        self._lexicon = lexicon
        self._names_letters = names_letters

    def reader(
        self, normalize: str, language: str, lexicon: Lexicon | None, has_markup: bool = False
    ) -> TextReader | None:
        """Return the reader for one request, or None if its text is spoken as it is written.

        Args:
            lexicon: the request's lexicon, whose entries take precedence over the engine's.
            has_markup: whether the text has markup, which always needs a reader.
        """
        check_choice("normalize", normalize, NORMALIZE)
        is_on = normalize == "on" or (normalize == AUTO and self.is_on)
        lexicons = [each for each in (lexicon, self._lexicon) if each]
        if not is_on and not lexicons and not has_markup:
            return None
        return TextReader(self._names_letters, is_on, language, lexicons)

    def warm_up(self) -> None:
        """Load what the first number needs."""
        if reader := self.reader(AUTO, ENGLISH, None):
            reader.whole("1")


class TextReader:
    """The reader of one text. Its words do not depend on how the text is cut into pieces.

    Args:
        names_letters: see `Reading`.
        is_normalizing: whether expressions become words; the lexicons are used in any case.
        language: the name of the language; with "auto", the scripts of the text decide, and Latin
            letters are English.
        lexicons: entries of an earlier lexicon take precedence over those of a later one.
    """

    def __init__(
        self, names_letters: bool, is_normalizing: bool, language: str, lexicons: list[Lexicon]
    ):
        self._names_letters, self._lexicons = names_letters, lexicons
        self._is_normalizing = is_normalizing
        self._script = ScriptWatch(language)
        self._typography = Typography(is_normalizing)
        self._markdown = Markdown()
        self._language = language
        self._num_chars = 0  # characters of the user's text so far
        self._new = Draft.at("", 0)  # text that is not looked up in the lexicons yet
        # How many characters at the beginning of `_new` are looked up already: 0 or 1. That
        # character shows whether a word may begin after it.
        self._num_seen = 0
        self._held = Draft.at("", 0)  # text that is looked up, but not read yet
        self._past = ""  # the last characters that were read
        self._quotes = ""  # the straight quotation marks that are open on this line
        self._last = ""  # the last character that was read
        self._is_raw = False  # inside a word that is spoken as it is written
        self._skips_space = False  # a mark of Markdown was removed before this space
        self._next_language = ENGLISH  # language of the word after a segment without a letter
        self._pieces: list[Piece] = []  # all pieces that were returned
        self._warnings: list[str] = []
        self._has_warned = False

    @property
    def spoken(self) -> SpokenText:
        """The spoken text that was returned so far, and its pieces."""
        return SpokenText(self._pieces)

    def take_warnings(self) -> list[str]:
        """Return the new warnings about text that no grammar covers, each of them only once."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def whole(self, text: str) -> str:
        """Return the words to speak for a complete text."""
        return self.feed(text) + self.end()

    def feed(self, piece: str) -> str:
        """Read the next piece of the text; returns the words that no later piece can change."""
        self._take(piece, is_ended=False)
        return self._read(is_ended=False)

    def end(self) -> str:
        """Close the text; returns the words that were still held back."""
        self._take("", is_ended=True)
        return self._read(is_ended=True)

    def give(self, words: str, num_chars: int) -> str:
        """Add words to speak as they are, in place of the next `num_chars` characters of the text.

        Returns the words that no later piece can change, as `feed` does.
        """
        return self._add(GIVEN, num_chars, words)

    def insert(self, mark: str) -> str:
        """Add a punctuation mark that the user's text lacks; returns words as `feed` does."""
        return self._add(mark, 0)

    def _add(self, text: str, num_chars: int, spoken: str | None = None) -> str:
        """Add text in place of the next characters of the user's; returns words as `feed` does."""
        self._take("", is_ended=True)
        start, self._num_chars = self._num_chars, self._num_chars + num_chars
        self._new = Draft.joined((self._new, Draft.of(text, start, self._num_chars, spoken)))
        return self._read(is_ended=False)

    def turn(self, language: str) -> None:
        """Begin another text in the given language, after `end` has closed the previous one."""
        if language != self._language:
            self._language, self._script = language, ScriptWatch(language)
        self._markdown, self._num_seen, self._new = Markdown(), 0, Draft.at("", 0)
        self._last = self._past = ""
        self._is_raw = self._skips_space = False

    def read_apart(self, text: str) -> str:
        """Read a text that takes the place of the next words, and return its words."""
        reader = TextReader(
            self._names_letters, self._is_normalizing, self._script.language(text), self._lexicons
        )
        words = reader.whole(text)
        self._warnings += reader.take_warnings()
        return words

    def read_as(self, text: str, kind: str, form: str) -> str | None:
        """Return the words of a text of one kind (see `say_as.words_of`), or None."""
        language = self._script.language(text)
        grammar = grammar_of(language, self._names_letters)
        if grammar is None and kind != "characters":
            self._warnings.append(missing(language))
            return None
        words = words_of(text, kind, form, grammar)
        return grammar.spoken(words) if grammar and words else words

    def _opens(self, words: str) -> bool:
        """Return whether the next word may continue these words or decide their language."""
        if not self._script.is_known(words) or self._may_be_inches(words):
            return True
        grammar = grammar_of(self._script.language(words), self._names_letters)
        return grammar is not None and grammar.joining.opens(words)

    def _joins(self, words: str, gap: str, word: str) -> bool:
        """Return whether `word` continues these words."""
        if not self._script.is_known(words):
            self._next_language = self._script.language(word)
        if self._may_be_inches(words):
            return word.endswith('"') and not word.startswith('"')
        grammar = grammar_of(self._script.language(words + word), self._names_letters)
        return grammar is not None and grammar.joining.joins(words, gap, word)

    def _may_be_inches(self, words: str) -> bool:
        """Return whether the quotation that a number begins may end only after the next word."""
        return '"' not in self._quotes and _QUOTED_NUMBER.fullmatch(words) is not None

    def _take(self, piece: str, *, is_ended: bool) -> None:
        """Add the next characters of the user's text to the text that is to be read."""
        self._num_chars += len(piece)
        draft = self._typography.take(piece, self._num_chars, is_ended=is_ended)
        self._new = Draft.joined((self._new, draft))

    def _read(self, *, is_ended: bool) -> str:
        first = len(self._pieces)
        self._respell(is_ended)
        self._pieces += self._speak(is_ended)
        return "".join(piece.text for piece in self._pieces[first:])

    def _respell(self, is_ended: bool) -> None:
        """Look up the new text in the lexicons, and move the part that is decided to `_held`."""
        new, place = self._new, self._num_seen
        done, parts = place, [self._held]
        lower = folded(new.text) if self._lexicons else ""
        while place < len(lower):
            found = self._entry(new.text, lower, place, is_ended)
            if found is None:
                break
            length, respelling = found
            if length:
                whole = new.place(place, place + length)
                parts += [new[done:place], Draft.of(RESPELT, *whole, respelling)]
                done = place + length
            place += length or 1
        if not self._lexicons:
            place = len(new.text)
        self._held = Draft.joined([*parts, new[done:place]])
        self._num_seen = min(1, place)
        self._new = new[place - self._num_seen :]

    def _entry(self, text: str, lower: str, place: int, is_ended: bool) -> tuple[int, str] | None:
        """Return the length and the respelling of the entry at `place`.

        The length is 0 if there is no entry. None means that later text may still decide.
        """
        for lexicon in self._lexicons:
            found = lexicon.find(text, lower, place, is_ended, self._language)
            if found is None:
                return None
            if isinstance(found, Entry):
                return len(found.word), found.respelling
        return 0, ""

    def _speak(self, is_ended: bool) -> Iterator[Piece]:
        """Yield the pieces to speak for the complete segments of the held text."""
        held, place = self._held, 0
        while place < len(held.text):
            end = self._next_end(held.text, place, is_ended)
            if end is None:
                break
            yield from self._words_of(held[place:end], held.text[end : end + 2])
            place = end
        self._held = held[place:]

    def _next_end(self, text: str, place: int, is_ended: bool) -> int | None:
        """Return the end of the next segment; None while later text may change it."""
        if not self._is_normalizing or text[place].isspace():
            self._is_raw = False
            return place + 1
        self._is_raw = self._is_raw or is_too_long(text, place)
        if self._is_raw:
            end = run_end(text, place)
            if end > place:
                return end
            self._is_raw = False
        self._next_language = ENGLISH
        return segment_end(text, place, is_ended, self._opens, self._joins)

    def _words_of(self, segment: Draft, following: str) -> Iterator[Piece]:
        if self._names_letters and self._is_normalizing:
            segment = segment.replace(BEYOND_ASCII, base_letter)
        text = segment.text
        if text.isspace() and self._is_normalizing:
            yield from self._space(segment)
        elif self._is_raw or not self._is_normalizing:
            self._markdown.is_begun = False
            self._last = text[-1]
            yield from segment.kept(0, len(text))
        else:
            begins = self._markdown.is_begun
            marked = self._markdown.strip(segment, self._past, following[:1])
            self._skips_space = not marked.text and begins
            if marked.text:
                yield from self._expressions(marked, following)

    def _space(self, segment: Draft) -> Iterator[Piece]:
        start, end = segment.place(0, 1)
        self._past = (self._past + segment.text)[-MAX_PAST:]
        if segment.text == "\n":
            if self._markdown.is_begun and end > start + 1:
                return  # a tag of HTML at the beginning of a line
            if self._markdown.is_begun:  # an empty line
                self._quotes = ""
            if pause := self._markdown.end_line(self._last):
                yield Piece(pause, start, start)
        elif self._skips_space:
            return
        yield from segment.kept(0, 1)

    def _expressions(self, segment: Draft, following: str) -> Iterator[Piece]:
        text = segment.text
        language = self._next_language
        if self._script.is_known(text):
            language = self._script.language(text)
        self._script.look(text)
        grammar = grammar_of(language, self._names_letters)
        article = bare((self._past.split() or [""])[-1]).lower()
        is_size = text[0].isdigit() and article in ("a", "an")  # "a 27\" monitor"
        if grammar:
            quotes = "" if is_size else self._quotes
            is_open = text[-1] == "." and grammar.joining.opens(text)
            said = [*grammar.read(segment, self._past, quotes, following if is_open else "")]
            yield from said
            if text[-1] == "." and following[:1] in "\n" and said[-1].text[-1:].isalnum():
                yield Piece(".", said[-1].end, said[-1].end)  # of an abbreviation that ends a line
        else:
            yield from segment.kept(0, len(text))
            if any(map(str.isdigit, text)) and not self._has_warned:
                self._has_warned = True
                self._warnings.append(missing(language))
        self._past = (self._past + text)[-MAX_PAST:]
        self._last = text[-1]
        self._quotes = open_quotes(text, self._quotes, is_size)
