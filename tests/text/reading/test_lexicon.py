"""Lexicons: the choice of an entry, and the errors of files that are no lexicons."""

from pathlib import Path

import pytest

from qwen_megakernel.errors import UsageError
from qwen_megakernel.text.reading.lexicon import MAX_ENTRIES, MAX_FILE_BYTES, Entry, Lexicon
from qwen_megakernel.text.reading.pls import NAMESPACE
from qwen_megakernel.text.reading.reader import Reading


def say(text: str, lexicon: object, language: str = "auto", normalize: str = "off") -> str:
    made = Reading().reader(normalize, language, Lexicon.of(lexicon))
    return made.whole(text) if made else text


def pls(body: str, language: str = ' xml:lang="en-US"') -> str:
    begin = f'<?xml version="1.0"?>\n<lexicon version="1.0" xmlns="{NAMESPACE}"{language}>'
    return f"{begin}{body}</lexicon>"


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("NASA said", "nassa said"),
        ("nasa said", "nassa said"),
        ("NASAs and NASA's", "NASAs and nassa's"),
        ("in New York, now", "in Noo York, now"),
        ("New York City!", "The City!"),
        ("New Yorkers", "New Yorkers"),
        ("new\nyork", "Noo York"),
        ("use C++ here", "use see plus plus here"),
        ("我在北京住", "我在Beijing住"),
        ("cafe\u0301 cafe", "cafe\u0301 kafay"),
    ],
)
def test_the_longest_entry_that_is_a_whole_word_is_taken(text: str, spoken: str):
    rows = "NASA\tnassa\nNew York\tNoo York\nNew York City\tThe City\nC++\tsee plus plus\n"
    assert say(text, Lexicon.parse(rows + "北京\tBeijing\ncafe\tkafay\n")) == spoken


def test_case_counts_where_a_row_says_so():
    lexicon = Lexicon.parse("US\tyou ess\t\texact\npolish\tpollish\t\tany\n")
    assert say("US us Polish", lexicon) == "you ess us pollish"


def test_an_entry_of_another_language_is_not_taken():
    lexicon = Lexicon.parse("chat\tshah\tfr\nchat\tchatt\ten-GB\nwow\tvov\n")
    assert say("chat wow", lexicon, "french") == "shah vov"
    assert say("chat wow", lexicon, "english") == "chatt vov"
    assert say("chat wow", lexicon, "german") == "chat vov"
    assert say("chat wow", lexicon) == "chatt vov"


def test_entries_that_go_in_circles_are_taken_once():
    assert say("a b", {"a": "b", "b": "a"}) == "b a"
    assert say("x", {"x": "x x"}) == "x x"


def test_equal_rows_are_one_and_those_of_another_language_or_case_rule_are_others():
    rows = "a\tb\nA\tb\na\tc\tfr\na\td\t\texact\na\tc\tfr-CA\n"
    lexicon = Lexicon.parse(rows)
    assert len(lexicon) == 3
    assert say("A", lexicon, "english") == "b"
    assert say("A", lexicon, "french") == "c"


@pytest.mark.parametrize(
    ("lexicon", "message"),
    [
        (
            "a\tfirst\n# a note\n\nA\tsecond\n",
            "lexicon, line 4: 'A' is respelled 'second', but line 1 respells 'a' 'first'.",
        ),
        ("a\tb\ten\nx\ty\na\tc\ten-GB\n", "line 3: 'a' is respelled 'c', but line 1"),
        ("US\ta\t\texact\nUS\tb\t\texact\n", "line 2: 'US' is respelled 'b', but line 1"),
        ("New York\ta\nnew\u00a0york\tb\n", "line 2: 'new\\xa0york' is respelled 'b', but line 1"),
        (
            pls(
                "\n<lexeme><grapheme>a</grapheme><alias>b</alias></lexeme>"
                "\n<lexeme><grapheme>x</grapheme>\n<grapheme>A</grapheme><alias>c</alias></lexeme>"
            ),
            "line 5: 'A' is respelled 'c', but line 3 respells 'a' 'b'.",
        ),
        ({"a": "b", "x": "y", "A": "c"}, "lexicon, entry 3: 'A' is respelled 'c', but entry 1"),
    ],
)
def test_entries_that_contradict_each_other_are_refused_with_both_places(
    lexicon: str | dict[str, str], message: str
):
    with pytest.raises(UsageError) as refused:
        Lexicon.parse(lexicon) if isinstance(lexicon, str) else Lexicon.of(lexicon)
    assert message in str(refused.value)
    assert refused.value.hint == "Keep one of the two, or give them different languages."


def test_an_entry_of_the_request_goes_before_one_of_the_engine():
    reading = Reading(lexicon=Lexicon.of({"SQL": "sequel", "API": "ay pee eye"}))
    made = reading.reader("off", "auto", Lexicon.of({"SQL": "ess queue ell"}))
    assert made.whole("SQL API") == "ess queue ell ay pee eye"


def test_a_respelling_is_not_read_again():
    assert say("5 K2", {"K2": "K 2"}, normalize="on") == "five K 2"


