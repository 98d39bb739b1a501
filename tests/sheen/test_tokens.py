"""Audio tokens in a Qwen2 tokenizer, and rows for them in a Qwen2 model."""

import logging.handlers

import numpy as np
import pytest
import torch
from fixtures import module_value
from hypothesis import given, settings
from hypothesis import strategies as st
from sheen_toys import CODEBOOK_SIZE as SIZE
from sheen_toys import EXAMPLE_LAYERS
from transformers.utils import logging as hf_logging

from qwen_megakernel.errors import ModelFilesError, TokenOrderError
from qwen_megakernel.sheen import codes, model_folder, tokens

EXAMPLE_TOKENS = [
    *("<snac_l1_100>", "<snac_l2_10>", "<snac_l2_11>"),
    *("<snac_l3_1>", "<snac_l3_2>", "<snac_l3_3>", "<snac_l3_4>"),
    *("<snac_l1_200>", "<snac_l2_20>", "<snac_l2_21>"),
    *("<snac_l3_5>", "<snac_l3_6>", "<snac_l3_7>", "<snac_l3_8>"),
]

base_tokenizer = module_value(lambda base_folder: model_folder.load_tokenizer(base_folder))


@pytest.fixture(scope="module")
def tokenizer(base_folder):
    made = model_folder.load_tokenizer(base_folder)
    tokens.add_audio_tokens(made, SIZE)
    return made


audio = module_value(lambda tokenizer: tokens.find_audio_tokens(tokenizer, SIZE))


def test_12290_tokens_are_added_behind_the_others(base_tokenizer, tokenizer, audio):
    before, after = base_tokenizer.get_vocab(), tokenizer.get_vocab()
    assert len(after) - len(before) == audio.num_tokens == 12288 + 2
    new = after.keys() - before.keys()
    assert {after[name] for name in new} == set(range(len(before), len(before) + 12290))
    assert all(after[name] == before[name] for name in before)


def test_adding_twice_adds_nothing(tokenizer, audio):
    assert tokens.add_audio_tokens(tokenizer, SIZE) == audio


def test_the_worked_example_has_the_published_names(tokenizer, audio):
    ids = audio.ids_of(codes.interleave(EXAMPLE_LAYERS))
    assert tokenizer.convert_ids_to_tokens(ids) == EXAMPLE_TOKENS
    assert tokenizer("".join(EXAMPLE_TOKENS), add_special_tokens=False)["input_ids"] == ids


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, SIZE - 1), min_size=7, max_size=7), max_size=20))
def test_frames_come_back_from_their_tokens(rows):
    audio = tokens.AudioTokens(first_id=1000, codebook_size=SIZE)
    frames = np.array(rows, dtype=np.int32).reshape(-1, 7)
    assert np.array_equal(audio.frames_of(audio.ids_of(frames)), frames)


def test_no_two_codes_share_a_token(audio):
    ids = [audio.first_of_place(place) + code for place in (0, 1, 3) for code in range(SIZE)]
    assert len({*ids, audio.start_id, audio.end_id}) == 12290


def test_a_token_out_of_its_place_is_named(audio):
    ids = audio.ids_of(codes.interleave(EXAMPLE_LAYERS))
    wrong = [*ids[:8], ids[0], *ids[9:]]
    with pytest.raises(
        TokenOrderError, match="<snac_l1_100> is at place 2 of a frame, where layer 2"
    ):
        audio.frames_of(wrong)
    with pytest.raises(TokenOrderError, match="<audio_end> is at place 1"):
        audio.frames_of([audio.end_id])
    with pytest.raises(TokenOrderError, match="text token 5 is at place 1"):
        audio.frames_of([5])
    with pytest.raises(TokenOrderError, match="13 audio tokens are no whole number"):
        audio.frames_of(ids[:13])


def test_a_saved_tokenizer_has_the_same_ids(tokenizer, audio, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = model_folder.load_tokenizer(tmp_path)
    assert tokens.find_audio_tokens(loaded, SIZE) == audio
    text = "həˈloʊ wɝld"
    assert tokens.text_ids(loaded, text) == tokens.text_ids(tokenizer, text)


@pytest.mark.parametrize("text", ["həˈloʊ wɝld", "say <audio_end>", "<snac_l1_5>"])
def test_text_is_text_whatever_it_spells(base_tokenizer, tokenizer, audio, text):
    ids = tokens.text_ids(tokenizer, text)
    assert max(ids) < audio.first_id
    assert ids == base_tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text


def test_a_tokenizer_without_all_of_them_is_refused(base_tokenizer, base_folder):
    with pytest.raises(ModelFilesError, match="lacks 12290 of 12290 audio tokens"):
        tokens.find_audio_tokens(base_tokenizer, SIZE)
    small = model_folder.load_tokenizer(base_folder)
    tokens.add_audio_tokens(small, 16)
    with pytest.raises(ModelFilesError, match="lacks 12240 of 12290"):
        tokens.find_audio_tokens(small, SIZE)


def test_a_tokenizer_with_them_in_another_order_is_refused(base_folder):
    shuffled = model_folder.load_tokenizer(base_folder)
    names = tokens.audio_token_names(4)
    shuffled.add_tokens([names[0], names[2], names[1], *names[3:]], special_tokens=True)
    with pytest.raises(ModelFilesError, match="<snac_l1_1> has id"):
        tokens.find_audio_tokens(shuffled, 4)


def test_embeddings_grow_to_the_tokenizer_and_keep_their_rows(base_folder, tokenizer, audio):
    model = model_folder.load_language_model(base_folder)
    before = model.get_input_embeddings().weight.detach().clone()
    tokens.resize_embeddings(model, tokenizer)
    after = model.get_input_embeddings().weight.detach()
    assert len(after) == len(tokenizer) == audio.end_id + 1
    assert torch.equal(after[: len(before)], before)
    assert model.lm_head.weight.shape == after.shape and model.config.vocab_size == len(after)
    tokens.resize_embeddings(model, tokenizer)
    assert model.get_input_embeddings().num_embeddings == len(after)


def test_an_embedding_grows_without_advice_to_programmers(base_folder, tokenizer, monkeypatch):
    records = logging.handlers.BufferingHandler(100)
    hf_logging.warning_once.cache_clear()
    monkeypatch.setattr(logging.getLogger("transformers"), "handlers", [records])
    tokens.resize_embeddings(model_folder.load_language_model(base_folder), tokenizer)
    assert not [record.getMessage() for record in records.buffer]


def test_rows_that_are_there_already_are_not_cut_off(base_folder):
    """Released models have more rows than tokens."""
    model = model_folder.load_language_model(base_folder)
    small = model_folder.load_tokenizer(base_folder)
    num_rows = model.get_input_embeddings().num_embeddings
    tokens.add_audio_tokens(small, 4)
    assert len(small) < num_rows
    tokens.resize_embeddings(model, small)
    assert model.get_input_embeddings().num_embeddings == num_rows
