"""Text to phonemes with espeak-ng, a program of the system."""

import re
import subprocess

from qwen_megakernel.errors import SetupError, UsageError

PROGRAM = "espeak-ng"
TIMEOUT_SECONDS = 20.0

# Punctuation that ends a clause, with what closes behind it, and the white space that proves it:
# "3.5" and "Mr" keep theirs to themselves. The marks tell the model of pauses and questions.
_CLAUSE = re.compile(r"([,;:.!?…]+)[\"'”’»)\]]*(?=\s|$)")
_LANGUAGE_SWITCH = re.compile(r"\([a-z-]+\)")  # "(fr)", where espeak-ng reads a foreign word


def phonemise(text: str, voice: str) -> str:
    """IPA phonemes of a text, punctuation kept.

    Args:
        text: in the language of the voice.
        voice: espeak-ng's name of it, as "en-us" or "de".
    Raises:
        SetupError: espeak-ng is not installed, or does not answer.
        UsageError: it has no such voice.
    """
    pieces = _CLAUSE.split(text)
    spoken = []
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
