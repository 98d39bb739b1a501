"""Every row layout against the official classes, captured where they hand over to the talker."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel

from qwen_megakernel import official
from qwen_megakernel.config import parse_model_config
from qwen_megakernel.embeddings import Embeddings
from qwen_megakernel.errors import (
    EmptyText,
    ModelFilesError,
    ReferenceError_,
    TaskError,
    UnknownLanguage,
    UnknownVoice,
    UsageError,
    VoiceMismatch,
)
from qwen_megakernel.prompt import PromptBuilder
from qwen_megakernel.text import TextTokenizer
from qwen_megakernel.utterance import SpeechRequest
from qwen_megakernel.voice import Voice

TEXT, TRANSCRIPT, INSTRUCT = "Hi, you!", "Was it?", "Speak slowly."
FEEDS = {"stepwise": False, "full": True}  # text_feed -> non_streaming_mode

LANGUAGES = ["english", "german", "spanish", "chinese", "japanese"]
LANGUAGES += ["french", "korean", "russian", "italian", "portuguese"]
DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
SPEAKERS = ["aiden", "sohee", "ono_anna", "eric", "dylan", "uncle_fu", "ryan", "vivian", "serena"]

HIDDEN_SIZE, NUM_CODE_GROUPS = 16, 3
CODEBOOK_SIZE, PREDICTOR_CODEBOOK_SIZE = 32, 40
STACK = {
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "num_code_groups": NUM_CODE_GROUPS,
}


def config_values(model_type: str, model_size: str = "1b7") -> dict:
    """A toy config.json; ids differ from the releases', so that none can be taken for granted."""
    names = ["pad", "bos", "eos", "think", "nothink", "think_bos", "think_eos"]
    names += LANGUAGES + list(DIALECTS.values()) + SPEAKERS
    ids = {name: CODEBOOK_SIZE + 1 + 3 * i for i, name in enumerate(names)}
    languages = LANGUAGES + list(DIALECTS.values()) * (model_type == "custom_voice")
    speakers = SPEAKERS * (model_type == "custom_voice")
    return {
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": model_size,
        "tts_model_type": model_type,
        "im_start_token_id": 265,
        "im_end_token_id": 266,
        "tts_pad_token_id": 267,
        "tts_bos_token_id": 268,
        "tts_eos_token_id": 269,
        "speaker_encoder_config": {
            "enc_dim": HIDDEN_SIZE,
            "sample_rate": 24000,
            "enc_channels": [16, 16, 16, 16, 48],
            "enc_attention_channels": 8,
            "enc_se_channels": 8,
        },
        "talker_config": STACK
        | {
            "vocab_size": CODEBOOK_SIZE + 1024,
            "text_vocab_size": 270,
            "text_hidden_size": 24,
            "codec_eos_token_id": ids["eos"],
            **{f"codec_{name}_id": ids[name] for name in names[:7] if name != "eos"},
            "spk_id": {name: ids[name] for name in speakers},
            "spk_is_dialect": {name: DIALECTS.get(name, False) for name in speakers},
            "codec_language_id": {name: ids[name] for name in languages},
            "code_predictor_config": STACK | {"vocab_size": PREDICTOR_CODEBOOK_SIZE},
        },
    }


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory, official_package):
    """Byte tokens, those that make up "assistant", and chat markup."""
    folder = tmp_path_factory.mktemp("bytes")
    vocab = {symbol: i for i, symbol in enumerate(sorted(ByteLevel.alphabet()))}
    merges = []
    for end in range(1, len("assistant")):
        merges.append(f"{'assistant'[:end]} {'assistant'[end]}")
        vocab["assistant"[: end + 1]] = len(vocab)
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("\n".join(merges))
    special = {264: "<|endoftext|>", 265: "<|im_start|>", 266: "<|im_end|>"}
    decoder = {str(i): {"content": token, "special": True} for i, token in special.items()}
    tokenizer_config = {"added_tokens_decoder": decoder, "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return folder


class Handover(Exception):
    """Carries what the official code was about to decode."""


class OfficialEmbeddings:
    """`prompt.Embeddings` on the official modules; counts the rows it was asked for."""

    def __init__(self, talker):
        self.talker = talker
        self.num_rows = {"text": 0, "codec": 0, "frames": 0}

    @torch.no_grad()
    def text(self, ids):
        self.num_rows["text"] += len(ids)
        return self.talker.text_projection(self.talker.get_text_embeddings()(ids))

    @torch.no_grad()
    def codec(self, ids):
        self.num_rows["codec"] += len(ids)
        return self.talker.get_input_embeddings()(ids)

    @torch.no_grad()
    def frames(self, codes):
        self.num_rows["frames"] += len(codes)
        rows = [self.talker.get_input_embeddings()(codes[:, 0])]
        tables = self.talker.code_predictor.get_input_embeddings()
        rows += [table(codes[:, i + 1]) for i, table in enumerate(tables)]
        return torch.stack(rows, 1).sum(1)


class Toy:
    """The official wrapper and our builder on the same random weights."""

    def __init__(self, folder, model_type: str, model_size: str = "1b7"):
        qwen_tts = official.package()
        models = qwen_tts.core.models
        from transformers import Qwen2TokenizerFast

        values = config_values(model_type, model_size)
        torch.manual_seed(0)
        model = models.Qwen3TTSForConditionalGeneration(models.Qwen3TTSConfig(**values)).eval()
        with torch.no_grad():
            for parameter in model.talker.parameters():
                parameter.normal_(std=0.3)
        model.talker.generate = self._hand_over
        processor = models.Qwen3TTSProcessor(Qwen2TokenizerFast.from_pretrained(folder))
        self.official = qwen_tts.Qwen3TTSModel(model, processor, {})
        self.prompt_item = qwen_tts.VoiceClonePromptItem
        self.config = parse_model_config(values)
        self.tokenizer = TextTokenizer(folder, self.config)
        self.embeddings = OfficialEmbeddings(model.talker)
        self.builder = PromptBuilder(self.config, self.embeddings)

    @staticmethod
    def _hand_over(**inputs):
        raise Handover(inputs)

    def build(self, text_open: bool = False, **request):
        """Our prompt; `request` as for `SpeechRequest`."""
        request = SpeechRequest(text=TEXT, **request)
        voice = request.voice
        transcript = voice.transcript if isinstance(voice, Voice) else None
        ids = self.tokenizer.encode(TEXT, instruct=request.instruct, transcript=transcript)
        return self.builder.build(ids, request, text_open=text_open)


def handed_over(call, *args, **kwargs) -> dict:
    """What the official code hands to the talker: inputs_embeds, trailing_text_hidden, ..."""
    with pytest.raises(Handover) as caught:
        call(*args, **kwargs)
    return caught.value.args[0]


def assert_same_prompt(prefill, inputs: dict) -> None:
    close = {"atol": 1e-6, "rtol": 0}
    assert inputs["attention_mask"].all()
    torch.testing.assert_close(prefill.embeds, inputs["inputs_embeds"][0], **close)
    torch.testing.assert_close(prefill.pad_embed, inputs["tts_pad_embed"][0, 0], **close)
    trailing = prefill.trailing_text
    if not len(trailing):  # the official form of "nothing trails" is one pad
        trailing = prefill.pad_embed[None]
    torch.testing.assert_close(trailing, inputs["trailing_text_hidden"][0], **close)


@pytest.fixture(scope="module")
def base(tokenizer_folder) -> Toy:
    return Toy(tokenizer_folder, "base", "0b6")


@pytest.fixture(scope="module")
def custom_voice(tokenizer_folder) -> Toy:
    return Toy(tokenizer_folder, "custom_voice")


@pytest.fixture(scope="module")
def voice_design(tokenizer_folder) -> Toy:
    return Toy(tokenizer_folder, "voice_design")


@pytest.fixture
def small_custom_voice(tokenizer_folder) -> Toy:
    return Toy(tokenizer_folder, "custom_voice", "0b6")


def clone(num_frames: int = 0, **changes) -> Voice:
    """A random cloned voice, in context if it has frames."""
    rng = np.random.default_rng(7)
    voice = Voice("mario", rng.standard_normal(HIDDEN_SIZE).astype(np.float32))
    if num_frames:
        codes = rng.integers(0, CODEBOOK_SIZE, (num_frames, NUM_CODE_GROUPS))
        voice = replace(voice, codes=codes, transcript=TRANSCRIPT)
    return replace(voice, **changes)


# ---- equality with the official prompts ------------------------------------------------------


EVERY_SPEAKER = [
    (name, language) for name in SPEAKERS for language in ("auto", "chinese", "english")
]
EVERY_LANGUAGE = [("ryan", language) for language in LANGUAGES]


@pytest.mark.parametrize("text_feed", FEEDS)
@pytest.mark.parametrize(("speaker", "language"), [*EVERY_SPEAKER, *EVERY_LANGUAGE])
def test_custom_voice_prompt_equals_the_official_one(custom_voice, speaker, language, text_feed):
    inputs = handed_over(
        custom_voice.official.generate_custom_voice,
        text=TEXT,
        speaker=speaker,
        language=language,
        non_streaming_mode=FEEDS[text_feed],
    )
    prefill = custom_voice.build(voice=speaker, language=language, text_feed=text_feed)
    assert_same_prompt(prefill, inputs)


@pytest.mark.parametrize("text_feed", FEEDS)
@pytest.mark.parametrize("instruct", [None, "", INSTRUCT])
@pytest.mark.parametrize("voice", [None, "ryan"])
def test_custom_voice_prompt_with_instruct(custom_voice, voice, instruct, text_feed):
    inputs = handed_over(
        custom_voice.official.generate_custom_voice,
        text=TEXT,
        speaker=voice,
        language="english",
        instruct=instruct,
        non_streaming_mode=FEEDS[text_feed],
    )
    prefill = custom_voice.build(
        voice=voice, language="english", instruct=instruct, text_feed=text_feed
    )
    assert_same_prompt(prefill, inputs)


def test_small_custom_voice_drops_instruct_with_one_warning(small_custom_voice, caplog):
    inputs = handed_over(
        small_custom_voice.official.generate_custom_voice,
        text=TEXT,
        speaker="ryan",
        language="auto",
        instruct=INSTRUCT,
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert_same_prompt(small_custom_voice.build(voice="ryan", instruct=INSTRUCT), inputs)
    [record] = caplog.records
    assert "instruct is ignored" in record.message


@pytest.mark.parametrize("text_feed", FEEDS)
@pytest.mark.parametrize("language", ["auto", "chinese", "korean"])
@pytest.mark.parametrize("instruct", ["", INSTRUCT])
def test_voice_design_prompt_equals_the_official_one(voice_design, instruct, language, text_feed):
    inputs = handed_over(
        voice_design.official.generate_voice_design,
        text=TEXT,
        instruct=instruct,
        language=language,
        non_streaming_mode=FEEDS[text_feed],
    )
    prefill = voice_design.build(language=language, instruct=instruct, text_feed=text_feed)
    assert_same_prompt(prefill, inputs)


# The text has 8 tokens and its end, the transcript 7: 16 rows beside 1 + num_frames codec rows.
@pytest.mark.parametrize("text_feed", FEEDS)
@pytest.mark.parametrize("language", ["auto", "chinese", "german"])
@pytest.mark.parametrize("num_frames", [0, 1, 9, 14, 15, 16, 40])
def test_cloned_voice_prompt_equals_the_official_one(base, num_frames, language, text_feed):
    voice = clone(num_frames)
    item = base.prompt_item(
        ref_code=torch.tensor(voice.codes) if num_frames else None,
        ref_spk_embedding=torch.tensor(voice.x_vector),
        x_vector_only_mode=not num_frames,
        icl_mode=bool(num_frames),
        ref_text=voice.transcript,
    )
    inputs = handed_over(
        base.official.generate_voice_clone,
        text=TEXT,
        language=language,
        voice_clone_prompt=[item],
        non_streaming_mode=FEEDS[text_feed],
    )
    assert_same_prompt(base.build(voice=voice, language=language, text_feed=text_feed), inputs)


@pytest.mark.parametrize("text_feed", FEEDS)
@pytest.mark.parametrize("name", ["tiny-random", "tiny-random-1.7b"])
def test_prompt_from_files_equals_the_official_one(
    load_checkpoint, official_model, monkeypatch, name, text_feed
):
    wrapper, loaded = official_model(name), load_checkpoint(name)
    monkeypatch.setattr(wrapper.model.talker, "generate", Toy._hand_over)
    text = "Hello, the iPhone and a naïve 中文 text."
    inputs = handed_over(
        wrapper.generate_custom_voice,
        text=text,
        speaker="Dylan",
        language="Chinese",
        instruct=INSTRUCT if "1.7b" in name else None,
        non_streaming_mode=FEEDS[text_feed],
    )
    embeddings = Embeddings(loaded, torch.device("cpu"), torch.float32)
    request = SpeechRequest(
        text=text, voice="Dylan", language="Chinese", instruct=INSTRUCT, text_feed=text_feed
    )
    ids = TextTokenizer(loaded.files.folder, loaded.config).encode(text, instruct=INSTRUCT)
    assert_same_prompt(PromptBuilder(loaded.config, embeddings).build(ids, request), inputs)


@pytest.mark.parametrize("text_feed", FEEDS)
@pytest.mark.parametrize("language", ["auto", "english"])
def test_base_without_voice_equals_the_official_low_level_call(base, language, text_feed):
    markup = f"<|im_start|>assistant\n{TEXT}<|im_end|>\n<|im_start|>assistant\n"
    inputs = handed_over(
        base.official.model.generate,
        input_ids=base.official._tokenize_texts([markup]),
        languages=[language],
        non_streaming_mode=FEEDS[text_feed],
    )
    assert_same_prompt(base.build(language=language, text_feed=text_feed), inputs)


@pytest.mark.parametrize(
    ("toy", "call", "options"),
    [
        ("custom_voice", "generate_custom_voice", {"speaker": "ryan"}),
        ("voice_design", "generate_voice_design", {"instruct": INSTRUCT}),
    ],
)
def test_text_feed_auto_is_the_official_default(request, toy, call, options):
    toy = request.getfixturevalue(toy)
    inputs = handed_over(getattr(toy.official, call), text=TEXT, language="auto", **options)
    voice = options.pop("speaker", None)
    assert_same_prompt(toy.build(voice=voice, **options), inputs)


def test_text_feed_auto_is_stepwise_for_base(base):
    prefill, stepwise = (base.build(voice=clone(), text_feed=feed) for feed in ("auto", "stepwise"))
    assert torch.equal(prefill.embeds, stepwise.embeds)
    assert len(prefill.trailing_text) == len(TEXT)


# ---- open text ---------------------------------------------------------------------------------


@pytest.mark.parametrize("toy", ["base", "custom_voice", "voice_design"])
@pytest.mark.parametrize("num_first", [1, 3])
def test_an_open_text_ends_up_as_the_whole_one(request, toy, num_first):
    toy = request.getfixturevalue(toy)
    whole = toy.build(text_feed="stepwise")
    ids = toy.tokenizer.encode(TEXT)
    begun = toy.builder.build(
        replace(ids, body=ids.body[:num_first]), SpeechRequest(text=None), text_open=True
    )
    late = toy.builder.text_rows(ids.body[num_first:])
    trailing = torch.cat([begun.trailing_text, late, toy.builder.end_rows()])
    torch.testing.assert_close(begun.embeds, whole.embeds, atol=1e-6, rtol=0)
    torch.testing.assert_close(trailing, whole.trailing_text, atol=1e-6, rtol=0)


def test_open_text_is_refused_where_all_of_it_is_needed(base, custom_voice):
    with pytest.raises(TaskError, match="in context"):
        base.builder.check(SpeechRequest(text=None, voice=clone(num_frames=5)))
    with pytest.raises(TaskError, match="in context"):
        base.build(voice=clone(num_frames=5), text_open=True)
    with pytest.raises(UsageError, match="text is open"):
        custom_voice.builder.check(SpeechRequest(text=None, text_feed="full"))
    base.builder.check(SpeechRequest(text=None, voice=clone()))


def test_a_prompt_needs_a_text_token(base):
    ids = base.tokenizer.encode(TEXT)
    with pytest.raises(EmptyText):
        base.builder.build(replace(ids, body=ids.body[:0]), SpeechRequest(text=None))


# ---- constants -------------------------------------------------------------------------------


def test_a_second_request_computes_nothing_but_its_own_text(custom_voice):
    custom_voice.build(voice="ryan")
    before = dict(custom_voice.embeddings.num_rows)
    for voice, language in (("eric", "auto"), ("serena", "french"), (None, "english")):
        custom_voice.build(voice=voice, language=language)
    added = {key: n - before[key] for key, n in custom_voice.embeddings.num_rows.items()}
    assert added == {"text": 3 * len(TEXT), "codec": 0, "frames": 0}


# ---- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("voice", ["Ryan", "RYAN", Voice("ryan")])
@pytest.mark.parametrize("language", ["English", "en", "EN", "en-US", "en_GB", " english "])
def test_names_are_found_in_any_spelling(custom_voice, voice, language):
    expected = custom_voice.build(voice="ryan", language="english")
    assert torch.equal(custom_voice.build(voice=voice, language=language).embeds, expected.embeds)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("zh-CN", "chinese"),
        ("cmn-Hans-CN", "chinese"),
        ("ja", "japanese"),
        ("ko-KR", "korean"),
        ("de", "german"),
        ("fr-CA", "french"),
        ("ru", "russian"),
        ("pt-BR", "portuguese"),
        ("es-419", "spanish"),
        ("it", "italian"),
        ("Auto", "auto"),
        (None, "auto"),
    ],
)
def test_language_codes_are_found(voice_design, code, name):
    expected = voice_design.build(language=name).embeds
    assert torch.equal(voice_design.build(language=code).embeds, expected)


