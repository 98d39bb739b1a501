"""Every layout of a prompt's rows, compared with the official talker's input."""

import logging
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from prompt_toys import (
    FEEDS,
    INSTRUCT,
    LANGUAGES,
    SPEAKERS,
    TEXT,
    Toy,
    assert_same_prompt,
    clone,
    official_item,
)
from tolerances import PROMPT_F32

from qwen_megakernel.decoders.embeddings import Embeddings
from qwen_megakernel.decoders.prompt import PromptBuilder
from qwen_megakernel.engine.conversation import Said
from qwen_megakernel.errors import EmptyText
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.tokenizer import TextTokenizer

# ---- equality with the official prompts ------------------------------------------------------


EVERY_SPEAKER = list(product(SPEAKERS, ["auto", "chinese", "english"]))
EVERY_LANGUAGE = [("ryan", language) for language in LANGUAGES]


@pytest.mark.parametrize("text_feed", FEEDS)
@pytest.mark.parametrize(("speaker", "language"), [*EVERY_SPEAKER, *EVERY_LANGUAGE])
def test_custom_voice_prompt_is_the_official_one(custom_voice_toy, speaker, language, text_feed):
    request = {"voice": speaker, "language": language, "text_feed": text_feed}
    custom_voice_toy.assert_official("generate_custom_voice", **request)


@pytest.mark.parametrize("text_feed", FEEDS)
@pytest.mark.parametrize("instruct", [None, "", INSTRUCT])
@pytest.mark.parametrize("voice", [None, "ryan"])
def test_custom_voice_prompt_with_instruct(custom_voice_toy, voice, instruct, text_feed):
    request = {"voice": voice, "instruct": instruct, "text_feed": text_feed}
    theirs = {"speaker": voice}
    custom_voice_toy.assert_official(
        "generate_custom_voice", language="english", theirs=theirs, **request
    )


def test_small_custom_voice_drops_instruct_with_one_warning(make_toy, caplog):
    toy = make_toy("custom_voice", "0b6")
    request = {"voice": "ryan", "language": "auto", "instruct": INSTRUCT}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            toy.assert_official("generate_custom_voice", **request)
    [record] = caplog.records
    assert "instruct is ignored" in record.message


@pytest.mark.parametrize("text_feed", FEEDS)
@pytest.mark.parametrize("language", ["auto", "chinese", "korean"])
@pytest.mark.parametrize("instruct", ["", INSTRUCT])
def test_voice_design_prompt_is_the_official_one(voice_design_toy, instruct, language, text_feed):
    request = {"language": language, "instruct": instruct, "text_feed": text_feed}
    voice_design_toy.assert_official("generate_voice_design", **request)


# The text has 8 tokens and its end, the transcript 7: 16 rows beside 1 + num_frames codec rows.
@pytest.mark.parametrize("text_feed", FEEDS)
@pytest.mark.parametrize("language", ["auto", "chinese", "german"])
@pytest.mark.parametrize("num_frames", [0, 1, 9, 14, 15, 16, 40])
def test_cloned_voice_prompt_equals_the_official_one(base_toy, num_frames, language, text_feed):
    voice = clone(num_frames)
    request = {"voice": voice, "language": language, "text_feed": text_feed}
    theirs = {"voice_clone_prompt": [official_item(voice)]}
    base_toy.assert_official("generate_voice_clone", theirs=theirs, **request)


@pytest.mark.parametrize("text_feed", FEEDS)
@pytest.mark.parametrize("num_frames", [0, 9])
def test_a_prompt_that_continues_speech_equals_the_official_one_in_context(
    base_toy, num_frames, text_feed
):
    """The official one has the frames and words of the reference, and then of what was said."""
    voice, more = clone(num_frames), clone(12).codes
    said = Said(more, ((0, "It "), (5, "was.")))
    request = base_toy.builder.resolve(SpeechOptions(voice=voice, text_feed=text_feed))
    tokenizer = base_toy.tokenizer
    ids = said.in_context(tokenizer.encode(TEXT), voice, tokenizer.ids)
    codes = more if not num_frames else np.concatenate([voice.codes, more])
    words = f"{voice.transcript} It was." if num_frames else "It was."
    assert_same_prompt(
        base_toy.builder.build(ids, request),
        base_toy.official.generate_voice_clone,
        text=TEXT,
        language="auto",
        voice_clone_prompt=[official_item(replace(voice, codes=codes, transcript=words))],
        non_streaming_mode=FEEDS[text_feed],
    )


