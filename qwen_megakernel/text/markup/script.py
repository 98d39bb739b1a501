"""The parser of a script: lines such as "anna: Hello." and "ben (happy): Good morning!"."""

import re
from collections.abc import Callable

from qwen_megakernel.errors import MarkupError, UsageError
from qwen_megakernel.records import Manner
from qwen_megakernel.text.markup.items import Item
from qwen_megakernel.text.markup.pauses import PauseParser

MAX_LABEL_CHARS = 64  # before the colon; in a longer beginning of a line, a colon names no speaker
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_COLON = re.compile("[:：\n]")
# The last parentheses hold a style; behind the last voice of a mix a number is its weight.
_STYLED = re.compile(r"(?!.*\+.*\([\d.]+\)$)(.*?)\s*[(（]([^()（）+]*)[)）]")


class ScriptParser(PauseParser):
    """An `items.Parser` of a script, which may have "[pause 1.5s]" in it.

    A line without a name continues the speaker of the line before it, and text before the first
    name has the request's voice. A colon names no speaker in "10:30" and "https://".

    Args:
        check: raises a UsageError for a manner whose voice or style is unknown.
    """

    def __init__(self, check: Callable[[Manner], object] = lambda _: None) -> None:
        super().__init__()
        self._check = check
        self._begun: str | None = ""  # a line's beginning, which may be a name; None: it is decided

    def feed(self, text: str) -> list[Item]:
        items: list[Item] = []
        for line in _LINE.findall(text):
            if self.error:
                break
            if self._begun is not None:
                line = self._begun + line
                length = self._decided(line)
                if length is None:
                    self._begun = line
                    break
                self._begun = None
                items += self._name(line[:length])
                line = line[length:]
            items += super().feed(line)
            if line.endswith("\n"):
                self._begun = ""
        return items

    def end(self) -> list[Item]:
        if self.error:
            return []
        held, self._begun = self._begun or "", None
        is_name = held.endswith((":", "："))
        items = self._name(held) if is_name else super().feed(held)
        return items if self.error else items + super().end()

    def _decided(self, text: str) -> int | None:
        """Return how much of a line's beginning is a name and its colon; None: more must come."""
        found = _COLON.search(text, 0, MAX_LABEL_CHARS + 1)
        if not found:
            return 0 if len(text) > MAX_LABEL_CHARS else None
        name, rest = text[: found.start()].strip(), text[found.end() :]
        if found.group() == "\n" or not name:
            return 0
        if found.group() == "：":
            return found.end()
        if rest in ("", "/"):
            return None
        is_time = name[-1].isdigit() and rest[0].isdigit()
        return 0 if is_time or rest.startswith("//") else found.end()

    def _name(self, label: str) -> list[Item]:
        """Turn to the speaker that a name with its colon means; an empty label changes nothing."""
        name = label[:-1].strip()
        if not name:
            return []
        styled = _STYLED.fullmatch(name)
        voice, style = (styled[1], styled[2].strip() or None) if styled else (name, None)
        manner = Manner(voice=voice, style=style)
        try:
            self._check(manner)
        except UsageError as error:
            self.error = MarkupError(
                f"Script, {self._place}: {error.what}",
                hint='A line whose text has a colon begins with its speaker: "anna: Note: ...".',
            )
            return []
        self._pass(label)
        return [manner]
