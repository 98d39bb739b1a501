"""Turns text into phonemes with espeak-ng, a program of the system."""

import re
import subprocess

from qwen_megakernel.errors import SetupError, UsageError

PROGRAM = "espeak-ng"
TIMEOUT_SECONDS = 20.0

# Punctuation that ends a clause, before white space or the end, so not in "3.5". The phonemes keep
# it, because it shows the model pauses and questions.
_CLAUSE = re.compile(r"([,;:.!?…]+)[\"'”’»)\]]*(?=\s|$)")
_LANGUAGE_SWITCH = re.compile(r"\([a-z-]+\)")  # "(fr)", where espeak-ng reads a foreign word


def phonemise(text: str, voice: str) -> str:
    """Return the IPA phonemes of a text, with its punctuation.

    Args:
        text: a text in the language of the voice.
        voice: espeak-ng's name of the voice, such as "en-us" or "de".
    Raises:
        SetupError: espeak-ng is not installed, or does not answer.
        UsageError: espeak-ng has no such voice.
    """
    pieces = _CLAUSE.split(text)
    spoken: list[str] = []
    for words, mark in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
        phonemes = _ask(words.strip(), voice) if any(map(str.isalnum, words)) else ""
        if phonemes or spoken:
            spoken.append(phonemes + mark)
    return " ".join(spoken).strip()


def _ask(words: str, voice: str) -> str:
    command = [PROGRAM, "-q", "--ipa", "-v", voice, "--stdin"]
    try:
        done = subprocess.run(
            command,
            input=words,
            capture_output=True,
            encoding="utf-8",
            timeout=TIMEOUT_SECONDS,
            check=True,
        )
    except FileNotFoundError as error:
        raise SetupError(
            f"Text is turned into phonemes by {PROGRAM}, which is not installed.",
            hint="apt-get install espeak-ng (or brew install espeak-ng), or give phonemes.",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SetupError(
            f"{PROGRAM} did not answer in {TIMEOUT_SECONDS:g} s: {words[:40]!r}."
        ) from error
    except subprocess.CalledProcessError as error:
        raise UsageError(
            f"{PROGRAM} has no voice {voice!r}: {error.stderr.strip()}",
            hint=f"{PROGRAM} --voices lists them.",
        ) from error
    return " ".join(_LANGUAGE_SWITCH.sub("", done.stdout).split())
