"""An offline recogniser: pocketsphinx, which includes a model of US English.

It is an old recogniser and the voice is synthetic, so it makes many mistakes even with correct
sound. Compare its figures only with each other. It is dependable when it has to choose which of
some sentences was said.
"""

import re
from collections.abc import Sequence
from math import gcd

import jiwer
import numpy as np
from num2words import num2words
from pocketsphinx import Decoder
from scipy.signal import resample_poly

RATE = 16000
PAD_SECONDS = 0.25
PEAK = 0.6
NOISE = 0.0005  # digital silence confuses the recogniser's noise estimate


def spoken_words(text: str) -> list[str]:
    """Return a text's spoken words: small letters, numbers spelt out, no punctuation."""
    text = re.sub(r"\d+", lambda number: f" {num2words(int(number[0]))} ", text.lower())
    return re.sub(r"[^a-z' ]", " ", text.replace("-", " ")).split()


class Recogniser:
    """A recogniser that hears speech freely, or as one of some sentences."""

    def __init__(self) -> None:
        self._free = Decoder(loglevel="FATAL")

    def knows(self, sentence: str) -> bool:
        return all(self._free.lookup_word(word) for word in spoken_words(sentence))

    def hear(self, samples: np.ndarray, rate: int) -> list[str]:
        """Return the words that it hears, with its own language model."""
        return _decode(self._free, samples, rate)

    def choose(self, samples: np.ndarray, rate: int, sentences: Sequence[str]) -> int:
        """Return the index of the sentence that it hears among `sentences`; -1 if none.

        Raises:
            ValueError: a sentence has a word that its dictionary lacks.
        """
        options = [" ".join(spoken_words(sentence)) for sentence in sentences]
        for sentence in sentences:
            if not self.knows(sentence):
                raise ValueError(f"The recogniser's dictionary lacks a word of {sentence!r}.")
        grammar = f"#JSGF V1.0; grammar all; public <all> = {' | '.join(options)};"
        decoder = Decoder(lm=None, loglevel="FATAL")
        decoder.add_jsgf_string("all", grammar)
        decoder.activate_search("all")
        heard = " ".join(_decode(decoder, samples, rate))
        return options.index(heard) if heard in options else -1


def word_error_rate(texts: Sequence[str], heard: Sequence[Sequence[str]]) -> float:
    """Return the words that are wrong, missing or extra, over the words of all texts."""
    wanted = [" ".join(spoken_words(text)) for text in texts]
    return float(jiwer.wer(wanted, [" ".join(words) for words in heard]))


def _decode(decoder: Decoder, samples: np.ndarray, rate: int) -> list[str]:
    common = gcd(RATE, rate)
    sound = resample_poly(samples.astype(np.float64), RATE // common, rate // common)
    sound = np.pad(sound, int(PAD_SECONDS * RATE))
    sound *= PEAK / max(1e-6, np.abs(sound).max())
    sound += np.random.default_rng(0).normal(scale=NOISE, size=len(sound))
    decoder.start_utt()
    decoder.process_raw((sound * 32767).astype(np.int16).tobytes(), full_utt=True)
    decoder.end_utt()
    hypothesis = decoder.hyp()
    return re.sub(r"\(\d+\)", "", hypothesis.hypstr).split() if hypothesis else []
