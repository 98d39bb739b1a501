"""Texts that a careless or hostile client sends: odd characters, odd ends, odd lengths."""

import random
import unicodedata
from collections.abc import Iterator

CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))]
SPACES = [chr(code) for code in range(0x3001) if unicodedata.category(chr(code))[0] == "Z"]
INVISIBLE = [chr(code) for code in range(0x10000) if unicodedata.category(chr(code)) == "Cf"]
SURROGATES = ["\ud800", "\udbff", "\udc00", "\udfff"]
MARKUP = ["<p\n>", "<br />", '<p class="a">', "<speak>", '<break time="1s"/>', '<p z="a&#10;b">']
MARKUP += ["&amp;", "[pause 1s]", "**", "```", "# ", "%0d%0aX-A: b", "\x1b[31m"]
MARKUP.append(f"<p {'一' * 150}>")
WORDS = ["Hello", "there.", "It costs $3.50", "100%", "5 March"]
WORDS += ["ünïcode", "שלום", "مرحبا", "你好", "😀"]
_FILLS = ["abcd ", "x", "5 é ", "1. \n", "一", "%", "\u200d", "a\u0301"]


def odd_texts(count: int, seed: int = 0) -> Iterator[str]:
    """Yield `count` texts: each odd character at either end and within, then random mixtures.

    Among the mixtures are empty texts, blank ones, and texts of up to 20,000 characters.
    """
    texts = _with_each_odd_character()
    draw = random.Random(seed)
    for index in range(count):
        text = next(texts, None) if index % 2 else None
        yield _mixture(draw) if text is None else text


def _with_each_odd_character() -> Iterator[str]:
    for char in (*CONTROLS, *SPACES, *INVISIBLE, *SURROGATES, *MARKUP):
        yield from (f"Hello{char}", f"{char}Hello", f"Hello {char} there", char)


def _mixture(draw: random.Random) -> str:
    kind = draw.random()
    if kind < 0.02:
        return draw.choice(_FILLS) * draw.randrange(5000)
    if kind < 0.1:  # near the length to which a header is cut
        return draw.choice(_FILLS) * 250 + " " * draw.randrange(30) + "end."
    pools = (CONTROLS, SPACES, INVISIBLE, SURROGATES, MARKUP, WORDS, WORDS, WORDS)
    text = "".join(draw.choice(draw.choice(pools)) for _ in range(draw.randrange(12)))
    return text[:20_000]
