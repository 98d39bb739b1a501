"""Continuity: what a part of a speech continues, and that nothing else changes it."""

import random
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from fixtures import module_fixture
from spies import watch
from tiny_speech import feed_and_end, tiny_engine
from tolerances import PCM_STEPS
from waiting import wait_until

from qwen_megakernel.audio import to_int16
from qwen_megakernel.decoders.prompt import PromptBuilder
from qwen_megakernel.engine import step_loop
from qwen_megakernel.engine.conversation import MAX_VOICES, Conversation, Said
from qwen_megakernel.engine.drift_guard import IDENTITY_S
from qwen_megakernel.engine.stream_state import StreamState
from qwen_megakernel.errors import EngineClosed, TaskError, UsageError
from qwen_megakernel.timing.loudness import Loudness
from qwen_megakernel.voice import Voice

RATE, MOST = 24000, 50
SILENT = list(np.zeros((20, 2), np.int32))
WORDS = "one two three four five six seven eight nine ten"
LONG = " ".join(f"This is the {word} sentence, and it has a few words." for word in WORDS.split())
SHORT = "Hello there, how are you today?"

base = module_fixture(lambda: tiny_engine("tiny-random-base", num_slots=3))


@pytest.fixture
def prompts(monkeypatch):
    """The prompts that are built: ids, request, and the rows."""
    built = []
    build = PromptBuilder.build

    def watched(self, ids, request, **options):
        rows = build(self, ids, request, **options)
        built.append((ids, request, rows))
        return rows

    monkeypatch.setattr(PromptBuilder, "build", watched)
    return built


def voice(engine, num_frames=9):
    rng = np.random.default_rng(3)
    width = engine.config.talker.stack.hidden_size
    codes = rng.integers(0, 1000, (num_frames, engine.config.talker.num_code_groups))
    x_vector = rng.standard_normal(width).astype(np.float32)
    if not num_frames:
        return Voice("ada", x_vector)
    return Voice("ada", x_vector, codes, "She said so.")


def beeping(num_words, frames=5):
    """Samples of words that last 4 of 5 frames each, the first one from the beginning."""
    hop = np.arange(1920 * frames * num_words)
    on = hop % (1920 * frames) < 1920 * (frames - 1)
    return (on * 9000 * np.sin(hop / 9)).astype(np.int16)


def beeps(num_words):
    """Their loudness."""
    heard = Loudness()
    heard.add(beeping(num_words), RATE)
    return heard


def draw_part(turn):
    """Let a turn hear four words; returns what it continues."""
    begun = turn.begin_part("ada", goes_on=False)
    turn.hear(beeping(4), RATE)
    turn.end_part("mama " * 4, SILENT, RATE)
    return begun


def settle(turn):
    wait_until(lambda: turn.is_found)
    turn.settle(can_redraw=False)


# ---- what was said -------------------------------------------------------------------------------


def test_the_end_of_a_part_begins_with_a_word_that_the_samples_show():
    texts = "mama " * 14
    codes = np.arange(14 * 5 * 2, dtype=np.int32).reshape(-1, 2)
    said = Said.part(texts, codes, beeps(14)).after(None, MOST)
    assert said.text.split() == ["mama"] * len(said.words)
    assert len(said.words) in (9, 10)
    assert len(said.codes) <= MOST
    assert np.array_equal(said.codes, codes[-len(said.codes) :])
    assert len(said.codes) - 5 * len(said.words) in (-1, 0, 1)  # a word begins every fifth frame


def test_earlier_speech_fills_up_what_a_short_part_leaves():
    first = Said.part("mama mama mama.", np.zeros((15, 2), np.int32), beeps(3))
    then = Said.part("Papa papa.", np.ones((10, 2), np.int32), beeps(2)).after(first, MOST)
    assert then.text == "mama mama mama. Papa papa."
    assert then.codes[:, 0].tolist() == [0] * 15 + [1] * 10
    cut = Said.part("Papa papa.", np.ones((10, 2), np.int32), beeps(2)).after(first, 21)
    assert cut.text == "mama mama. Papa papa."


def test_a_word_longer_than_the_context_leaves_nothing():
    assert Said(np.zeros((60, 2), np.int32), ((0, "oh"),)).after(None, MOST) is None


