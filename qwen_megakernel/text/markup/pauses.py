"""The parser of plain text whose only markup is "[pause 1.5s]" and "[pause 500ms]"."""

import re

from qwen_megakernel.errors import MarkupError, UsageError
from qwen_megakernel.text.markup import values
from qwen_megakernel.text.markup.items import Item, Pause, Place, Words

MAX_MARK_CHARS = 32  # between the brackets
_MARK = re.compile(
    rf"\[(?=[^\]]{{0,{MAX_MARK_CHARS}}}\])pause[ \t]+([0-9.]+)[ \t]?(ms|s)\]",
    re.ASCII | re.IGNORECASE,
)
_MAYBE_MARK = re.compile(rf"\[[^\[\]\n]{{0,{MAX_MARK_CHARS}}}\Z")  # not complete yet
_BEGIN = "[pause "


class PauseParser:
    """An `items.Parser` of plain text with pauses."""

    def __init__(self) -> None:
        self.error: MarkupError | None = None
        self._held = ""  # text at the end that may be the beginning of a "[pause ...]"
        self._place = Place(1, 1)  # the beginning of the text that is not parsed yet
        self._pauses_s = 0.0

    def take_warnings(self) -> list[str]:
        return []

    def feed(self, text: str) -> list[Item]:
        text = self._held + text
        maybe = _MAYBE_MARK.search(text)
        begun = maybe.group()[: len(_BEGIN)].lower().replace("\t", " ") if maybe else ""
        end = maybe.start() if maybe and _BEGIN.startswith(begun) else len(text)
        self._held = text[end:]
        return self._read(text[:end])

    def end(self) -> list[Item]:
        text, self._held = self._held, ""
        return self._read(text)

    def _read(self, text: str) -> list[Item]:
        items: list[Item] = []
        done = 0
        for match in _MARK.finditer(text):
            if self.error:
                break
            items += self._words(text[done : match.start()])
            try:
                seconds = values.seconds_of(match[1] + match[2].lower(), "a pause")
                self._pauses_s += seconds
                if self._pauses_s > values.MAX_PAUSES_S:
                    limit = values.MAX_PAUSES_S
                    raise UsageError(f"the pauses are longer than {limit:g} s in total.")
            except UsageError as error:
                self.error = MarkupError(f"[pause], {self._place}: {error.what}")
                break
            if seconds:
                items.append(Pause(seconds))
            self._pass(match.group())
            done = match.end()
        return items if self.error else items + self._words(text[done:])

    def _words(self, text: str) -> list[Item]:
        self._pass(text)
        return [Words(text)] if text else []

    def _pass(self, text: str) -> None:
        """Move the place to the end of a text."""
        lines = text.split("\n")
        first = self._place.column if len(lines) == 1 else 1
        self._place = Place(self._place.line + len(lines) - 1, first + len(lines[-1]))
