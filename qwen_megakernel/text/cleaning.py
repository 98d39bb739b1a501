"""Cleans the text of a user, and raises errors for text that cannot be spoken."""

import re

from qwen_megakernel.errors import EmptyText, TextTooLong
from qwen_megakernel.text.sentences import unspeakable

MAX_CHARS = 20_000

# Reading speed in Latin script, by which the length of speech is estimated before it is made.
CHARS_PER_SECOND = 15

# Control characters other than tab and line ends, surrogates (not characters, and no tokenizer
# accepts them), and the byte order mark. Those that separate words become a space.
SEPARATORS = re.compile(r"[\x0b\x0c\x1c-\x1f\x85]")
REMOVED = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x9f\ud800-\udfff\ufeff]")


def clean(text: str) -> str:
    """Drop characters that have no place in text, then the white space at both ends.

    `clean` drops control characters (tab and line ends stay; vertical tab, form feed, next line and
    the ASCII separators become a space), surrogates and the byte order mark. A clean text stays as
    it is.
    """
    return drop_controls(text).strip()


def drop_controls(text: str) -> str:
    """Drop the same characters as `clean`, but keep the white space at both ends."""
    return REMOVED.sub("", SEPARATORS.sub(" ", text))


def visible(text: str) -> str:
    """Return the characters of a text without white space and without what `clean` drops.

    They are the same however the text is cut into parts, so positions are counted in them.
    """
    return "".join(drop_controls(text).split())


def validate(text: str, max_chars: int = MAX_CHARS) -> str:
    """Return the clean text of a request, or raise if it cannot be spoken.

    Raises:
        TextTooLong: the text has more than `max_chars` characters.
        EmptyText: the text has no letter and no digit.
    """
    check_length(len(text), max_chars)
    cleaned = clean(text)
    if unspeakable(cleaned):
        raise empty_text(cleaned)
    return cleaned


def check_length(num_chars: int, max_chars: int) -> None:
    if num_chars > max_chars:
        minutes = max_chars / CHARS_PER_SECOND / 60
        counts = [f"{count:,}".replace(",", " ") for count in (num_chars, max_chars)]
        raise TextTooLong(
            f"The text has {counts[0]} characters; the limit is {counts[1]} "
            f"(about {minutes:.0f} min).",
            hint="Split the input.",
        )


def empty_text(text: str) -> EmptyText:
    """Return the error for a text in which nothing can be spoken."""
    if not text.strip():
        return EmptyText("Text is empty after trimming.")
    return EmptyText(f'Text "{excerpt(text)}" holds no letter and no digit; nothing to speak.')


def excerpt(text: str) -> str:
    """Return the beginning of a text, short enough for a message."""
    return text if len(text) <= 20 else text[:20] + "…"
