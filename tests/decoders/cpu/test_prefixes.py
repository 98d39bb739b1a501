"""The cache of prompts' beginnings: what it finds, stores, and forgets first."""

import random

import pytest
import torch

from qwen_megakernel.decoders.cpu.prefixes import PrefixCache, keys_of

KEPT = 6
BYTES = 4 * KEPT  # of a position


def rows(text):
    return torch.tensor([[float(ord(letter))] for letter in text]).reshape(-1, 1)


def kept(text, position):
    """Return keys and values that depend on all rows up to their position, as real ones do."""
    return torch.full((KEPT,), float(hash(text[: position + 1]) % 997))


def add(cache, text):
    """Add a prompt; return the positions that the cache has read."""
    read = []

    def reader(position):
        read.append(position)
        return kept(text, position)

    cache.add(rows(text), reader)
    return read


def known(cache, text):
    found = cache.find(rows(text))
    assert all(torch.equal(values, kept(text, i)) for i, values in enumerate(found))
    return text[: len(found)]


def test_a_beginning_is_shared_and_only_what_is_new_is_read():
    cache = PrefixCache(100 * BYTES, KEPT)
    assert known(cache, "ada speaks") == ""
    assert add(cache, "ada speaks") == list(range(10))
    assert known(cache, "ada sings") == "ada s"
    assert add(cache, "ada sings") == [5, 6, 7, 8]
    assert add(cache, "ada") == []
    assert len(cache._kept) == 14
    assert known(cache, "ada speaks up") == "ada speaks"
    assert known(cache, "bob") == ""


def test_the_oldest_texts_are_forgotten_before_what_they_share():
    cache = PrefixCache(20 * BYTES, KEPT)
    for text in ("voice: one", "voice: two", "voice: six", "voice: ten", "other"):
        add(cache, text)
    assert len(cache._kept) <= 20
    assert known(cache, "voice: one") == "voice: "
    assert known(cache, "voice: ten") == "voice: ten"
    assert known(cache, "other") == "other"


def test_a_prompt_longer_than_the_limit_is_kept_in_part():
    cache = PrefixCache(5 * BYTES, KEPT)
    assert add(cache, "a long prompt") == list(range(5))
    assert known(cache, "a long story") == "a lon"
    assert add(PrefixCache(0, KEPT), "anything") == []


@pytest.mark.parametrize("seed", range(5))
def test_what_is_found_is_always_right_and_never_too_large(seed):
    chance, cache = random.Random(seed), PrefixCache(40 * BYTES, KEPT)
    before: dict[bytes, bytes | None] = {}  # key of a position -> key of the one before it
    for _ in range(400):
        text = "".join(chance.choice("ab") for _ in range(chance.randint(1, 12)))
        known(cache, text)
        add(cache, text)
        assert known(cache, text) == text
        keys = list(keys_of(rows(text)))
        before |= dict(zip(keys, [None, *keys], strict=False))
        assert {before[key] for key in cache._kept} <= {None, *cache._kept}  # all can be found
        assert len(cache._kept) <= 40
