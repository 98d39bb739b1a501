"""A tiny byte-level BPE in the Qwen2 file format: bytes, words' first letters, common pairs.

Merges are few on purpose: a voice this small learns to spell, and a token stays about one sound.
"""

import json
import string
import tempfile
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from tools.demo_voice.recipe import NUM_TEXT_TOKENS, SPECIAL_TOKENS

NUM_BYTES = 256
_SPACE = "Ġ"  # GPT-2's byte table writes a space like this

ROLE = "assistant"  # one token, which begins every prompt
_PAIRS = (
    "t h,s h,c h,p h,c k,g h,o u,o w,o o,o i,o y,e e,e a,a i,a y,a u,a w,i n,in g,e r,o r,a r,i r,"
    "u r,q u,l l,e d,i e,o a,e w,t i,o n,ti on"
)
_WORD_STARTS = (("t", "h"), ("th", "e"), ("s", "h"), ("c", "h"), ("w", "h"))


def byte_alphabet() -> list[str]:
    """Return the printable stand-in of every byte in GPT-2's table: itself, or a free letter."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(NUM_BYTES, 2 * NUM_BYTES))
    return [chr(byte if byte in printable else next(spare)) for byte in range(NUM_BYTES)]


def merges() -> list[tuple[str, str]]:
    """Return the merges in order of rank."""
    found = [("s", "s"), ("ss", "i"), ("a", "ssi")]
    found += [(ROLE[:end], ROLE[end]) for end in range(4, len(ROLE))]
    # Spaces come before letters, so every word starts with a token of its own.
    found += [(_SPACE, letter) for letter in string.ascii_lowercase + string.ascii_uppercase]
    found += [tuple(pair.split()) for pair in _PAIRS.split(",")]
    found += [(_SPACE + left, right) for left, right in _WORD_STARTS]
    found.append(("e", "s"))
    return found


def vocabulary() -> list[str]:
    """Return every token in order of its id, without the special ones.

    The alphabet keeps the order of bytes, so a byte's id is the byte.
    """
    tokens = byte_alphabet() + [left + right for left, right in merges()]
    assert len(tokens) == len(set(tokens)) == NUM_TEXT_TOKENS
    return tokens


def role_ids() -> list[int]:
    """Return the ids of "<|im_start|>assistant" and the newline after it."""
    tokens = vocabulary()
    start = len(tokens) + SPECIAL_TOKENS.index("<|im_start|>")
    return [start, tokens.index(ROLE), ord("\n")]


def write(folder: Path) -> None:
    """Write vocab.json, merges.txt and tokenizer_config.json."""
    tokens = vocabulary()
    ids = {token: idx for idx, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges()), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    added = {
        str(len(tokens) + i): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for i, token in enumerate(SPECIAL_TOKENS)
    }
    config: dict[str, Any] = {
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "errors": "replace",
        "model_max_length": 131072,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def load() -> Any:
    """Return the tokenizer as transformers loads what `write` wrote."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
