"""Numbers, dates, money and abbreviations of each language, compared with words written by hand."""

from pathlib import Path

import pytest

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.text.reading import tables
from qwen_megakernel.text.reading.languages import known_languages
from qwen_megakernel.text.reading.reader import Reading
from qwen_megakernel.text.tokenizer import TextTokenizer

FILES = sorted((Path(__file__).parent / "expressions").glob("*.tsv"))
LEAST = {"english": 300}  # different expressions; 60 of any other language


def rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    files = loading.resolve("demo-voice")
    return TextTokenizer(files.folder, loading.load(files).config)


@pytest.fixture(scope="module")
def reading() -> Reading:
    return Reading()


def test_every_language_of_the_released_models_has_a_table():
    released = model_config("random-0.6b-base")["talker_config"]["codec_language_id"]
    assert [path.stem for path in FILES] == sorted(released) == known_languages()


def test_an_unknown_key_of_a_table_is_named_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tables, "_FILES", tmp_path)
    (tmp_path / "elvish.toml").write_text('code = "qya"\nplurral = "i"\n', "utf-8")
    with pytest.raises(ValueError, match=r"elvish\.toml: unknown key 'plurral'"):
        type("Elvish", (tables.Tables,), {})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_expression_has_the_ids_of_its_words(
    path: Path, tokenizer: TextTokenizer, reading: Reading
):
    table = dict(rows(path))
    assert len(table) >= LEAST.get(path.stem, 60)
    wrong = []
    for written, words in table.items():
        spoken = reading.reader("on", path.stem, None).whole(written)
        if tokenizer.token_ids(spoken) != tokenizer.token_ids(words):
            wrong.append((written, words, spoken))
    assert not wrong


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_expressions_of_a_text_are_read_the_same_in_pieces(path: Path, reading: Reading):
    text = "\n".join(written for written, _ in rows(path))
    whole = reading.reader("on", path.stem, None).whole(text)
    for size in (1, 2, 7):
        reader = reading.reader("on", path.stem, None)
        pieces = [text[begin : begin + size] for begin in range(0, len(text), size)]
        assert "".join(map(reader.feed, pieces)) + reader.end() == whole


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I have 5.", "I have five."),
        ("3시 5분에 만나요", "세 시 오분에 만나요"),
        ("5 марта пришли", "пятое марта пришли"),
        ("2026年11月23日です。3月5日も。", "二千二十六年十一月二十三日です。三月五日も。"),
        ("今天是2026年", "今天是二零二六年"),
        ("我买了 iPhone 15", "我买了 iPhone 十五"),
        ("5 яблок", "пять яблок"),
    ],
)
def test_auto_goes_by_the_script(text: str, words: str, reading: Reading):
    # A date at the very beginning, before any kana, is read as Chinese.
    text = "日付は" + text if "です" in text else text
    words = "日付は" + words if "です" in words else words
    assert reading.reader("on", "auto", None).whole(text) == words


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_expression_of_another_language_stops_the_reading(path: Path, reading: Reading):
    for other in FILES:
        for written, _ in rows(other):
            made = reading.reader("on", path.stem, None)
            assert made.whole(written) is not None
            assert made.spoken.text.strip() or not written.strip()


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        (
            "german",
            "So geht es:\n1. Mehl sieben\n   2. Eier\n- 3. Platz",
            "So geht es:\neins. Mehl sieben\n   zwei. Eier\ndritter Platz",
        ),
        ("portuguese", 'disse "são 2" mesas', 'disse "são dois" mesas'),
        ("auto", "km 950 €/мес", "km девятьсот пятьдесят евро в месяц"),
        (
            "portuguese",
            "art. 1.234,56",
            "artigo mil duzentos e trinta e quatro vírgula cinquenta e seis",
        ),
    ],
)
def test_what_stands_around_an_expression_decides_what_it_is(
    language: str, text: str, words: str, reading: Reading
):
    assert reading.reader("on", language, None).whole(text) == words


def test_a_language_without_tables_is_left_as_it_is_and_named(reading: Reading):
    reader = reading.reader("on", "klingon", None)
    assert reader.whole("wa' 5 cha' 6") == "wa' 5 cha' 6"
    (warning,) = reader.take_warnings()
    assert "klingon" in warning
    assert reader.take_warnings() == []
