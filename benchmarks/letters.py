"""Estimates how long a text takes to speak, from its characters alone."""

import unicodedata

_WIDE_LETTERS = 3  # an ideograph, kana or Hangul syllable: about a fifth of a second
_DIGIT_LETTERS = 4  # "7" is spoken "seven"
_PAUSE_LETTERS = {**dict.fromkeys(",;:、，；：—–", 2), **dict.fromkeys(".!?…。！？", 4)}


def count_letters(text: str) -> int:
    """Estimate how long a text takes to speak, in Latin letters, marked pauses included."""
    return sum(map(_letters_of, text))


def _letters_of(char: str) -> int:
    if char.isdigit():
        return _DIGIT_LETTERS
    if char.isalpha():
        return _WIDE_LETTERS if unicodedata.east_asian_width(char) in "WF" else 1
    return _PAUSE_LETTERS.get(char, 0)
