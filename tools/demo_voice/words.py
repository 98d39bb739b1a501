"""The list of common words: those of Debian's wamerican that pocketsphinx finds likeliest.

python -m tools.demo_voice.words        rewrites words.txt beside this file
"""

import re
from pathlib import Path

import pocketsphinx

DICTIONARY = Path("/usr/share/dict/american-english")  # from the Debian package wamerican
NUMBER = 8000
MAX_CHARS = 12
ONE_LETTER = {"a", "i"}


def ranked() -> list[str]:
    """Return words by their probability in the language model of pocketsphinx's wheel."""
    spelt = set(re.findall(r"^[a-z]+$", DICTIONARY.read_text(encoding="utf-8"), re.MULTILINE))
    decoder = pocketsphinx.Decoder(loglevel="FATAL")
    model = decoder.get_lm("_default")
    known = [
        word
        for word in spelt
        if len(word) <= MAX_CHARS
        and (len(word) > 1 or word in ONE_LETTER)
        and decoder.lookup_word(word)
    ]
    return sorted(known, key=lambda word: (model.prob([word]), word), reverse=True)[:NUMBER]


if __name__ == "__main__":
    path = Path(__file__).parent / "words.txt"
    path.write_text("\n".join(ranked()) + "\n", encoding="utf-8")