def test_ten_thousand_frames_keep_four_seconds_of_each_voice():
    talk = Conversation()
    turn = talk.join(None, lambda: None)
    said = Said.part("mama " * 4, np.array(SILENT), beeps(4))
    for number in range(500):
        talk.say(turn, f"voice {number % 40}", said, MOST)
    kept = [talk.said(f"voice {number}") for number in range(40)]
    kept = [each for each in kept if each]
    assert len(kept) == MAX_VOICES
    assert all(len(each.codes) <= MOST and each.codes.base is None for each in kept)


def test_interruptions_at_random_places_leak_nothing():
    """A listener interrupts 200 times, while words are being found or before or after."""
    rng, begun = random.Random(5), []
    with ThreadPoolExecutor() as workers:
        talk = Conversation()
        for _ in range(200):
            turn = talk.join(workers, lambda: None)
            cut = threading.Timer(rng.choice([0, 0.001, 0.004]), turn.interrupt)
            cut.start()
            begun.append(draw_part(turn))
            cut.join()
            settle(turn)
            turn.end(is_good=rng.random() < 0.5)
    assert begun == [None] * 200


def test_a_stream_that_is_collected_while_the_conversation_works_does_not_wait_for_it():
    """The collector runs anywhere, also where the thread holds the lock of the conversation."""
    talk = Conversation()
    turn = talk.join(None, lambda: None)

    class Collecting(str):
        def __hash__(self):
            turn.interrupt()
            return super().__hash__()

    said = Said.part("mama " * 4, np.array(SILENT), beeps(4))
    thread = threading.Thread(
        target=talk.say, args=(turn, Collecting("ada"), said, MOST), daemon=True
    )
    thread.start()
    thread.join(5)
    assert not thread.is_alive() and talk.said("ada") is None


def test_who_speaks_is_found_once_and_while_the_part_is_drawn():
    """The second drawing of a part is another sound."""
    heard = []

    def identify(samples, rate):
        heard.append(samples)
        return np.ones(4)

    with ThreadPoolExecutor(1) as workers:
        turn = Conversation().join(workers, lambda: None, identify=identify)
        for samples in (beeping(10), -beeping(10)):
            turn.begin_part("ada", goes_on=False)
            for piece in np.split(samples, 4):
                turn.hear(piece, RATE)
            wait_until(lambda: heard)
            turn.end_part("mama " * 10, SILENT, RATE)
            wait_until(lambda: turn.is_found)
            (sound,) = heard
            assert np.array_equal(to_int16(sound), samples[: round(IDENTITY_S * RATE)])
            heard.clear()


def test_a_conversation_that_rests_keeps_no_samples():
    with ThreadPoolExecutor(1) as workers:
        turn = Conversation().join(workers, lambda: None)
        turn.begin_part("ada", goes_on=False)
        turn.hear(beeping(4), RATE)
        kept = weakref.ref(turn._samples[0])
        turn.end_part("mama " * 4, SILENT, RATE)
        settle(turn)
        turn.end(is_good=True)
        assert kept() is None and turn.conversation.said("ada")


def test_words_that_are_found_after_an_interruption_are_too_late():
    """The first stream has ended well, but the second one is interrupted before it is known."""
    talk, held = Conversation(), threading.Event()
    with ThreadPoolExecutor(1) as workers:
        workers.submit(held.wait)
        first, second = (talk.join(workers, lambda: None) for _ in range(2))
        draw_part(first)
        first.end(is_good=True)
        second.interrupt()
        later = talk.join(workers, lambda: None)
        second.end(is_good=False)
        held.set()
        settle(first)
        wait_until(lambda: later.is_due)
        assert draw_part(later) is None
        second.interrupt()  # again, as when the stream is collected
        settle(later)
        assert talk.said("ada")


