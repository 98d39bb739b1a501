"""The demonstration voice's material: texts, codes, shards, and how frames are compared."""

import dataclasses
import random
import re

import numpy as np
import pytest
import torch
from fixtures import module_value, or_skip
from tolerances import SAME_DISTANCE

from tools.demo_voice import alignment, codebooks, features, recipe, shards, texts, tokenizer
from tools.demo_voice.evaluate import REFERENCES, Reading
from tools.demo_voice.speech import Speaker

references = module_value(lambda: shards.read(REFERENCES))


# ---- texts ---------------------------------------------------------------------------------------


grammar = module_value(lambda: texts.Grammar(texts.FOLDER / "grammar.txt"))


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


def test_fitted_codebooks_come_closer_with_each_codebook():
    rng = np.random.default_rng(0)
    basis = rng.standard_normal((12, features.NUM_FEATURES))
    frames = (rng.standard_normal((1500, 12)) @ basis).astype(np.float32)
    fitted = codebooks.fit(frames)
    codes = fitted.encode(frames[:200])
    exact = fitted.project(torch.from_numpy(frames[:200]))
    errors = []
    for count in range(1, recipe.NUM_CODEBOOKS + 1):
        part = dataclasses.replace(fitted, books=fitted.books[:count])
        errors.append(np.linalg.norm(exact.numpy() - part.latents(codes[:, :count])))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.3 * errors[0]


def test_flite_says_the_references_again(references):
    speaker = or_skip(Speaker, codebooks.SHIPPED)
    first = references[:6]
    made = speaker.utterances([(u.kind, u.text) for u in first])
    for ours, kept in zip(made, first, strict=True):
        assert ours.text == kept.text
        np.testing.assert_array_equal(ours.ids, kept.ids)
        np.testing.assert_array_equal(ours.words, kept.words)
        assert (ours.codes == kept.codes)[:, [0, 1, -1]].mean() > 0.95
    codes, sound = speaker.pair(first[0].text)
    assert len(sound) == len(codes) * recipe.SAMPLES_PER_FRAME
    assert np.abs(sound).max() > 0.1


def test_questions_of_the_references_rise_and_statements_do_not(references):
    rising = {
        mark: [
            Reading(u.kind, u.text, u.codes, True, 0.0, 1.0, (np.ones(0),) * 2).rises
            for u in references
            if u.text.endswith(mark)
        ]
        for mark in "?."
    }
    assert min(map(len, rising.values())) == 73
    assert np.mean(rising["?"]) == 1 and np.mean(rising["."]) < 0.02


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


def test_stepwise_speech_waits_for_its_first_tokens(references):
    silence = codebooks.Codebooks.load().silence
    long = next(u for u in references if len(u.ids) > shards.WAITING_FRAMES)
    short = next(u for u in references if len(u.ids) < shards.WAITING_FRAMES)
    for utterance, count in ((long, shards.WAITING_FRAMES), (short, len(short.ids))):
        later = utterance.delayed(silence)
        assert (later.codes[:count] == silence).all() and (later.words[:count] == -1).all()
        np.testing.assert_array_equal(later.codes[count:], utterance.codes)
        np.testing.assert_array_equal(later.words[count:], utterance.words)
        assert later.codes.dtype == utterance.codes.dtype


def test_no_word_of_stepwise_speech_waits_for_its_letters(references):
    """The letters of each word have come when the word begins, or at least seven of them."""
    encode = tokenizer.load()
    silence = codebooks.Codebooks.load().silence
    for utterance in references:
        text = utterance.text
        spans = encode(text, return_offsets_mapping=True)["offset_mapping"]
        ends = np.array([end for _, end in spans])
        words = [match.span() for match in re.finditer(r"\S+", text)]
        later = utterance.delayed(silence).words
        for word in set(later.tolist()) - {shards.SILENCE}:
            start, end = words[word]
            wanted = int(np.searchsorted(ends, min(end, start + 7)))
            assert int(np.argmax(later == word)) >= wanted, (text, word)


def test_another_sentence_is_further_than_the_same_one_slower(references):
    books = codebooks.Codebooks.load()
    codes, other = references[4].codes, references[6].codes
    assert alignment.mean_distance(codes, codes, books) < SAME_DISTANCE
    assert alignment.mean_distance(np.repeat(codes, 2, axis=0), codes, books) < SAME_DISTANCE
    half = alignment.mean_distance(codes[: len(codes) // 2], codes, books)
    assert 0.1 < half < alignment.mean_distance(other, codes, books)
    assert alignment.mean_distance(other, codes, books) > 0.5


def test_words_begin_where_their_first_frame_was_drawn(references):
    books = codebooks.Codebooks.load()
    codes, words = references[4].codes, references[4].words
    firsts = {word: int(np.argmax(words == word)) for word in set(words.tolist()) - {-1}}
    assert alignment.word_onsets(codes, codes, words, books) == firsts
    later = np.concatenate([codes[:1], codes[:1], codes])
    found = alignment.word_onsets(later, codes, words, books)
    assert found == {word: frame + 2 for word, frame in firsts.items()}
    without = np.concatenate([codes[words != 1]])
    assert 1 not in alignment.word_onsets(without, codes, words, books)


def test_distances_are_those_of_codebooks_of_any_scale(references):
    books = codebooks.Codebooks.load()
    small = dataclasses.replace(books, books=books.books / 10)
    near, far = (
        alignment.mean_distance(references[6].codes, references[4].codes, each)
        for each in (books, small)
    )
    assert near == pytest.approx(far, rel=SAME_DISTANCE)
