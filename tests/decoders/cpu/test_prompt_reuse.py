"""The native CPU decoder reuses the beginnings of prompts: the codes are the same."""

from dataclasses import replace

import torch
from native_decoding import MODES, assert_same, begin
from spies import results_of

from qwen_megakernel.decoders.cpu.prefixes import PrefixCache


def kept_by(decoder, monkeypatch):
    """Return a list, to which every further prompt appends what the cache has of its positions."""
    return results_of(monkeypatch, decoder._prefixes, "find")


def test_a_prompt_that_begins_as_another_has_its_keys(load_checkpoint, native, prompt, monkeypatch):
    checkpoint = load_checkpoint("tiny-random")
    decoder, fresh = native(checkpoint, 2), native(checkpoint)
    first = prompt(checkpoint, num_positions=40)
    second = replace(first, embeds=torch.cat([first.embeds[:33], first.embeds[:9] + 1]))
    begin(decoder, first)
    decoder.step([0], 3)
    begin(fresh, second, MODES["sampled"])
    want = fresh.step([0], 6)
    kept = kept_by(decoder, monkeypatch)
    for slot in (1, 0):
        begin(decoder, second, MODES["sampled"], slot)
        assert_same(decoder.step([slot], 6), want)
    assert list(map(len, kept)) == [33, 41]


def test_a_voices_beginning_outlives_other_voices_and_its_texts(
    load_checkpoint, native, prompt, monkeypatch
):
    checkpoint = load_checkpoint("tiny-random")
    decoder, fresh = native(checkpoint), native(checkpoint)
    heads = [prompt(checkpoint, seed=voice, num_positions=20).embeds for voice in (1, 2)]
    kept = kept_by(decoder, monkeypatch)
    for index in range(6):
        text = prompt(checkpoint, seed=10 + index, num_positions=9)
        spoken = replace(text, embeds=torch.cat([heads[index % 2], text.embeds]))
        for each in (decoder, fresh):
            begin(each, spoken)
        fresh._prefixes = PrefixCache(0, fresh._kept_floats)  # an empty cache
        assert_same(decoder.step([0], 4), fresh.step([0], 4))
    assert list(map(len, kept)) == [0, 0, 20, 20, 20, 20]


def test_a_prompt_that_is_written_over_is_still_known(load_checkpoint, native, prompt, monkeypatch):
    checkpoint = load_checkpoint("tiny-random")
    decoder = native(checkpoint)
    given = prompt(checkpoint)
    begin(decoder, given)
    kept = kept_by(decoder, monkeypatch)
    given.embeds[4:] += 1
    begin(decoder, given)
    assert list(map(len, kept)) == [4]