def test_languages_are_listed_without_dialects(custom_voice):
    model = custom_voice.official.model
    assert custom_voice.builder.languages == ["auto", *sorted(LANGUAGES)]
    assert set(custom_voice.builder.languages) == set(model.get_supported_languages())


def test_an_unknown_language_is_refused_with_a_suggestion(custom_voice):
    with pytest.raises(UnknownLanguage) as caught:
        custom_voice.builder.check(SpeechRequest(text=TEXT, language="Englich"))
    assert caught.value.what.startswith('Unknown language "Englich". Known: auto, chinese (zh), ')
    assert caught.value.cure == 'Did you mean "english"?'
    for unknown in ("Klingon", "nl-NL", "", "e"):
        with pytest.raises(UnknownLanguage, match="Known: auto"):
            custom_voice.builder.check(SpeechRequest(text=TEXT, language=unknown))


def test_a_code_of_a_language_the_checkpoint_lacks_is_refused(custom_voice):
    talker = custom_voice.config.talker
    config = replace(custom_voice.config, talker=replace(talker, languages={"english": 2}))
    config = replace(config, talker=replace(config.talker, dialects={}))
    builder = PromptBuilder(config, custom_voice.embeddings)
    with pytest.raises(UnknownLanguage, match=r"Known: auto, english \(en\)\."):
        builder.check(SpeechRequest(text=TEXT, language="zh"))


