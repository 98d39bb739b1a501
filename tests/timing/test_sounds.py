"""Letters become sounds, whatever the script."""

import pytest
from cpu_time import cpu_seconds

from qwen_megakernel.text.cleaning import MAX_CHARS, visible
from qwen_megakernel.timing.sounds import Kind, Pause, sounds_of


def spelled(text: str) -> str:
    """Return a letter for each sound's kind, behind a digit for the pause before it."""
    names = {
        Kind.VOWEL: "V",
        Kind.SONORANT: "N",
        Kind.HISS: "S",
        Kind.BREATH: "F",
        Kind.STOP: "P",
        Kind.ANY: "?",
    }
    return "".join(
        f"{sound.pause or ''}"[-1:] * bool(sound.pause) + names[sound.kind]
        for sound in sounds_of(text)
    )


@pytest.mark.parametrize(
    ("text", "sounds"),
    [
        ("the cat", "3FV1PVP"),
        ("ship, chess", "3SVP2SVS"),
        ("a fish", "3V1FVS"),
        ("name", "3NVN"),  # the last e is silent
        ("the", "3FV"),  # this one is not
        ("eight", "3VP"),
        ("don't", "3PVNP"),
        ("yes day", "3NVS1PV"),
        ("élan", "3VNVN"),
        ("да", "3PV"),
        ("p m", "3?1?"),
        ("42", "3??"),
        ("한국", "3PVNPVP".replace("PVP", "PVN")),
        ("中。国", "3?V3?V"),
        ("ｶﾞ、カ", "3?V2?V"),  # half-width kana: a mark of voicing has no sound of its own
        ("مرحبا", "3?????"),
        ("… — 😀", ""),
        ("", ""),
    ],
)
def test_letters_sound_as_their_kind(text: str, sounds: str):
    assert spelled(text) == sounds


@pytest.mark.parametrize(
    "text", ["Straße, naïve “night” — don't!", "한국어 12 中文", "a\x00b \ud800 c", "ё́ x"]
)
def test_sounds_have_the_places_of_visible_letters_in_order(text: str):
    sounds, letters = sounds_of(text), visible(text)
    places = [(sound.first, sound.last) for sound in sounds]
    assert places == sorted(places) and places[-1][1] < len(letters)
    assert all(letters[first].isalnum() for first, _ in places)


def test_a_syllable_before_a_pause_is_longer():
    inside, last = (
        next(sound.weight for sound in sounds_of(text) if sound.kind is Kind.VOWEL)
        for text in ("na ta", "na, ta")
    )
    assert last > inside


def test_only_ends_of_words_have_pauses():
    assert [sound.pause for sound in sounds_of("well-known, no")] == [
        Pause.FULL_STOP,
        *[Pause.NONE] * 6,
        Pause.COMMA,
        Pause.NONE,
    ]


def test_the_longest_text_takes_time_in_proportion():
    half = "Read all of this, please. " * (MAX_CHARS // 52)
    assert cpu_seconds(lambda: sounds_of(2 * half)) < 6 * cpu_seconds(lambda: sounds_of(half))
