"""Write files of "kind<TAB>text": sentences to learn from, to choose settings by, and to test with.

python -m tools.demo_voice.texts --output DATA     writes train.tsv, development.tsv and test.tsv

Sentences come from the grammar beside this file, alone and as paragraphs, and from words drawn at
random, so that every word of the list is learned among unusual neighbours too. No text for
training contains a sentence of the other two sets, or one that is nearly the same.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tqdm import tqdm

from qwen_megakernel.cli import parsing

FOLDER = Path(__file__).parent
TRAINING = "train"
TEMPLATE, WRITTEN = "template", "written"  # kinds of test sentences: from grammar, by hand

NUM_TEMPLATE = 200  # test sentences from the grammar
NUM_DEVELOPMENT = 100  # number of sentences for choosing settings
TEST_WORDS = (3, 14)
MAX_SENTENCE_CHARS = 120
MAX_PARAGRAPH_CHARS = 280
PARAGRAPH_SENTENCES = (2, 5)

# Kinds of training text and their shares.
SHARES = {"everyday": 0.40, "sentence": 0.24, "common": 0.10, "rare": 0.14, "paragraph": 0.12}
RULES = ("everyday", "sentence")  # whole sentences; test sentences come from the second
NUM_COMMON = 1200  # words
SALAD_WORDS = (2, 7)
SHARE_OF_COMMAS = 0.07
NEARLY_THE_SAME = 0.75  # share of the words of two sentences that are in both: more is a copy

ENDINGS = (".", ".", ".", ".", ".", ".", "!", "?", "")  # for a sentence that has none
QUESTION = re.compile(
    r"(What|Where|When|Who|Whose|Why|How|Which|Can|Could|Is|Are|Do|Does|Did|Would|Will|Should|May|"
    r"Have|Has)\b"
)
KEEPS_CAPITAL = re.compile(r"(I\b|I'|English|Merry|Happy|[A-Z][a-z]+day\b)")


class Grammar:
    """A grammar file from which texts are drawn; the head of the file explains its format."""

    def __init__(self, path: Path):
        bodies: dict[str, str] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("#") or not line.strip():
                continue
            if not line.startswith(" "):
                name = line.removesuffix(":")
                bodies[name] = ""
            else:
                bodies[name] += " " + line.strip()
        self._options = {name: _options(body) for name, body in bodies.items()}

    def draw(self, rule: str, rng: random.Random) -> str:
        """Return one text of `rule`."""

        def expand(match: re.Match) -> str:
            mark, name = match.groups()
            if ".." in name:
                low, high = name.split("..")
                return str(rng.randint(int(low), int(high)))
            text = self.draw(name, rng)
            if mark == "^":
                return text[0].upper() + text[1:]
            if mark == "_" and not KEEPS_CAPITAL.match(text):
                return text[0].lower() + text[1:]
            return text

        return re.sub(r"\{([\^_]?)([\w.]+)\}", expand, rng.choice(self._options[rule]))


def _options(body: str) -> list[str]:
    """Return the options of a rule, repeating those that count several times."""
    found = []
    for option in body.split("|"):
        times, _, rest = option.strip().rpartition("* ")
        found += [rest] * int(times or 1)
    return found


def words() -> list[str]:
    """Return common English words, the commonest first (README.md documents their source)."""
    return (FOLDER / "words.txt").read_text(encoding="utf-8").split()


def written() -> list[str]:
    """Return the test sentences written by hand."""
    return (FOLDER / "written.txt").read_text(encoding="utf-8").splitlines()


def written_for_development() -> list[str]:
    """Return sentences by hand to choose settings and states by, which leaves the test's unused."""
    return (FOLDER / "development.txt").read_text(encoding="utf-8").splitlines()


def normalize(text: str) -> str:
    """Return the form in which equal texts are equal."""
    return re.sub(r"[^a-z0-9 ]", "", text.lower()).strip()


def finish(text: str, rng: random.Random) -> str:
    """Return the text with an end and, mostly, a capital."""
    if rng.random() < 0.9:
        text = text[0].upper() + text[1:]
    if text[-1] in ".?!":
        return text
    return text + ("?" if QUESTION.match(text) and rng.random() < 0.85 else rng.choice(ENDINGS))


class Withheld:
    """Sentences that training must not see. It finds them, and near copies, in texts."""

    def __init__(self, sentences: Iterable[str]):
        self.normalized = {normalize(sentence) for sentence in sentences}
        self._words = [Counter(sentence.split()) for sentence in sorted(self.normalized)]
        self._having: dict[str, list[int]] = {}  # maps a word to sentences
        for index, words_of in enumerate(self._words):
            for word in words_of:
                self._having.setdefault(word, []).append(index)

    def is_in(self, text: str) -> bool:
        """Return whether a text is one of these, or contains one of them or a near copy."""
        parts = {normalize(part) for part in (text, *re.split(r"(?<=[.?!]) ", text))}
        return any(part in self.normalized or self._is_copy(part) for part in parts)

    def _is_copy(self, sentence: str) -> bool:
        words_of = Counter(sentence.split())
        near = Counter(index for word in words_of for index in self._having.get(word, ()))
        for index, _ in near.most_common(5):
            other = self._words[index]
            longer = max(words_of.total(), other.total())
            if (words_of & other).total() > NEARLY_THE_SAME * longer:
                return True
        return False


