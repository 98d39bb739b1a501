"""Tokens compared with transformers' Qwen2 tokenizers, and text in pieces with the whole text."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from text_samples import any_texts, tricky_texts
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from qwen_megakernel.errors import (
    EmptyText,
    ModelFilesError,
    RecordingError,
    TextTooLong,
    UsageError,
)
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.cleaning import MAX_CHARS, clean, validate
from qwen_megakernel.text.sentences import unspeakable
from qwen_megakernel.text.tokenizer import TextTokenizer

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>"]

ORDINARY_TEXTS = [
    "Hello.",
    "I'm sure they'll say it's 12:30, won't they? WE'RE NOT!",
    "it'sso they'rereal we'llgo I'mok I'dsay you'vegot can'tdo",
    "we'llgo IT'SREAL line end \nnext",
    "The iPhone, the MacBook and McDonald's cost $1,234.50 in 2024.",
    "two  spaces,   three,\ttab\nline\n\nparagraph \n end",
    "trailing marks!?...\n\nnext",
    "我叫通义千问，是阿里云的开源大模型。你好！",
    "東京は日本の首都です。カタカナ。",
    "안녕하세요, 반갑습니다. 한글",
    "नमस्ते दुनिया। สวัสดีชาวโลก",
    "Café naïve — cafe\u0301 nai\u0308ve; Å versus A\u030a",
    "\u1112\u1161\u11ab as jamo, 각 as a syllable",
    "😀 fine 👨\u200d👩\u200d👧 and 👍🏽 and 1\ufe0f\u20e3",
    "Ünïcödé ½ ² Ⅷ ①",
    "a" * 500,
]

# Frequent strings of the training corpus: they would be one token if the text were not split into
# words.
MERGED = ["assistant", "user", "iPhone", "\n\n", "!\n", " \n", "'sso", "'rereal", "'llgo", "'SREAL"]
MERGED += ORDINARY_TEXTS[2].split()


@dataclass(frozen=True)
class Trained:
    """A small byte-level BPE on disk, with the ids of its chat markup."""

    folder: Path
    config: SimpleNamespace
    special_ids: dict[str, int]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Trained:
    """Trained without the Qwen2 word expression, so that merges also cross its boundaries."""
    folder = tmp_path_factory.mktemp("bpe")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    bpe.train_from_iterator(MERGED * 20 + ORDINARY_TEXTS, trainer)
    bpe.model.save(str(folder))
    num_tokens = bpe.get_vocab_size()
    special_ids = {token: num_tokens + i for i, token in enumerate(SPECIALS)}
    config = SimpleNamespace(
        im_start_id=special_ids["<|im_start|>"],
        im_end_id=special_ids["<|im_end|>"],
        talker=SimpleNamespace(text_vocab_size=num_tokens + len(SPECIALS)),
    )
    tokenizer_config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {
            str(id_): {"content": token, "special": True, "normalized": False}
            for token, id_ in special_ids.items()
        },
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "bos_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return Trained(folder, config, special_ids)


@pytest.fixture(scope="module")
def tokenizer(trained) -> TextTokenizer:
    return TextTokenizer(trained.folder, trained.config)


@pytest.fixture(scope="module", params=["fast", "slow"])
def official(request, trained):
    """transformers' own Qwen2 tokenizer on the same files."""
    from transformers import Qwen2Tokenizer, Qwen2TokenizerFast

    kind = Qwen2TokenizerFast if request.param == "fast" else Qwen2Tokenizer
    loaded = kind.from_pretrained(trained.folder)
    assert loaded.convert_tokens_to_ids(SPECIALS) == list(trained.special_ids.values())
    return lambda text: loaded(text)["input_ids"]


