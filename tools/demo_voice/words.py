"""Write the list of common words: those of Debian's wamerican that pocketsphinx finds likeliest.

python -m tools.demo_voice.words        rewrites words.txt beside this file

Names have their capitals and abbreviations theirs; contractions and possessives are words, too.
"""

import re
from pathlib import Path

import pocketsphinx

DICTIONARY = Path("/usr/share/dict/american-english")  # from the Debian package wamerican
NUMBER = 20_000
MAX_CHARS = 14
ONE_LETTER = {"a", "i"}
SPELLING = re.compile(r"^[A-Za-z]+(?:'[a-z]+)?$", re.MULTILINE)


def spellings() -> dict[str, str]:
    """Return the dictionary's spelling of each word, by its lower-case letters.

    A word that is no name is spelt in small letters. Two letters that are an abbreviation and a
    name's short form or a chemical element as well ("AL", "Al") are left out.
    """
    found: dict[str, str] = {}
    unclear = set()
    for word in sorted(set(SPELLING.findall(DICTIONARY.read_text(encoding="utf-8")))):
        lower = word.lower()
        if lower in found and len(word) == 2 and not word.islower():
            unclear.add(lower)
        found[lower] = word  # capitals sort first, so that small letters win
    return {lower: word for lower, word in found.items() if lower not in unclear or word.islower()}


def ranked() -> list[str]:
    """Return words by their probability in the language model of pocketsphinx's wheel."""
    decoder = pocketsphinx.Decoder(loglevel="FATAL")
    model = decoder.get_lm("_default")
    known = {
        lower: word
        for lower, word in spellings().items()
        if len(word) <= MAX_CHARS
        and (len(word) > 1 or lower in ONE_LETTER)
        and decoder.lookup_word(lower)
    }
    likeliest = sorted(known, key=lambda lower: (model.prob([lower]), lower), reverse=True)
    return [known[lower] for lower in likeliest[:NUMBER]]


if __name__ == "__main__":
    path = Path(__file__).parent / "words.txt"
    path.write_text("\n".join(ranked()) + "\n", encoding="utf-8")
