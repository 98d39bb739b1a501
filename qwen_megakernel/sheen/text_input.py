"""Turns the text of a request into token ids, through phonemes if the voice was trained on them.

The phonemes are those of espeak-ng, a program of the system.
"""

from __future__ import annotations

import re
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qwen_megakernel.errors import EmptyText, SetupError, UsageError
from qwen_megakernel.records import TextIds
from qwen_megakernel.sheen.decoder import NO_IDS
from qwen_megakernel.sheen.tokens import text_ids
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.parts import TextEncoding

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROGRAM = "espeak-ng"
TIMEOUT_SECONDS = 20.0

# Punctuation that ends a clause, before white space or the end, so not in "3.5". The phonemes keep
# it, because it shows the model pauses and questions.
_CLAUSE = re.compile(r"([,;:.!?…]+)[\"'”’»)\]]*(?=\s|$)")
_LANGUAGE_SWITCH = re.compile(r"\([a-z-]+\)")  # "(fr)", where espeak-ng reads a foreign word

# Limits for the parts of a long text. A training sequence has 10 to 12 s (1024 tokens, 82 per
# second of audio), and speech has 12 to 17 characters per second.
MIN_PART_CHARS, MAX_PART_CHARS = 60, 120


class TextInput:
    """Encodes the texts of one voice, phonemes or what the espeak-ng voice `espeak` phonemises.

    Raises:
        SetupError, UsageError: espeak-ng, or its voice, is not installed.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, espeak: str | None):
        self._tokenizer, self._espeak = tokenizer, espeak
        self._lock = threading.Lock()  # transformers' tokenizers change while they are used
        if espeak:
            phonemise("one", espeak)

    def encoding(self, request: SpeechOptions) -> TextEncoding:
        """Return how the parts of a request's text become ids.

        The model reads all of a part before it speaks, so the parts of an open text wait until they
        are complete.
        """
        return TextEncoding(
            request,
            TextIds(NO_IDS, NO_IDS),
            self.encode,
            None,
            (MIN_PART_CHARS, MAX_PART_CHARS),
            (MAX_PART_CHARS, 2 * MAX_PART_CHARS),
        )

    def encode(self, text: str) -> Tensor:
        """Return the ids of one part, [num_tokens] int64."""
        phonemes = phonemise(text, self._espeak) if self._espeak else text
        if not any(map(str.isalnum, phonemes)):
            raise EmptyText(f"Nothing in {text[:20]!r} can be spoken.")
        with self._lock:
            return torch.tensor(text_ids(self._tokenizer, phonemes))


def phonemise(text: str, voice: str) -> str:
    """Return the IPA phonemes of a text, with its punctuation; a voice is "en-us", for example.

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
    options: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "check": True}
    try:
        done = subprocess.run(command, input=words, timeout=TIMEOUT_SECONDS, **options)
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