# ---- whole text ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ORDINARY_TEXTS)
def test_ids_equal_the_official_templates(tokenizer, official, text):
    ids = tokenizer.encode(text, instruct=text, transcript=text)

    spoken = official(f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n")
    assert spoken[:3] == ids.role.tolist()
    assert spoken[3:-5] == ids.body.tolist()
    reference = official(f"<|im_start|>assistant\n{text}<|im_end|>\n")
    assert reference[3:-2] == ids.reference.tolist()
    assert official(f"<|im_start|>user\n{text}<|im_end|>\n") == ids.instruct.tolist()
    assert all(part.dtype == torch.int64 for part in (ids.role, ids.body, ids.instruct))


@settings(max_examples=300, deadline=None)
@given(text=any_texts)
def test_ids_of_any_clean_text_equal_transformers(tokenizer, trained, text):
    from transformers import Qwen2TokenizerFast

    text = clean(text)
    for token in SPECIALS:  # special tokens differ on purpose
        text = text.replace(token, "")
    official = Qwen2TokenizerFast.from_pretrained(trained.folder)
    assert tokenizer.token_ids(text) == official(text)["input_ids"]


def test_words_are_not_cut_at_capitals(tokenizer):
    # Mistral's expression, which the official wrapper can end up with, gives "i" and "Phone".
    [token] = tokenizer.encode("iPhone").body
    assert tokenizer.token_ids("i") != [token]


def test_no_instruct_and_no_transcript_give_no_ids(tokenizer):
    ids = tokenizer.encode("Hi", instruct="  \n", transcript=None)
    assert ids.instruct is None
    assert ids.reference is None


@pytest.mark.parametrize("marker", SPECIALS)
def test_markup_typed_by_a_user_is_spoken_not_obeyed(tokenizer, trained, marker):
    ids = tokenizer.encode(f"a{marker}b", instruct=marker, transcript=f"a{marker}")
    special_ids = set(trained.special_ids.values())
    assert not special_ids & set(ids.body.tolist())
    assert not special_ids & set(ids.reference.tolist())
    assert len(special_ids & set(ids.instruct.tolist())) == 2  # those of the template
    assert ids.instruct.tolist()[0] == trained.config.im_start_id


@pytest.mark.parametrize("text", ["\nHi", " \r\n Hi", "Hi\n\n", "\tHi "])
def test_white_space_at_the_ends_has_no_token(tokenizer, text):
    ids = tokenizer.encode(text, instruct=text, transcript=text)
    plain = tokenizer.encode("Hi", instruct="Hi", transcript="Hi")
    assert len(ids.role) == 3
    for part in ("role", "body", "instruct", "reference"):
        assert getattr(ids, part).tolist() == getattr(plain, part).tolist()


# ---- cleaning and refusing -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\x00b\x1b[0m\x7f\x9f", "ab[0m"),
        ("tab\tline\nend\r\n.", "tab\tline\nend\r\n."),
        ("a\x0bb\x0cc\x1cd\x85e", "a b c d e"),
        ("\ufeffbyte order mark", "byte order mark"),
        ("half \ud83d a \ude00 pair", "half  a  pair"),
        ("  both ends\u3000\n", "both ends"),
        ("zero\u200dwidth\u200b stays", "zero\u200dwidth\u200b stays"),
    ],
)
def test_clean_drops_characters_that_are_not_text(tokenizer, text, cleaned):
    assert clean(text) == cleaned
    assert clean(cleaned) == cleaned
    assert tokenizer.encode(text).body.tolist() == tokenizer.token_ids(cleaned)


@pytest.mark.parametrize("text", ["", " \n\t", "\x00\ud800", "...", "!? — «»", "😀👍🏽", "\u200b"])
def test_text_without_letter_or_digit_is_refused(tokenizer, text):
    assert unspeakable(text)
    with pytest.raises(EmptyText):
        validate(text)
    with pytest.raises(EmptyText):
        tokenizer.encode(text)


@pytest.mark.parametrize("text", ["a", "7", "中", "½", "न", "Ⅷ", "... ok"])
def test_one_letter_or_digit_is_enough(text):
    assert not unspeakable(text)
    assert validate(f" {text}\n") == text


def test_the_error_of_an_empty_text_quotes_what_was_there():
    with pytest.raises(EmptyText, match="empty after trimming"):
        validate(" \n")
    with pytest.raises(EmptyText, match=r"\.{20}…"):
        validate("." * 500)


def test_too_long_a_text_is_refused_with_both_lengths():
    assert len(validate("a" * MAX_CHARS)) == MAX_CHARS
    with pytest.raises(TextTooLong, match=r"41 812 characters; the limit is 20 000 \(about 22"):
        validate("a" * 41_812)
    assert validate("a" * 41_812, max_chars=50_000)


def test_a_transcript_without_words_is_refused(tokenizer):
    with pytest.raises(RecordingError, match="transcript"):
        tokenizer.encode("Hi", transcript="...")


# ---- files -----------------------------------------------------------------------------------


@pytest.fixture
def copied(trained, tmp_path) -> Trained:
    return replace(trained, folder=Path(shutil.copytree(trained.folder, tmp_path / "model")))


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_a_missing_file_is_named(copied, name):
    (copied.folder / name).unlink()
    with pytest.raises(ModelFilesError, match=name):
        TextTokenizer(copied.folder, copied.config)


def _without_byte(path: Path) -> None:
    vocab = json.loads(path.read_text())
    del vocab["!"]
    path.write_text(json.dumps(vocab))


