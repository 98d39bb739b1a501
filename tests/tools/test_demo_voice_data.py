"""The demonstration voice's material: texts, frames, codes, shards, and the word measure."""

import dataclasses
import random

import numpy as np
import pytest
import torch
from tolerances import HELD_VOWEL, SILENCE, SOUND

from tools.demo_voice import codebooks, espeak, features, recipe, shards, texts, word_accuracy
from tools.demo_voice.evaluate import REFERENCES
from tools.demo_voice.speech import LOOKAHEAD_CHARS, Speaker, schedule


@pytest.fixture(scope="module")
def references() -> list[shards.Utterance]:
    return shards.read(REFERENCES)


# ---- texts ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grammar() -> texts.Grammar:
    return texts.Grammar(texts.FOLDER / "grammar.txt")


@pytest.mark.parametrize("rule", texts.RULES)
def test_the_grammar_speaks_in_whole_sentences(grammar, rule):
    rng = random.Random(3)
    drawn = [texts.finish(grammar.draw(rule, rng), rng) for _ in range(3000)]
    assert not [text for text in drawn if set(text) & set("{}|*^_\n") or "  " in text]
    assert len(set(drawn)) > 2500
    rng = random.Random(3)
    assert drawn == [texts.finish(grammar.draw(rule, rng), rng) for _ in range(3000)]


def test_no_withheld_sentence_is_trained_on(grammar, references):
    tests = texts.test_sets(grammar, seed=12)
    withheld = texts.Withheld(text for row in tests.values() for text in row)
    assert {texts.normalize(u.text) for u in references} == withheld.normalized
    assert len(withheld.normalized) == 300
    number = len(texts.words()) + 1000  # each word is spoken alone before sentences are drawn
    drawn = [text for _, text in texts.training_texts(grammar, withheld, number, seed=11)]
    assert len(set(drawn)) == number
    sentences = {texts.normalize(part) for text in drawn for part in text.split(". ")}
    assert not sentences & withheld.normalized
    assert max(map(len, drawn)) > texts.MAX_SENTENCE_CHARS  # paragraphs are among them


def test_words_are_spelt_as_people_type_them():
    words = texts.words()
    assert len(words) == len(set(words)) == 20_000
    assert {"don't", "o'clock", "Sarah", "McCain", "YouTube", "FBI", "Friday", "the"} <= set(words)
    assert not {"sarah", "fbi", "The"} & set(words)


def test_a_sentence_that_is_nearly_a_withheld_one_is_withheld_too():
    withheld = texts.Withheld(["The cat sleeps on the red sofa.", "Go home!", "Call me at nine."])
    for text in (
        "go home",
        "Hello there. Go home! It is late.",
        "A cat sleeps on the red sofa.",  # six words of seven
        "The red sofa sleeps on the cat.",
    ):
        assert withheld.is_in(text), text
    for text in ("Home", "Call me at ten.", "The cat sleeps under a red sofa.", "Hello. Go away!"):
        assert not withheld.is_in(text), text


def test_sentences_to_choose_by_are_none_of_the_tests(grammar):
    development = texts.development_sets(grammar, seed=11)
    assert [len(row) for row in development.values()] == [texts.NUM_DEVELOPMENT] * 2
    tests = texts.test_sets(grammar, seed=12)
    assert development.keys() == tests.keys()
    withheld = texts.Withheld(text for row in tests.values() for text in row)
    assert not [text for row in development.values() for text in row if withheld.is_in(text)]


# ---- speech --------------------------------------------------------------------------------------


def test_silence_and_a_vowel_come_back_from_their_frames():
    silent = features.silence()
    assert features.synthesize(np.repeat(silent, 3, axis=0)).std() < SILENCE
    frame = silent.reshape(features.SUBFRAMES, -1).copy()
    frame[:, 10:20], frame[:, features.NUM_BANDS :] = -4.0, 1.0  # one band of sound, voiced
    sound = features.synthesize(np.repeat(frame.reshape(1, -1), 4, axis=0))
    assert len(sound) == 4 * recipe.SAMPLES_PER_FRAME and sound.std() > SOUND
    middle = sound[recipe.SAMPLES_PER_FRAME :][: 2 * recipe.SAMPLES_PER_FRAME]
    np.testing.assert_allclose(
        middle[: -features.HOP], middle[features.HOP :], atol=HELD_VOWEL, rtol=0
    )