def test_a_title_stands_before_a_name_that_is_respelled():
    names = {"Smith": "Smit", "Elm": "Ellm"}
    assert say("Dr. Smith, 5 Elm St.", names, normalize="on") == "doctor Smit, five Ellm street."


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("[link](Qwen) and Foo", "link and bar"),
        ("see [it][Qwen], Foo", "see it, bar"),
        ("<https://Qwen.com> Foo", "kwen dot com bar"),
        ("https://Qwen.com/Foo, `Foo`", "kwen dot com slash bar, bar"),
    ],
)
def test_a_respelling_stays_with_its_word_where_markdown_drops_another(text: str, spoken: str):
    assert say(text, {"Qwen": "kwen", "Foo": "bar"}, "english", normalize="on") == spoken


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"a": "\ud800"}, "lexicon, entry 1: the respelling has the character U+D800"),
        ({"x": "y", "a": "\udc00 \udc01"}, "entry 2: the respelling has the character U+DC00"),
        ({"a\x00": "b"}, "entry 1: the word has the character U+0000"),
    ],
)
def test_characters_that_no_text_has_are_refused(entry: dict[str, str], message: str):
    with pytest.raises(UsageError) as refused:
        Lexicon.of(entry)
    assert message in str(refused.value)


def test_pls_is_read_with_its_language():
    words = "<grapheme>SQL</grapheme><grapheme>Sequel</grapheme>"
    body = f"<lexeme>{words}<alias>see quell</alias></lexeme>"
    lexicon = Lexicon.parse(pls(body))
    assert say("SQL sequel", lexicon, "english") == "see quell see quell"
    assert say("SQL", lexicon, "german") == "SQL"
    assert say("SQL", Lexicon.parse(pls(body, "")), "german") == "see quell"
    in_utf16 = pls(body).replace('"1.0"?>', '"1.0" encoding="UTF-16"?>').encode("utf-16")
    assert say("SQL", Lexicon.parse(in_utf16), "english") == "see quell"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("word\n", "lexicon, line 1: 'word' has no tab."),
        ("a\tb\n\nc\td\te\tf\tg\n", "line 3: 'c\\td\\te\\tf\\tg' has 5 columns."),
        ("a\tb\ten\tsometimes\n", "line 1: case is 'sometimes'; known: exact, any."),
        ("..\tb\n", "line 1: the word '..' has no letter or digit."),
        ("a" * 65 + "\tb\n", "line 1: the word 'aaaaaaaaaaaaaaaaaaaa'... has 65 characters"),
        ("a\t" + "b" * 257, "line 1: the respelling 'bbbbbbbbbbbbbbbbbbbb'... has 257"),
        (b"a\tb\nc\t\xff\n", "line 2: not UTF-8"),
        (pls("<lexeme><grapheme>a</grapheme></lexeme>"), "line 2: a <lexeme> needs"),
        (pls("\n<lexeme><phoneme>a</phoneme></lexeme>"), "line 3: <phoneme> cannot be spoken."),
        (pls("<lexeme>"), "line 2: mismatched tag."),
        ("<html/>", "line 1: the root element is <html>"),
        ("<a", "line 1: unclosed token."),
        (
            '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>\n' + pls("&b;")[22:],
            "line 1: document types and entities are not allowed in a lexicon.",
        ),
        (pls("<a>" * 50), "line 2: elements are nested more than 8 deep."),
        (pls("<lexeme><grapheme>" + "a" * 600), "line 2: an element has more than 512 characters"),
    ],
)
def test_a_faulty_lexicon_is_refused_with_its_place(data: str | bytes, message: str):
    with pytest.raises(UsageError) as refused:
        Lexicon.parse(data)
    assert message in str(refused.value)


def test_too_many_rows_are_refused():
    with pytest.raises(UsageError, match=f"more than {MAX_ENTRIES} entries"):
        Lexicon(Entry(f"w{number}", "x") for number in range(MAX_ENTRIES + 1))


@pytest.mark.parametrize(
    ("row", "limit"),
    [
        ("word\trespelling\n", f"{MAX_FILE_BYTES // 2**20} MiB"),
        ("a\tb\n", f"{MAX_ENTRIES} entries"),  # equal rows count, too
    ],
)
def test_a_file_of_a_million_rows_is_refused_by_its_name(row: str, limit: str, tmp_path: Path):
    path = tmp_path / "words.tsv"
    path.write_text(row * 1_000_000)
    with pytest.raises(UsageError, match=rf"words\.tsv has more than {limit}"):
        Lexicon.read(path)


def test_a_file_that_is_not_there_is_refused_by_its_name(tmp_path: Path):
    with pytest.raises(UsageError, match=r"Cannot read the lexicon .*none\.tsv: No such file"):
        Lexicon.of(tmp_path / "none.tsv")
    with pytest.raises(UsageError, match=r"Cannot read the lexicon .*: embedded null byte"):
        Lexicon.of("a\0b")


def test_what_is_no_lexicon_is_refused():
    with pytest.raises(UsageError, match="lexicon is 5; it must be a file, a Lexicon or a dict"):
        Lexicon.of(5)