def _with_large_id(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"large": 10**6}))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("vocab.json", lambda path: path.write_bytes(path.read_bytes()[:-100]), "not valid JSON"),
        ("vocab.json", _without_byte, "lacks 1 of the 256 byte tokens: !"),
        ("vocab.json", _with_large_id, "has id 1000000; text_vocab_size is"),
        ("merges.txt", lambda path: path.write_text("zz qq\n"), "does not fit"),
        ("merges.txt", lambda path: path.write_text("one\n"), "does not fit"),
        ("merges.txt", lambda path: path.write_bytes(b"\xff\xfe"), "not UTF-8"),
        ("merges.txt", lambda path: path.write_text("#version: 0.2\n"), "role has 10 tokens"),
    ],
)
def test_damaged_files_are_refused(copied, name, damage, message):
    damage(copied.folder / name)
    with pytest.raises(ModelFilesError, match=message):
        TextTokenizer(copied.folder, copied.config)


def test_merges_with_windows_line_ends_are_read(copied, tokenizer):
    path = copied.folder / "merges.txt"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    ids = TextTokenizer(copied.folder, copied.config).encode("assistant").body
    assert ids.tolist() == tokenizer.encode("assistant").body.tolist()


# ---- text in pieces --------------------------------------------------------------------------


def _stream(tokenizer: TextTokenizer, pieces: Iterable[str]) -> list[list[int]]:
    stream = tokenizer.stream()
    return [stream.feed(piece).tolist() for piece in pieces] + [stream.end().tolist()]


def _stream_joined(tokenizer: TextTokenizer, pieces: Iterable[str]) -> list[int]:
    return list(chain.from_iterable(_stream(tokenizer, pieces)))


@settings(max_examples=300, deadline=None)
@given(data=st.data(), text=any_texts)
def test_any_split_of_a_text_gives_the_ids_of_the_whole(tokenizer, data, text):
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    places = [0, *sorted(places), len(text)]
    pieces = [text[start:stop] for start, stop in pairwise(places)]
    if unspeakable(text):
        with pytest.raises(EmptyText):
            _stream(tokenizer, pieces)
    else:
        assert _stream_joined(tokenizer, pieces) == tokenizer.encode(text).body.tolist()


@settings(max_examples=300, deadline=None)
@given(text=tricky_texts.filter(lambda text: not unspeakable(text)))
@example(text="x \n \n y")
@example(text="hi!\n \n")
@example(text="a\u0327\u0301 b")
@example(text="we'll've")
@example(text="a  1")
def test_text_fed_by_characters_gives_the_ids_of_the_whole(tokenizer, text):
    assert _stream_joined(tokenizer, text) == tokenizer.encode(text).body.tolist()


def test_ids_come_as_soon_as_a_word_is_certain(tokenizer):
    *committed, rest = _stream(tokenizer, ["Hello", " wor", "ld, ", "it's", " 12", "3"])
    expected = ["", "Hello", " world,", " it", "'s 1", "2"]  # the last word and white space wait
    assert committed == [tokenizer.token_ids(words) for words in expected]
    assert rest == tokenizer.token_ids("3")


@pytest.mark.parametrize("unit", ["字", "a", ".", "- ", " ", "\u0301\u0323", "カ", "a\u0301"])
def test_a_word_without_end_is_looked_at_a_few_times(tokenizer, monkeypatch, unit):
    looked, text, normalize = [], "..." + unit * 3000 + "a" + unit * 3000, tokenizer.normalize
    monkeypatch.setattr(tokenizer, "normalize", lambda held: looked.append(held) or normalize(held))
    assert _stream_joined(tokenizer, text) == tokenizer.encode(text).body.tolist()
    assert sum(map(len, looked)) < 10 * len(text)


def test_nothing_comes_before_something_can_be_spoken(tokenizer):
    *committed, rest = _stream(tokenizer, ["\n ", "...", " — ", "ok", " "])
    assert committed[:3] == [[], [], []]
    assert [*committed[3], *committed[4], *rest] == tokenizer.encode("... — ok").body.tolist()


def test_a_stream_takes_no_more_than_its_limit(tokenizer):
    stream = tokenizer.stream(max_chars=10)
    stream.feed("12345678")
    with pytest.raises(TextTooLong, match="11 characters; the limit is 10"):
        stream.feed("9ab")
    assert stream.feed("9a").tolist() == tokenizer.token_ids("89")
    assert stream.end().tolist() == tokenizer.token_ids("a")


def test_an_ended_stream_takes_nothing(tokenizer):
    stream = tokenizer.stream()
    stream.feed("a")
    stream.end()
    for again in (lambda: stream.feed("b"), stream.end):
        with pytest.raises(UsageError, match="ended"):
            again()


def test_an_open_text_has_the_role_and_instruct_of_a_whole_one(tokenizer):
    whole = tokenizer.encode("Hello world", instruct="Whisper.")
    begun = tokenizer.encoding(SpeechOptions(instruct="Whisper.")).prompt_ids
    assert begun.role.tolist() == whole.role.tolist()
    assert begun.instruct.tolist() == whole.instruct.tolist()
    assert not len(begun.body)