@pytest.mark.parametrize("as_stored", [False, True])
@pytest.mark.parametrize("text_feed", FEEDS)
@pytest.mark.parametrize("name", ["tiny-random", "tiny-random-1.7b"])
def test_prompt_from_files_equals_the_official_one(
    load_checkpoint, official_model, monkeypatch, name, text_feed, as_stored
):
    monkeypatch.setattr(
        "qwen_megakernel.decoders.embeddings.BLOCK_ROWS", 24
    )  # several, the last cut
    wrapper, loaded = official_model(name), load_checkpoint(name)
    monkeypatch.setattr(wrapper.model.talker, "generate", Toy._hand_over)
    text, language = "Hello, the iPhone and a naïve 中文 text.", "Chinese"
    embeddings = Embeddings(loaded, torch.device("cpu"), torch.float32, as_stored=as_stored)
    request = SpeechOptions(
        voice="Dylan", instruct=INSTRUCT, text_feed=text_feed, language=language
    )
    tokenizer = TextTokenizer(loaded.files.folder, loaded.config)
    ids = tokenizer.encode(text, instruct=INSTRUCT)
    prompts = PromptBuilder(loaded.config, embeddings)
    assert_same_prompt(
        prompts.build(ids, prompts.resolve(request)),
        wrapper.generate_custom_voice,
        speaker="Dylan",
        instruct=INSTRUCT if "1.7b" in name else None,
        non_streaming_mode=FEEDS[text_feed],
        text=text,
        language=language,
    )


@pytest.mark.parametrize("text_feed", FEEDS)
@pytest.mark.parametrize("language", ["auto", "english"])
def test_base_without_voice_equals_the_official_low_level_call(base_toy, language, text_feed):
    markup = f"<|im_start|>assistant\n{TEXT}<|im_end|>\n<|im_start|>assistant\n"
    assert_same_prompt(
        base_toy.build(language=language, text_feed=text_feed),
        base_toy.official.model.generate,
        input_ids=base_toy.official._tokenize_texts([markup]),
        languages=[language],
        non_streaming_mode=FEEDS[text_feed],
    )


@pytest.mark.parametrize(
    ("toy", "method", "options"),
    [
        ("custom_voice_toy", "generate_custom_voice", {"voice": "ryan"}),
        ("voice_design_toy", "generate_voice_design", {"instruct": INSTRUCT}),
    ],
)
def test_text_feed_auto_is_the_official_default(request, toy, method, options):
    request.getfixturevalue(toy).assert_official(method, language="auto", **options)


def test_text_feed_auto_is_stepwise_for_base(base_toy):
    prefill, stepwise = (
        base_toy.build(voice=clone(), text_feed=feed) for feed in ("auto", "stepwise")
    )
    assert torch.equal(prefill.embeds, stepwise.embeds)
    assert len(prefill.trailing_text) == len(TEXT)


# ---- open text ---------------------------------------------------------------------------------


@pytest.mark.parametrize("toy", ["base_toy", "custom_voice_toy", "voice_design_toy"])
@pytest.mark.parametrize("num_first", [1, 3])
def test_an_open_text_ends_up_as_the_whole_one(request, toy, num_first):
    toy = request.getfixturevalue(toy)
    whole = toy.build(text_feed="stepwise")
    ids = toy.tokenizer.encode(TEXT)
    begun = toy.builder.build(
        replace(ids, body=ids.body[:num_first]),
        toy.builder.resolve(SpeechOptions(text_feed="stepwise")),
        text_open=True,
    )
    late = toy.builder.text_rows(ids.body[num_first:])
    trailing = torch.cat([begun.trailing_text, late, toy.builder.end_rows()])
    torch.testing.assert_close(begun.embeds, whole.embeds, atol=PROMPT_F32, rtol=0)
    torch.testing.assert_close(trailing, whole.trailing_text, atol=PROMPT_F32, rtol=0)


def test_a_prompt_is_not_built_before_all_text_that_it_needs_is_there(base_toy, custom_voice_toy):
    for toy, options in (
        (base_toy, {"voice": clone(num_frames=5)}),
        (custom_voice_toy, {"text_feed": "full"}),
    ):
        toy.builder.resolve(SpeechOptions(**options))
        with pytest.raises(AssertionError, match="must be complete"):
            toy.build(**options, text_open=True)
    base_toy.builder.resolve(SpeechOptions(voice=clone()))


def test_a_prompt_needs_a_text_token(base_toy):
    ids = base_toy.tokenizer.encode(TEXT)
    with pytest.raises(EmptyText):
        base_toy.builder.build(replace(ids, body=ids.body[:0]), SpeechOptions())


# ---- constants -------------------------------------------------------------------------------


def test_a_second_request_computes_nothing_but_its_own_text(custom_voice_toy):
    custom_voice_toy.build(voice="ryan")
    before = dict(custom_voice_toy.embeddings.num_rows)
    for voice, language in (("eric", "auto"), ("serena", "french"), (None, "english")):
        custom_voice_toy.build(voice=voice, language=language)
    added = {key: n - before[key] for key, n in custom_voice_toy.embeddings.num_rows.items()}
    assert added == {"text": 3 * len(TEXT), "codec": 0, "frames": 0}
