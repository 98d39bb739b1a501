"""Where sentences end in ten languages, and that a text in pieces is cut where a whole one is."""

import pytest
import torch
from cpu_time import cpu_seconds

from qwen_megakernel.text.intake import TextIntake
from qwen_megakernel.text.parts import TextEncoding
from qwen_megakernel.text.request_text import RequestText
from qwen_megakernel.text.sentences import sentence_spans
from qwen_megakernel.text.unreadable import TextWatch

# Each "|" is the end of a sentence.
TEXTS = [
    "I met Prof. Jones and Capt. Kirk at 5 p.m. Eastern. |Then we left.",
    "He said no. |Peter agreed. |I love art. |See No. 5 and p. 12.",
    "Call J. A. Smith, Jr. |The end.",
    "we met prof. jones, e.g. at no. 5. it was late. |i left at 3. may was... well, gone.",
    "həˈloʊ wɝld ɡʊd ˈmɔɹnɪŋ. |həˈloʊ wɝld.",
    "In the U.S. |The train left at 5 p.m. |We were late. |It cost $3.5 million. |Then it rose.",
    "1. Wash. |2. Dry. |I am 30. |Mary is 25. |“Is it?” |She left... and came back.",
    "She left. |5 people saw it.",
    "We live on Elm St. |The house is old. |Call Dr. Smith or Mr. Will Young. |“Stop.” |He ran!",
    "Prof. Dr. Müller kam am 3. Mai um 8 Uhr. |Das ist z. B. gut. |Siehe Nr. 5 usw. |Danach nicht.",
    "Mein 4. Versuch gelang. |Er wohnt in der Hauptstr. |Dann kam sie. |Es kostet ca. 5 Mio. Euro.",
    "M. Dupont habite av. Foch. |Voir p. 5, chap. 3, etc. |Puis Mme Leroy vint.",
    "El Sr. García vive en la Av. Reforma. |Compra pan, leche, etc. |Luego vino la Dra. López.",
    "Il Sig. Rossi e la Dott.ssa Bianchi sono a pag. 5. |Pane, latte, ecc. |Poi basta.",
    "O Sr. Silva mora na Av. Paulista, com a Dra. Lima. |Veja a pág. 5. |Pão, leite, etc. |Fim.",
    "Он живёт на ул. Ленина в г. Москва. |В 2020 г. Москва росла, и т.д. |Потом тишина.",
    "Il vécut vers 50 av. J.-C. |Puis il mourut à 5 h. |Bien sûr, M. Le Pen vint.",
    "Llegó a las 5 h. |Luego, en 100 a.C. Roma cayó. |Vino J. Heras en 20 a.C. |Después murió.",
    "Nacque nel 100 a.C. |Poi visse. |Sono le 5 h. |Ora basta, dice A. De Luca.",
    "Chegou às 5 h. |Depois, em 100 a.C. |Então caiu J. Silva.",
    "И т. д. |Потом, в нач. XX в. |Он жил там, и т. п. |Но А. Иванов и др. |Это знали.",
    "他说「够了。」|然后走了。|“好！”|真的吗？|是的，3.5元。",
    "「はい。」と言った。|次です。|本当？|3.5円！",
    "네. |그래요. |3.5%입니다. |비타민 C. |그리고 끝! |정말요?",
    "Wait! |what is it? |iPhones ring. |“Is it?” she said.",
    "A heading without a mark\n\n|A paragraph (really.) |“Yes.”",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_sentence_ends_at_no_abbreviation_initial_or_ordinal(text: str):
    plain = text.replace("|", "")
    assert "|".join(plain[begin:end] for begin, end in sentence_spans(plain)) == text


class Letters:
    """An encoder of a part, whose ids are its characters."""

    def feed(self, piece: str) -> torch.Tensor:
        return torch.tensor([ord(char) for char in piece], dtype=torch.int64)

    def end(self) -> torch.Tensor:
        return self.feed("")


def cut(text: str, step: int) -> list[str]:
    encoding = TextEncoding(None, None, None, Letters, open_part_chars=(12, 24))
    intake = TextIntake(RequestText(None, TextWatch(None)), encoding, is_whole=False)
    for begin in range(0, len(text), step):
        intake.feed(text[begin : begin + step])
    intake.end()
    return [part.text for part in intake.parts]


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_in_pieces_is_cut_where_a_whole_one_is(text: str, step: int):
    text = text.replace("|", "").replace(" ", "\u00a0")  # at no space, only at ends of sentences
    spans = [text[begin:end] for begin, end in sentence_spans(text)]
    found = cut(text, step)
    ends = {sum(map(len, spans[: place + 1])) for place in range(len(spans))}
    assert "".join(found) == text
    assert all(sum(map(len, found[: place + 1])) in ends for place in range(len(found)))
    assert len(found) > 1 or len(text) < 40
    assert found == cut(text, 1000)


@pytest.mark.ci
@pytest.mark.parametrize(
    "piece",
    [
        '"1. \n"',
        "1. \n",
        "a. B ",
        ".",
        "\n",
        "。",
        " ",
        "A.",
        '")',
        "Mr. ",
        "!  ",
        "5. Ab",
        "am 3. Ab ",
    ],
)
def test_the_time_is_linear_in_the_length_of_a_text(piece: str):
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        return cpu_seconds(lambda: sentence_spans(text))

    short, long = seconds(5_000), seconds(50_000)
    assert long < 30 * short + 1