@pytest.mark.parametrize("dialect", DIALECTS.values())
def test_a_dialect_is_no_language(custom_voice, dialect):
    with pytest.raises(UnknownLanguage, match="comes with its speaker"):
        custom_voice.builder.check(SpeechRequest(text=TEXT, language=dialect))


def test_an_unknown_voice_is_refused_with_the_list(custom_voice, base, voice_design):
    with pytest.raises(
        UnknownVoice, match=r'voice "alloy".*aiden, dylan, eric, ono_anna, .*vivian'
    ):
        custom_voice.builder.check(SpeechRequest(text=TEXT, voice="alloy"))
    for toy in (base, voice_design):
        with pytest.raises(UnknownVoice, match=r"This model has: \(none\)"):
            toy.builder.check(SpeechRequest(text=TEXT, voice="ryan"))


# ---- tasks -------------------------------------------------------------------------------------


def test_only_base_clones(custom_voice, voice_design):
    for toy in (custom_voice, voice_design):
        with pytest.raises(TaskError, match="cannot clone voice 'mario'"):
            toy.builder.check(SpeechRequest(text=TEXT, voice=clone()))


def test_base_takes_no_instruct(base):
    with pytest.raises(TaskError, match="no instruct"):
        base.builder.check(SpeechRequest(text=TEXT, instruct=INSTRUCT))
    base.builder.check(SpeechRequest(text=TEXT, instruct=" "))


