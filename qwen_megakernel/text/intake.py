"""Takes in the text of one request, whole or in pieces, and yields its parts as token ids."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from qwen_megakernel.errors import EmptyText, MarkupError, UnknownLanguage
from qwen_megakernel.records import AS_REQUESTED, Manner
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.cleaning import MAX_CHARS, check_length, clean, empty_text, visible
from qwen_megakernel.text.languages import AUTO, language_of_code, resolve_language
from qwen_megakernel.text.markup.marked_text import MarkedText, new_parser
from qwen_megakernel.text.parts import (
    WAITING_PART_CHARS,
    PartEncoder,
    PartEnds,
    TextEncoding,
    TextPart,
)
from qwen_megakernel.text.reading.lexicon import Lexicon
from qwen_megakernel.text.reading.reader import Reading
from qwen_megakernel.text.request_text import Cut, RequestText
from qwen_megakernel.text.sentences import pack_sentences, unspeakable
from qwen_megakernel.text.unreadable import TextWatch

_SLICE_CHARS = 512


class TextIntake:
    """One request's text on its way into parts: its markup is obeyed, expressions are read as
    words, and the words are cut and encoded.

    A whole text is one piece and then its end; its parts have about equal lengths. The parts of an
    open text grow while the engine speaks them, unless the voice needs all of a part before it
    speaks: then `parts` has complete parts only. One thread writes; the engine reads `parts`.

    Args:
        encoding: how the request's parts become ids.
        encoding_of: returns the encoding of parts of a manner; None: each has `encoding`.
        is_whole: the text comes as one piece, and its errors are raised at its end.
        splits: a whole text is cut into parts.
        max_chars: most characters of a whole text, and of a part of an open one.
    """

    def __init__(
        self,
        text: RequestText,
        encoding: TextEncoding,
        *,
        is_whole: bool,
        splits: bool = True,
        max_chars: int = MAX_CHARS,
        encoding_of: Callable[[Manner], TextEncoding] | None = None,
    ) -> None:
        self.text, self.encoding, self.is_whole = text, encoding, is_whole
        self.parts: deque[TextPart] = deque()  # the engine takes them out
        self.is_closed = False  # no part follows; set after the last part was closed
        self.num_parts: int | None = None  # of a whole text
        self._splits, self._max_chars = splits, max_chars
        # Of a whole text, or of an open one until the model reads a letter or digit of it.
        self._steps: list[str | Cut] = []
        self._is_read = False  # the model has read one
        self._unread: EmptyText | None = None  # of the words that came, of which it reads none
        # Where an open text is cut; a whole one is cut when all of it is known.
        self._ends = None if is_whole else PartEnds(*encoding.open_part_chars)
        self._part: TextPart | None = None  # the growing part
        self._encoder: PartEncoder | None = None  # its encoder, if its ids are spoken as they come
        self._manner = AS_REQUESTED  # of the growing part
        self._encoding, self._encoding_of = encoding, encoding_of or (lambda _: encoding)
        self._num_ended = 0  # parts
        self._held = ""  # text of an open part's end, until it shows whether a sentence ends there
        self._num_visible = 0  # visible characters of all parts

    @property
    def error(self) -> MarkupError | EmptyText | None:
        """The first error in the markup, which the reader gets after the speech before it, or that
        of an open text of which the model has read nothing."""
        return self.text.error or (self._unread if self.is_closed else None)

    def feed(self, piece: str) -> None:
        """Take the next piece, of any length; text after an error in the markup is ignored.

        Raises:
            TextTooLong: the text, or a part of an open text, exceeds its limit.
        """
        if self.is_whole:
            check_length(len(piece), self._max_chars)
            self._steps += self.text.feed(piece)
        elif not self.error:
            self._take_read(self.text.feed(piece))
            if self.error:
                self._close()

    def end(self) -> None:
        """End the text.

        Raises:
            MarkupError, TextTooLong, EmptyText: a whole text cannot be spoken.
        """
        if self.is_closed:
            return
        steps = self.text.end()
        if self.is_whole:
            self._steps += steps
            if self.error:
                raise self.error
            words = self._words(self._steps)
            self.text.check(words)
            self._take(self._steps)
        else:
            self._take_read(steps)
        self._close()
        if self.is_whole:
            self.num_parts = sum(len(part.ids) > 0 for part in self.parts)
            if not self.num_parts:
                raise empty_text(clean(words))

    def _words(self, steps: Iterable[str | Cut]) -> str:
        """Return the words of steps; raises `TextTooLong`."""
        words = [step for step in steps if isinstance(step, str)]
        check_length(sum(map(len, words)), self._max_chars)
        return "".join(words)

    def _take_read(self, steps: Iterable[str | Cut]) -> None:
        """Take the steps of an open text, from the first letter or digit on that the model reads.

        So a text of which it reads none is the same error as a whole one, and is never spoken.
        """
        if not self._is_read:
            steps = [*self._steps, *steps]
            words = self._words(steps)  # what it refuses is not kept, so that the text can end
            self._steps, self._unread = steps, None
            try:
                self.text.check(words)
            except EmptyText as error:
                self._unread = error
                return
            if not any(map(str.isalnum, words)):
                return
            self._steps, self._is_read = [], True
        self._take(steps)

    def _close(self) -> None:
        self._finish_part()
        self.is_closed = True  # last, because the engine looks at it first

    def _take(self, steps: Iterable[str | Cut]) -> None:
        for step in steps:
            if isinstance(step, Cut):
                self._finish_part()
                self._manner, self._encoding = step.manner, self._encoding_of(step.manner)
                self._begin_limits()
                if step.pause_s:
                    self.parts.append(TextPart.pause(step.pause_s, self._num_visible))
            elif self._ends is None:
                self._append(step)
            else:  # in slices: behind each end, the rest of a slice is looked at once more
                for begin in range(0, len(step), _SLICE_CHARS):
                    self._held += step[begin : begin + _SLICE_CHARS]
                    self._cut(self._ends)

    def _cut(self, ends: PartEnds, *, is_last: bool = False) -> None:
        """Append the held text to the growing part, and begin another one where it ends.

        Args:
            is_last: no text follows, so that none remains held.
        """
        is_end = True
        while self._held and (is_end or is_last):
            place, is_end = ends.find(self._held, is_last=is_last)
            text, self._held = self._held[:place], self._held[place:]
            if text:
                self._append(text)  # what it refuses is not held, so that the text can still end
                ends.add(text)
            if is_end:
                self._end_part()

    def _append(self, text: str) -> None:
        part = self._part
        if part is None:
            own = None if self._encoding is self.encoding else self._encoding
            part = TextPart(start=self._num_visible, manner=self._manner, encoding=own)
            self._part = part
            if not self.is_whole and self._encoding.new_part and not self._waits:
                self._encoder = self._encoding.new_part()
                self.parts.append(part)
        if self._encoder:
            part.add(self._encoder.feed(text))
        else:
            check_length(len(part.text) + len(text), self._max_chars)
        part.text += text
        self._num_visible += len(visible(text))

    @property
    def _waits(self) -> bool:
        """Whether only the first part is spoken while its text arrives, and it has been."""
        return self._encoding.opens_once and self._num_ended > 0

    def _begin_limits(self) -> None:
        """Let the part that begins next have the limits of its encoding."""
        if self._ends:
            limits = WAITING_PART_CHARS if self._waits else self._encoding.open_part_chars
            self._ends.begin(*limits)

    def _finish_part(self) -> None:
        """End the growing part behind all text that has come."""
        if self._ends:
            self._cut(self._ends, is_last=True)
        self._end_part()

    def _end_part(self) -> None:
        """End the growing part; the next text begins another."""
        part, encoder, self._part, self._encoder = self._part, self._encoder, None, None
        if self._ends:
            self._ends.begin()
        if part is None:
            return
        self._num_ended += 1
        self._begin_limits()
        # The engine skips a part without a word, and raises an error for a text without any.
        with contextlib.nullcontext() if self.is_whole else contextlib.suppress(EmptyText):
            if encoder:
                part.add(encoder.end())
            elif not unspeakable(text := clean(part.text)):
                self._encode(part, text)
        part.closed = True

    def _encode(self, part: TextPart, text: str) -> None:
        """Add the parts of a clean text, which begins where `part` begins."""
        texts, start, encoding = [text], part.start, self._encoding
        if self.is_whole and self._splits:
            texts = pack_sentences(text, *encoding.part_chars)
        for text in texts:
            ids = encoding.encode(text)
            self.parts.append(TextPart.whole(ids, text, start, part.manner, part.encoding))
            start += len(visible(text))


def new_intake(
    request: SpeechOptions,
    encoding_of: Callable[[Manner], TextEncoding],
    reading: Reading,
    *,
    is_whole: bool,
    languages: Sequence[str],
    read_languages: Sequence[str] | None = None,
    takes_phonemes: bool = False,
    max_chars: int = MAX_CHARS,
    format_option: str = "text_format",
) -> TextIntake:
    """Return the intake of the text of a request with these options, which is given to it next.

    Args:
        encoding_of: returns how parts of a manner become ids, or raises a UsageError for a voice or
            a style that is unknown.
        is_whole: the text is given in one piece.
        read_languages: the languages whose scripts it reads; None: unknown.
        takes_phonemes: whether the voice accepts phonemes.
        max_chars: most characters of a whole text, and of a part of an open one.
        format_option: the option that lets markup be obeyed, as the caller writes it.
    """
    has_markup = request.text_format != "plain"
    language = (request.language or AUTO).strip().lower()
    own = [each for each in languages if each != AUTO]
    if language == AUTO and len(own) == 1:  # "auto" stands for it
        language = own[0]
    language = language_of_code(language) or language
    lexicon = Lexicon.of(request.lexicon)
    reader = reading.reader(request.normalize, language, lexicon, has_markup)
    watch = TextWatch(read_languages, format_option, is_read=reader is not None)

    def language_of(name: str) -> str | None:
        with contextlib.suppress(UnknownLanguage):
            return resolve_language(name, languages)
        return None

    text = RequestText(reader, watch)
    if has_markup and reader is not None:
        parser = new_parser(
            request.text_format, lambda manner: encoding_of(replace(manner, language=None))
        )
        text = MarkedText(
            *(parser, reader, language_of, watch), language=language, takes_phonemes=takes_phonemes
        )
    return TextIntake(
        *(text, encoding_of(AS_REQUESTED)),
        is_whole=is_whole,
        splits=request.split != "off",
        max_chars=max_chars,
        encoding_of=encoding_of,
    )
