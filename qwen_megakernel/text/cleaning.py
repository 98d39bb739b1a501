"""What of a user's text is spoken: what has no place in text goes, and what is refused."""

import re

from qwen_megakernel.errors import EmptyText, TextTooLong
from qwen_megakernel.text.sentences import unspeakable

MAX_CHARS = 20_000

# Reading speed of Latin script, to say a length in minutes.
_CHARS_PER_SECOND = 15

# Control characters other than tab and line ends, surrogates (no character of their own, and no
# tokenizer takes them), and the byte order mark. Those that separate words become a space.
_SEPARATORS = re.compile(r"[\x0b\x0c\x1c-\x1f\x85]")
_REMOVED = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x9f\ud800-\udfff\ufeff]")


def clean(text: str) -> str:
    """Drop what has no place in text, then the white space at both ends.

    Dropped: control characters (tab and line ends stay; vertical tab, form feed, next line and the
    ASCII separators become a space), surrogates, the byte order mark. `clean` of a clean text
    changes nothing.
    """
    return drop_controls(text).strip()


def drop_controls(text: str) -> str:
    """`clean` without its last step: white space at both ends stays."""
    return _REMOVED.sub("", _SEPARATORS.sub(" ", text))


def validate(text: str, max_chars: int = MAX_CHARS) -> str:
    """Clean the text of a request, or refuse it.

    Args:
        text: what the user typed.
        max_chars: the longest text to accept, in characters.
    Returns:
        The clean text.
    Raises:
        TextTooLong: more than `max_chars` characters.
        EmptyText: nothing in it can be spoken.
    """
    check_length(len(text), max_chars)
    cleaned = clean(text)
    if unspeakable(cleaned):
        raise empty_text(cleaned)
    return cleaned


def check_length(num_chars: int, max_chars: int) -> None:
    """Raise `TextTooLong` for more than `max_chars` characters."""
    if num_chars > max_chars:
        minutes = max_chars / _CHARS_PER_SECOND / 60
        counts = [f"{count:,}".replace(",", " ") for count in (num_chars, max_chars)]
        raise TextTooLong(
            f"{counts[0]} characters; limit {counts[1]} (about {minutes:.0f} min).",
            hint="Split the input.",
        )


def empty_text(text: str) -> EmptyText:
    """The error for a text in which nothing can be spoken."""
    if not text.strip():
        return EmptyText("Text is empty after trimming.")
    return EmptyText(f'Text "{excerpt(text)}" holds no letter and no digit; nothing to speak.')


def excerpt(text: str) -> str:
    """The beginning of a text, short enough for a message."""
    return text if len(text) <= 20 else text[:20] + "…"