def test_base_without_voice_warns_once(tokenizer_folder, caplog):
    toy = Toy(tokenizer_folder, "base")
    with caplog.at_level(logging.WARNING):
        toy.build(voice=clone())
        assert not caplog.records
        for _ in range(2):
            toy.build()
    [record] = caplog.records
    assert "No voice given" in record.message


def test_a_voice_of_another_width_is_refused(base):
    voice = clone(x_vector=np.zeros(2 * HIDDEN_SIZE, np.float32))
    with pytest.raises(
        VoiceMismatch, match=r"'mario' is 32-dim; the loaded model \(0b6\) is 16-dim"
    ):
        base.builder.check(SpeechRequest(text=TEXT, voice=voice))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_vector": None}, "no x-vector"),
        ({"x_vector": np.full(HIDDEN_SIZE, np.nan, np.float32)}, "NaN"),
        ({"codes": np.zeros((4, NUM_CODE_GROUPS + 1), int)}, "4 groups; this model has 3"),
        ({"codes": np.zeros((4, NUM_CODE_GROUPS))}, "float64; need integers"),
        ({"codes": np.array([[31, 39, 0], [0, 0, 40]])}, "code 40 in frame 1, group 2; .* 0 .. 39"),
        ({"codes": np.array([[-1, 0, 0]])}, "code -1 in frame 0, group 0"),
        ({"codes": np.array([[32, 0, 0]])}, "code 32 in frame 0, group 0; .* 0 .. 31"),
    ],
)
def test_a_damaged_voice_is_refused(base, changes, message):
    with pytest.raises(ReferenceError_, match=message):
        base.builder.check(SpeechRequest(text=TEXT, voice=clone(4, **changes)))


def test_a_dialect_without_id_is_refused_at_load(custom_voice):
    talker = replace(custom_voice.config.talker, dialects={"eric": "wu_dialect"})
    with pytest.raises(ModelFilesError, match="wu_dialect"):
        PromptBuilder(replace(custom_voice.config, talker=talker), custom_voice.embeddings)