def test_fitted_codebooks_come_closer_with_each_codebook():
    rng = np.random.default_rng(0)
    basis = rng.standard_normal((12, features.NUM_FEATURES))
    frames = (rng.standard_normal((1500, 12)) @ basis).astype(np.float32)
    fitted = codebooks.fit(frames)
    codes = fitted.encode(frames[:200])
    exact = codebooks._project(torch.from_numpy(frames[:200]), fitted)
    errors = []
    for count in range(1, recipe.NUM_CODEBOOKS + 1):
        part = dataclasses.replace(fitted, books=fitted.books[:count])
        errors.append(np.linalg.norm(exact.numpy() - part.latents(codes[:, :count])))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.3 * errors[0]


def test_no_word_is_spoken_before_its_letters_are_there():
    text = "an orange"
    words = np.array([0, 0, 1, 1, 1])
    frames = features.Frames(np.zeros((5, features.NUM_FEATURES)), words, [0, 3])
    order = schedule(frames, text, lambda num_chars: num_chars - 1)  # a token for each letter
    spoken = [index for index in order if index != shards.SILENCE]
    assert spoken == list(range(5))
    assert order.index(2) == min(3 + LOOKAHEAD_CHARS, len(text) + 1) - 1
    assert len(order) >= len(text) - 1 and order[-2:] == [shards.SILENCE] * 2


def test_espeak_says_the_references_again(references):
    try:
        speaker = Speaker(codebooks.SHIPPED)
    except OSError as error:
        pytest.skip(f"{espeak.LIBRARY}: {error}")
    first = references[:6]
    made = speaker.utterances([(u.kind, u.text) for u in first])
    for ours, kept in zip(made, first, strict=True):
        np.testing.assert_array_equal(ours.ids, kept.ids)
        np.testing.assert_array_equal(ours.words, kept.words)
        assert (ours.codes == kept.codes)[:, :2].mean() > 0.95
    codes, sound = speaker.pair(first[0].text)
    assert len(sound) == len(codes) * recipe.SAMPLES_PER_FRAME
    assert np.abs(sound).max() > 0.1


def test_a_shard_comes_back(tmp_path):
    rng = np.random.default_rng(0)

    def utterance(kind, text, num_tokens, num_frames):
        codes = rng.integers(0, 256, (num_frames, recipe.NUM_CODEBOOKS))
        words = rng.integers(-1, 3, num_frames)
        return shards.Utterance(kind, text, np.arange(num_tokens), codes, words)

    kept = [utterance("train", "Né.", 3, 7), utterance("written", "b", 1, 2)]
    shards.write(tmp_path / "a.npz", kept)
    for ours, wanted in zip(shards.read_folder(tmp_path), kept, strict=True):
        assert (ours.kind, ours.text) == (wanted.kind, wanted.text)
        for name in ("ids", "codes", "words"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(wanted, name))


def test_words_are_right_only_where_they_were_said(references):
    books = codebooks.Codebooks.load()
    reference = references[2]
    codes, words = reference.codes, reference.words
    count = len(set(words.tolist()) - {shards.SILENCE})
    assert word_accuracy.words_right(codes, codes, words, books) == (count, count)
    slow = np.repeat(codes, 2, axis=0)
    assert word_accuracy.words_right(slow, codes, words, books) == (count, count)
    without = codes[words != words.max()]
    assert word_accuracy.words_right(without, codes, words, books)[0] < count
    assert word_accuracy.words_right(codes[:0], codes, words, books) == (0, count)


def test_words_are_right_in_codebooks_of_any_scale(references):
    books = codebooks.Codebooks.load()
    small = dataclasses.replace(books, books=books.books / 10)
    assert (books.unit, small.unit) == (1, 0.1)
    reference, other = references[2], references[3]
    found = [
        word_accuracy.words_right(other.codes, reference.codes, reference.words, each)
        for each in (books, small)
    ]
    assert found[0] == found[1] and found[0][0] < found[0][1]
