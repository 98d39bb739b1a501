"""Turns the letters of a text into sounds of a few kinds, with their relative lengths.

The kinds are coarse, so that they can be found in samples: a vowel is loud, "s" hisses, "p" is a
gap. The rules are the same for all languages, because languages in the Latin and Cyrillic scripts
spell these kinds similarly enough. In other scripts, most letters are a sound of no particular
kind.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from qwen_megakernel.text.cleaning import drop_controls
from qwen_megakernel.text.scripts import KANA, VOICING_MARKS


class Kind(IntEnum):
    """The kinds of sounds that can be told apart in samples."""

    SILENCE = 0
    VOWEL = 1
    SONORANT = 2  # m, n, l, r, w
    HISS = 3  # s, sh, ch
    BREATH = 4  # f, v, th, h
    STOP = 5  # p, t, k: a gap, and a burst
    ANY = 6


class Pause(IntEnum):
    """The place between two sounds, which decides how likely a silence is there."""

    NONE = 0  # inside a word
    GAP = 1  # between two words
    COMMA = 2
    FULL_STOP = 3  # also at the beginning of a part


@dataclass(frozen=True, slots=True)
class Sound:
    """One sound of a part.

    Attributes:
        weight: its relative length; a consonant has about 1.
        first, last: its first and its last letter, counted in visible characters of the part.
        pause: the place before it, where a silence may be.
    """

    kind: Kind
    weight: float
    first: int
    last: int
    pause: Pause = Pause.NONE


_VOWELS = frozenset("aeiou")
_VOWEL_WEIGHT, _LONG_VOWEL_WEIGHT, _MAX_VOWEL_WEIGHT = 1.3, 0.5, 2.3
_FINAL_STRETCH = 1.3  # how much longer the last syllable before a pause is
_NAMED_WEIGHT = 2.4  # for a letter that is spoken by its name ("p m")
_NUMBER_WEIGHT = 4.0  # for a digit: "7" is spoken "seven"

_CONSONANTS: dict[str, tuple[Kind, float]] = {
    **dict.fromkeys("mnlrwyj", (Kind.SONORANT, 0.9)),
    **dict.fromkeys("szxc", (Kind.HISS, 1.1)),
    **dict.fromkeys("fvh", (Kind.BREATH, 0.9)),
    **dict.fromkeys("ptkbdgq", (Kind.STOP, 0.9)),
}
_SPELLINGS: dict[str, tuple[Kind, float]] = {
    "tch": (Kind.HISS, 1.3),
    "sch": (Kind.HISS, 1.3),
    "sh": (Kind.HISS, 1.3),
    "ch": (Kind.HISS, 1.3),
    "th": (Kind.BREATH, 0.9),
    "ph": (Kind.BREATH, 0.9),
    "wh": (Kind.SONORANT, 0.9),
    "ck": (Kind.STOP, 0.9),
    "ng": (Kind.SONORANT, 1.1),
    "wr": (Kind.SONORANT, 0.9),
    "kn": (Kind.SONORANT, 0.9),
}
_SOFT = frozenset("eiy")  # letters before which a "c" hisses
_LATIN = {"ß": "s", "æ": "a", "œ": "o", "ø": "o", "đ": "d", "ð": "d", "þ": "t", "ł": "l", "ı": "i"}
_CYRILLIC = dict(zip("абвгдезиклмнопрстуфхцчшщыэюя", "abvgdeziklmnoprstufhcssseeua", strict=True))
_UNSOUNDED = frozenset("ьъ" + VOICING_MARKS)
_KANA_CHAR = re.compile(f"[{KANA}]")
_APOSTROPHES = frozenset("'’")
_PAUSES = {
    **dict.fromkeys(",;:、，；：—–()", Pause.COMMA),
    **dict.fromkeys(".!?…。！？", Pause.FULL_STOP),
}
_FIRST_HANGUL, _LAST_HANGUL, _HANGUL_FINALS = 0xAC00, 0xD7A3, 28


def sounds_of(text: str) -> list[Sound]:
    """Return the sounds of a part of a text, in order; the list may be empty."""
    sounds: list[Sound] = []
    pause = Pause.FULL_STOP  # before the first sound of the part
    run: list[tuple[str, int]] = []  # letters of the Latin alphabet, and their places
    place = 0

    def take(found: Iterator[Sound]) -> None:
        nonlocal pause
        for sound in found:
            if pause >= Pause.COMMA:
                _stretch_end(sounds)
            sounds.append(replace(sound, pause=pause))
            pause = Pause.NONE

    for char in drop_controls(text):
        letter = _latin(char)
        if letter:
            run.append((letter, place))
        elif char not in _APOSTROPHES and not unicodedata.combining(char):
            take(_spoken(run))
            run = []
            if char.isspace():
                pause = max(pause, Pause.GAP)
            elif char.isalnum():
                take(_other(char, place))
            else:
                pause = max(pause, _PAUSES.get(char, Pause.NONE))
        place += not char.isspace()
    take(_spoken(run))
    _stretch_end(sounds)
    return sounds


def _latin(char: str) -> str:
    """Return the Latin letter that sounds most like this character, or "" if none does."""
    if "a" <= char <= "z":
        return char
    lower = char.lower()
    lower = _LATIN.get(lower, lower)
    base = unicodedata.normalize("NFD", lower)[:1]
    base = _CYRILLIC.get(base, base)
    return base if "a" <= base <= "z" else ""


def _other(char: str, place: int) -> Iterator[Sound]:
    """Return the sounds of a letter or digit of another script."""
    if char in _UNSOUNDED:
        return
    if not char.isalpha():
        yield Sound(Kind.ANY, _NUMBER_WEIGHT, place, place)
    elif _FIRST_HANGUL <= ord(char) <= _LAST_HANGUL:
        yield Sound(Kind.STOP, 0.9, place, place)
        yield Sound(Kind.VOWEL, 1.4, place, place)
        if (ord(char) - _FIRST_HANGUL) % _HANGUL_FINALS:
            yield Sound(Kind.SONORANT, 0.7, place, place)
    elif unicodedata.east_asian_width(char) in "WF" or _KANA_CHAR.match(char):
        yield Sound(Kind.ANY, 1.0, place, place)
        yield Sound(Kind.VOWEL, 2.0, place, place)
    else:
        yield Sound(Kind.ANY, 1.2, place, place)


def _spoken(run: list[tuple[str, int]]) -> Iterator[Sound]:
    """Return the sounds of a word of Latin letters."""
    word, places = "".join(letter for letter, _ in run), [place for _, place in run]
    if not any(letter in _VOWELS or letter == "y" for letter in word):
        yield from (Sound(Kind.ANY, _NAMED_WEIGHT, place, place) for place in places)
        return
    index, has_vowel = 0, False
    held: Sound | None = None  # the latest sound; a silent letter may still be added to it
    while index < len(word):
        kind, weight, length = _sound_at(word, index)
        last = places[index + length - 1]
        is_silent = word[index:] == "e" and has_vowel and index > 1
        if held and (is_silent or word[index : index + length] == "gh"):
            held = replace(held, last=last)
        else:
            if held:
                yield held
            held = Sound(kind, weight, places[index], last)
        has_vowel = has_vowel or kind is Kind.VOWEL
        index += length
    if held:
        yield held


def _sound_at(word: str, index: int) -> tuple[Kind, float, int]:
    """Return the sound that begins at a letter of a word: kind, weight, and number of letters."""
    letter, end = word[index], index
    while end < len(word) and _is_vowel(word, end):
        end += 1
    if end > index:
        weight = _VOWEL_WEIGHT + _LONG_VOWEL_WEIGHT * (end - index - 1)
        return Kind.VOWEL, min(weight, _MAX_VOWEL_WEIGHT), end - index
    if index and word[index : index + 2] == "gh":
        return Kind.SONORANT, 0.0, 2
    for length in (3, 2):
        spelling = word[index : index + length]
        if found := _SPELLINGS.get(spelling):
            return *found, len(spelling)
    kind, weight = _CONSONANTS[letter]
    if letter == "c" and word[index + 1 : index + 2] not in _SOFT:
        kind = Kind.STOP
    return kind, weight, 2 if word[index + 1 : index + 2] == letter else 1


def _is_vowel(word: str, index: int) -> bool:
    """Return whether a letter is a vowel; "y" is a consonant at the beginning or before a vowel."""
    if word[index] == "y":
        return index > 0 and word[index + 1 : index + 2] not in _VOWELS
    return word[index] in _VOWELS


def _stretch_end(sounds: list[Sound]) -> None:
    for index in range(len(sounds) - 1, -1, -1):
        sound = sounds[index] = replace(sounds[index], weight=sounds[index].weight * _FINAL_STRETCH)
        if sound.kind in (Kind.VOWEL, Kind.ANY) or sound.pause is not Pause.NONE:
            return