# ---- in the engine -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_frames", [0, 9])
@pytest.mark.parametrize("feed", ["stepwise", "full"])
def test_a_part_continues_as_a_voice_in_context_would(base, prompts, num_frames, feed):
    """The rows are those of an in-context voice, which equal the official ones."""
    ada = voice(base, num_frames)
    options = {"voice": ada, "seed": 4, "text_feed": feed}
    speech = base.synthesize(LONG, continuity="context", **options)
    assert speech.parts == len(prompts) > 1
    assert prompts[0][0].frames is None
    for ids, request, rows in prompts[1:]:
        own = len(ids.frames) - num_frames
        assert 0 < own <= MOST
        assert any(
            np.array_equal(ids.frames[num_frames:], speech.codes[end - own : end])
            for end in range(own, len(speech.codes) + 1)
        )
        as_reference = replace(ada, codes=ids.frames, transcript="as in ids.reference")
        same = base._prompts.build(replace(ids, frames=None), replace(request, voice=as_reference))
        assert torch.equal(rows.embeds, same.embeds)
        assert torch.equal(rows.trailing_text, same.trailing_text)


def test_the_words_of_the_context_are_those_of_its_frames(base, prompts):
    talk = Conversation()
    ada = voice(base)
    for seed in range(4):
        base.synthesize(SHORT, voice=ada, seed=seed, continuity="context", conversation=talk)
    expected = base._tokenizer.ids("She said so.")
    for ids, _, _ in prompts[1:4]:
        assert torch.equal(ids.reference[: len(expected) - 1], expected[:-1])
    wait_until(lambda: talk._last.is_over)
    assert talk.said(ada).text.endswith("how are you today?")


def test_off_and_the_first_part_are_as_ever(base):
    options = {"seed": 2, "voice": voice(base, 0)}
    off, on = (base.synthesize(SHORT, continuity=c, **options) for c in ("off", "context"))
    assert np.array_equal(off.codes, on.codes)
    assert np.array_equal(off.audio, on.audio)


def test_codes_do_not_depend_on_pieces_neighbours_or_chunks(base, monkeypatch):
    # One part drifts, and is drawn again only while its reader has something to play.
    monkeypatch.setattr(StreamState, "buffered_s", lambda state: 60.0)
    options = {"voice": voice(base, 0), "seed": 34, "continuity": "context"}
    sizes = [len(LONG), 1, 7]
    streams = [
        base.stream(text_open=True, first_chunk_frames=frames, chunk_frames=frames, **options)
        for frames in (1, 4, 10)
    ]

    def feed_all():
        for stream, size in zip(streams, sizes, strict=True):
            for at in range(0, len(LONG), size):
                stream.feed(LONG[at : at + size])
            stream.end_text()

    # In the loop's thread, so that no part ends before its text has come: the text behind such an
    # end would be a part of its own.
    base._loop.run(feed_all)
    codes = [(list(stream), stream.codes)[1] for stream in streams]
    assert streams[0].text.num_parts > 2
    assert all(np.array_equal(codes[0], each) for each in codes[1:])


def test_a_stream_waits_for_the_one_before_it(base, prompts):
    talk, options = Conversation(), {"voice": voice(base, 0), "continuity": "context"}
    first, second = (base.stream(SHORT, seed=1, conversation=talk, **options) for _ in range(2))
    list(first)
    list(second)
    assert [ids.frames is None for ids, _, _ in prompts] == [True, False]
    assert np.array_equal(prompts[1][0].frames, first.codes[-len(prompts[1][0].frames) :])


@pytest.fixture
def closed():
    with tiny_engine("tiny-random-base") as engine:
        pass
    return engine


def test_a_stream_that_an_engine_refuses_is_waited_for_by_none(base, closed):
    talk, options = Conversation(), {"voice": voice(base, 0), "continuity": "context"}
    with pytest.raises(EngineClosed):
        closed.stream(SHORT, conversation=talk, **options)
    with base.stream(SHORT, seed=1, conversation=talk, max_frames=2, **options) as stream:
        wait_until(lambda: stream.finish_reason)


def test_streams_that_are_refused_one_after_another_are_not_kept(base, closed):
    talk = Conversation()
    for _ in range(3):
        with pytest.raises(EngineClosed):
            closed.stream(SHORT, conversation=talk, voice=voice(base, 0), continuity="context")
        assert talk._last.before is None