def development_sets(grammar: Grammar, seed: int) -> dict[str, list[str]]:
    """Return sentences to choose settings by, of the kinds of the test's and none of them."""
    tests = Withheld(text for texts in test_sets(grammar, seed + 1).values() for text in texts)
    drawn = _template_sentences(grammar, seed + 2, NUM_TEMPLATE + NUM_DEVELOPMENT)
    template = [text for text in drawn if not tests.is_in(text)][:NUM_DEVELOPMENT]
    return {TEMPLATE: template, WRITTEN: written_for_development()}


def test_sets(grammar: Grammar, seed: int) -> dict[str, list[str]]:
    """Return the sentences to test with, which nothing else may use."""
    return {TEMPLATE: _template_sentences(grammar, seed, NUM_TEMPLATE), WRITTEN: written()}


def _template_sentences(grammar: Grammar, seed: int, number: int) -> list[str]:
    """Return different sentences of the grammar, of usual length."""
    rng = random.Random(seed)
    drawn: dict[str, str] = {}
    phrases = {normalize(option) for option in grammar._options["phrase"]}
    taken = phrases | {normalize(text) for text in written()}
    while len(drawn) < number:
        text = finish(grammar.draw("sentence", rng), rng)
        key = normalize(text)
        fits = TEST_WORDS[0] <= len(text.split()) <= TEST_WORDS[1]
        if fits and len(text) <= MAX_SENTENCE_CHARS and key not in taken:
            drawn.setdefault(key, text)
    return list(drawn.values())


def training_texts(
    grammar: Grammar, withheld: Withheld, number: int, seed: int
) -> Iterator[tuple[str, str]]:
    """Return (kind of text, text), all different and none with a withheld sentence."""
    rng = random.Random(seed)
    vocabulary = words()
    weights = {
        "common": [(rank + 40) ** -0.5 for rank in range(NUM_COMMON)],
        "rare": [(rank + 30) ** -0.6 for rank in range(len(vocabulary))],
    }
    seen: set[str] = set()
    alone = [
        word if rng.random() < 0.3 else word[0].upper() + word[1:] + "." for word in vocabulary
    ]
    count = 0
    while count < number:
        if alone:
            kind, text = "rare", alone.pop()
        else:
            kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
            if kind == "paragraph":
                text = _paragraph(grammar, rng)
            elif kind in RULES:
                text = finish(grammar.draw(kind, rng), rng)
            else:
                text = finish(_salad(vocabulary, weights[kind], rng), rng)
        limit = MAX_PARAGRAPH_CHARS if kind == "paragraph" else MAX_SENTENCE_CHARS
        if len(text) > limit or text in seen or withheld.is_in(text):
            continue
        seen.add(text)
        count += 1
        yield kind, text


def _salad(vocabulary: list[str], weights: list[float], rng: random.Random) -> str:
    chosen = rng.choices(vocabulary[: len(weights)], weights, k=rng.randint(*SALAD_WORDS))
    chosen = ["I" if word == "i" else word for word in chosen]
    return "".join(
        word + (", " if rng.random() < SHARE_OF_COMMAS else " ") for word in chosen
    ).strip(", ")


def _paragraph(grammar: Grammar, rng: random.Random) -> str:
    sentences = []
    for _ in range(rng.randint(*PARAGRAPH_SENTENCES)):
        text = finish(grammar.draw(rng.choice(RULES), rng), rng)
        text = text[0].upper() + text[1:]
        sentences.append(text if text[-1] in ".?!" else text + ".")
    return " ".join(sentences)


def read(path: Path) -> Iterator[tuple[str, str]]:
    """Return (kind, text) of every line; kind is TRAINING or a test set's name."""
    for line in path.read_text(encoding="utf-8").splitlines():
        kind, text = line.split("\t")
        yield kind, text


def main(args: argparse.Namespace) -> None:
    """Write the three files, training in random order."""
    grammar = Grammar(FOLDER / "grammar.txt")
    development = development_sets(grammar, args.seed)
    tests = test_sets(grammar, args.seed + 1)
    withheld = Withheld(
        text for sets in (development, tests) for texts in sets.values() for text in texts
    )
    drawn = training_texts(grammar, withheld, args.number, args.seed)
    training = [text for _, text in tqdm(drawn, total=args.number, unit=" texts")]
    random.Random(args.seed).shuffle(training)
    args.output.mkdir(parents=True, exist_ok=True)
    files = {"train": {TRAINING: training}, "development": development, "test": tests}
    for name, sets in files.items():
        lines = [f"{kind}\t{text}\n" for kind, texts in sets.items() for text in texts]
        (args.output / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add("--output", "folder for the three files", Path, required=True)
    add("--number", "number of texts for training", int, 120_000)
    add("--seed", "seed of all random choices", int, 11)
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_args())