def test_a_closed_stream_leaves_nothing(base, prompts):
    talk, options = Conversation(), {"voice": voice(base, 0), "continuity": "context"}
    rng = random.Random(1)
    for _ in range(10):
        base.synthesize(SHORT, seed=1, conversation=talk, **options)
        wait_until(lambda: talk.said(options["voice"]))
        stream = base.stream(LONG, seed=1, conversation=talk, **options)
        for _ in range(rng.randrange(4)):
            next(stream)
        stream.close()
        prompts.clear()
        feed_and_end(base.stream(text_open=True, conversation=talk, **options), SHORT)
        assert prompts[-1][0].frames is None
        talk.forget()


@pytest.fixture
def bea(base):
    return voice(base, 12)


@pytest.fixture
def warmed(base, bea, monkeypatch):
    """The frames behind Bea's reference over which the vocoder runs without samples."""
    warmed = []

    def note(frames, state):
        if np.array_equal(frames[: len(bea.codes)], bea.codes):
            warmed.append(frames[len(bea.codes) :])

    watch(monkeypatch, base._loop.stages.vocoder, "warm", note)
    monkeypatch.setattr(base._loop, "_contexts", {})
    return warmed


def test_a_sentence_that_comes_later_finds_its_context_prepared(base, bea, warmed, prompts):
    options = {"voice": bea, "seed": 1, "continuity": "context", "conversation": Conversation()}
    first = base.synthesize(SHORT, **options)
    wait_until(lambda: len(warmed) == 2)
    assert len(warmed[0]) == 0
    assert np.array_equal(warmed[1], first.codes[-len(warmed[1]) :])
    second = base.stream(SHORT, **options)
    samples = np.concatenate([chunk.samples for chunk in second])
    context = prompts[1][0].frames
    assert np.array_equal(context, np.concatenate([bea.codes, warmed[1]]))
    whole = to_int16(base.decode(np.concatenate([context, second.codes])))
    assert np.abs(samples - whole[-len(samples) :].astype(int)).max() <= PCM_STEPS
    wait_until(lambda: len(warmed) == 3)  # after the second sentence, for a third one
    assert np.array_equal(warmed[2][-len(second.codes) :], second.codes[-len(warmed[2]) :])


def test_a_voice_in_context_is_prepared_once_and_sounds_the_same(base, bea, warmed, monkeypatch):
    options = {"voice": bea, "seed": 1, "max_frames": 9}
    first, again = (base.synthesize(SHORT, **options).audio for _ in range(2))
    assert len(warmed) == 1
    monkeypatch.setattr(step_loop, "MAX_CONTEXTS", 0)
    for _ in range(2):
        alone = base.synthesize(SHORT, **options).audio
    assert len(warmed) == 2
    assert np.array_equal(first, again) and np.array_equal(first, alone)


def test_voices_of_a_conversation_keep_their_own(base, prompts):
    talk = Conversation()
    ada, ben = voice(base, 0), replace(voice(base, 0), name="ben")
    for each in (ada, ben, ada):
        base.synthesize(SHORT, voice=each, seed=1, continuity="context", conversation=talk)
    assert [ids.frames is None for ids, _, _ in prompts] == [True, True, False]


def test_a_named_speaker_keeps_its_row_and_is_warned_about(tts, prompts):
    stream = tts.stream(LONG, voice="vivian", seed=3, continuity="context")
    list(stream)
    assert "untried" in stream.text.warnings[0]
    first, *later = (rows.embeds for _, _, rows in prompts)
    assert later
    assert all(torch.equal(rows[:8], first[:8]) for rows in later)  # role, language, speaker
    assert all(ids.frames is not None for ids, _, _ in prompts[1:])


def test_the_demonstration_voice_refuses(monkeypatch):
    with tiny_engine("demo-voice") as engine:
        monkeypatch.setattr(engine._loop, "submit", None)
        with pytest.raises(TaskError, match="demo-voice was not trained to continue"):
            engine.stream(SHORT, continuity="context")
        config = replace(engine.config, continues_speech=True)  # a key of the file, not the size
        monkeypatch.setattr(engine, "config", config)
        assert "untried" in engine.check_continuity()[0]


def test_a_conversation_needs_the_option(base):
    with pytest.raises(UsageError, match='continuity is "off"'):
        base.stream(SHORT, conversation=Conversation())
    with pytest.raises(UsageError, match="conversation is 1; it must be a Conversation"):
        base.stream(SHORT, conversation=1, continuity="context")
