"""The words of a stream: as the user wrote them, in order, within the sound, final only once."""

from collections import deque
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from cpu_time import cpu_seconds
from spelling_voice import RATE, Spelled, spell
from tolerances import MOVED_WORD_SECONDS, SILENT_END, WORD_AT_HALF_SPEED, WORD_P50

from qwen_megakernel.records import AudioChunk
from qwen_megakernel.text.cleaning import MAX_CHARS, visible
from qwen_megakernel.text.parts import MAX_PART_CHARS, MIN_PART_CHARS, TextPart
from qwen_megakernel.text.reading.spoken import Piece, SpokenText
from qwen_megakernel.text.request_text import RequestText
from qwen_megakernel.text.sentences import pack_sentences
from qwen_megakernel.timing import speech_timer
from qwen_megakernel.timing.alignment import align
from qwen_megakernel.timing.speech_timer import SpeechTimer
from qwen_megakernel.timing.words import TimedWord

FRAME = 1920
FIRST, SECOND = "sonat filo, tasi nof.", "Lalo fansi ota, naso tof."
TEXT = f"{FIRST} {SECOND}"


def as_written(text: str) -> RequestText:
    """Return a text that is spoken as it is written."""
    request_text = RequestText()
    list(request_text.feed(text))
    return request_text


def chunks(samples: np.ndarray, first_frame: int = 0, frames: int = 3) -> Iterator[AudioChunk]:
    """Return the samples, padded to whole frames, in chunks."""
    count = -(-len(samples) // FRAME)
    samples = np.pad(samples, (0, count * FRAME - len(samples)))
    for begin in range(0, count, frames):
        piece = samples[begin * FRAME : (begin + frames) * FRAME]
        yield AudioChunk(piece, RATE, first_frame + begin, len(piece) // FRAME, 0.0)


def spoken_parts(texts: Sequence[str]) -> tuple[list[TextPart], list[AudioChunk], list[Spelled]]:
    """Return parts that were spoken one after the other, and the chunks of all of them."""
    parts, sent, said, frame, start = [], [], [], 0, 0
    for seed, text in enumerate(texts):
        spelled = spell(text.lower(), seed=seed)
        pieces = list(chunks(spelled.samples, frame))
        parts.append(TextPart(text=text, start=start, first_frame=frame))
        frame += sum(piece.num_frames for piece in pieces)
        start += len(visible(text))
        parts[-1].end(frame, "eos")
        sent += pieces
        said.append(spelled)
    return parts, sent, said


def heard(
    parts: Sequence[TextPart],
    sent: Sequence[AudioChunk],
    text: str | RequestText,
    *,
    is_over: bool = True,
    **options: bool,
) -> SpeechTimer:
    text = as_written(text) if isinstance(text, str) else text
    timer = SpeechTimer(parts, text, deque(), **options)
    timer.received.extend([*sent, *[None] * is_over])
    return timer


def times_of(words: Sequence[TimedWord]) -> np.ndarray:
    return np.array([(word.start, word.end) for word in words])


def check(words: Sequence[TimedWord], seconds: float) -> None:
    places = [time for word in words for time in (word.start, word.end)]
    assert places == sorted(places)
    assert all(0 <= place <= seconds for place in places)
    offsets = [word.offset for word in words]
    assert offsets == sorted(set(offsets))


def test_words_of_several_parts_have_their_times():
    parts, sent, said = spoken_parts([FIRST, SECOND])
    timer = heard(parts, sent, TEXT)
    words = timer.words
    assert [word.word for word in words] == TEXT.split()
    assert [TEXT[word.offset :][: len(word.word)] for word in words] == TEXT.split()
    check(words, sum(len(chunk.samples) for chunk in sent) / RATE)
    second_s = parts[1].first_frame * FRAME / RATE
    expected = [*said[0].word_times, *((a + second_s, b + second_s) for a, b in said[1].word_times)]
    assert np.abs(times_of(words) - expected).max() < WORD_P50
    first, second = timer.segments
    assert (first.text, second.text) == (FIRST, SECOND)
    assert (first.id, second.id) == (0, 1)
    assert (first.start, first.end) == (words[0].start, words[3].end)
    assert (second.start, second.end) == (words[4].start, words[-1].end)


def test_words_are_those_that_were_written_with_the_times_of_what_was_spoken():
    written, spoken = "$5 tof", "sonat filo tof"
    pieces = (Piece("sonat filo", 0, 2), Piece(" tof", 2, 6, is_kept=True))
    parts, sent, said = spoken_parts([spoken])
    text = SimpleNamespace(written=written, spoken=SpokenText(pieces), speakers=[(0, None)])
    words = heard(parts, sent, text).words
    assert [word.word for word in words] == ["$5", "tof"]
    times = said[0].word_times
    expected = [(times[0][0], times[1][1]), times[2]]
    assert np.abs(times_of(words) - expected).max() < WORD_P50


def test_marks_alone_are_not_heard_and_not_lost():
    text = "— sonat 😀 filo !"
    parts, sent, _ = spoken_parts(["sonat filo"])
    parts[0].text = text
    words = heard(parts, sent, text).words
    assert [word.word for word in words] == text.split()
    lengths = {word.word: word.end - word.start for word in words}
    assert lengths["—"] == lengths["😀"] == lengths["!"] == 0
    assert lengths["sonat"] > 0 and lengths["filo"] > 0
    check(words, 10)


@pytest.mark.parametrize("text", ["", "…!", "   \n", "😀"])
def test_a_text_without_a_word_has_none(text: str):
    timer = SpeechTimer([], as_written(text), deque())
    assert timer.words == [] == timer.segments
    timer.received.append(None)
    assert timer.words == [] and timer.take() == ([], [])


def test_one_word_has_the_sound_and_not_the_silence_around_it():
    parts, sent, said = spoken_parts(["sonatilo"])
    (word,) = heard(parts, sent, "sonatilo").words
    assert np.abs(times_of([word]) - said[0].word_times).max() < WORD_P50


@pytest.mark.parametrize("text", ["שלום עולם, מה שלומך?", "مرحبا بالعالم", "नमस्ते दुनिया"])
def test_words_of_other_scripts_are_in_the_order_in_which_they_were_written(text: str):
    samples = spell("sonat filo naso tas").samples
    part = TextPart(text=text, first_frame=0)
    sent = list(chunks(samples))
    part.end(sum(chunk.num_frames for chunk in sent), "eos")
    words = heard([part], sent, text).words
    assert [word.word for word in words] == text.split()
    check(words, len(samples) / RATE + 1)


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_an_interrupted_speech_has_the_words_that_were_heard_and_ends_where_the_sound_did(share):
    spelled = spell(TEXT.lower())
    sent = list(chunks(spelled.samples[: int(share * len(spelled.samples))]))
    seconds = sum(len(chunk.samples) for chunk in sent) / RATE
    timer = heard([TextPart(text=TEXT, first_frame=0)], sent, TEXT)
    words = timer.words
    said = [times for times in spelled.word_times if times[0] < seconds]
    assert len(words) in range(len(said) - 1, len(said) + 2)
    assert len(words) < len(TEXT.split())
    assert [word.word for word in words] == TEXT.split()[: len(words)]
    check(words, seconds)
    assert seconds - SILENT_END < words[-1].end <= seconds
    assert timer.segments[-1].end == words[-1].end


def test_what_was_taken_never_changes_and_together_it_is_all():
    parts, sent, _ = spoken_parts([FIRST, SECOND])
    ends = [(part.end_frame, part.has_ended) for part in parts]
    for part in parts:
        part.end_frame, part.has_ended = None, False
    begun: list[TextPart] = []
    timer = SpeechTimer(begun, as_written(TEXT), deque())
    words, segments, early = [], [], 0
    for chunk in [*sent, None]:
        if chunk:
            if len(begun) < 2 and chunk.frame_index == parts[len(begun)].first_frame:
                begun.append(parts[len(begun)])
            timer.received.append(chunk)
            done = chunk.frame_index + chunk.num_frames
            if done == ends[len(begun) - 1][0]:
                begun[-1].end(done, "eos")
        else:
            timer.received.append(None)
        more_words, more_segments = timer.take()
        words, segments = words + more_words, segments + more_segments
        if chunk:
            early += len(more_words)
        assert timer.words[: len(words)] == words
    assert early >= 5  # words of the first part, and some of the second
    assert words == timer.words
    assert segments == timer.segments
    assert [word.word for word in words] == TEXT.split()
    check(words, 100)
    assert timer.take() == ([], [])


@pytest.mark.parametrize("ask", [lambda it: it.words, SpeechTimer.take], ids=["words", "take"])
def test_what_is_heard_while_words_are_sought_is_in_the_next_answer(monkeypatch, ask):
    """The server searches in one thread, while another one receives samples."""
    parts, sent, _ = spoken_parts([TEXT])
    end_frame, parts[0].end_frame, parts[0].has_ended = parts[0].end_frame, None, False
    count = len(sent) // 2
    timer = heard(parts, sent[:count], TEXT, is_over=False)
    later = sent[count:]

    def hearing(*arguments):
        if later:
            parts[0].end(end_frame, "eos")
            while later:
                timer.received.append(later.pop(0))
            timer.received.append(None)
        return align(*arguments)

    monkeypatch.setattr(speech_timer, "align", hearing)
    ask(timer)
    assert not later
    words = timer.words
    assert [word.word for word in words] == TEXT.split()
    told, segments = timer.take()
    assert segments and told == words[len(words) - len(told) :]


def test_a_speech_that_ends_while_its_text_is_read_keeps_the_words_that_were_not_read(monkeypatch):
    parts, sent, _ = spoken_parts([FIRST])
    text = as_written(FIRST[: len(FIRST) // 2])
    timer = heard(parts, sent, text, is_over=False)
    catch_up = timer.catch_up

    def catch_up_before_the_end() -> bool:
        is_over = catch_up()
        timer.received.append(None)
        return is_over

    monkeypatch.setattr(timer, "catch_up", catch_up_before_the_end)
    early, _ = timer.take()
    list(text.feed(FIRST[len(FIRST) // 2 :]))
    late, _ = timer.take()
    assert [word.word for word in early + late] == FIRST.split()


def test_at_another_speed_times_are_those_of_the_samples_that_were_received():
    parts, sent, said = spoken_parts([FIRST])
    slow = [
        AudioChunk(np.repeat(chunk.samples, 2), RATE, chunk.frame_index, chunk.num_frames, 0.0)
        for chunk in sent
    ]
    words = heard(parts, slow, FIRST).words
    assert np.abs(times_of(words) - 2 * np.array(said[0].word_times)).max() < WORD_AT_HALF_SPEED


def test_a_chunk_of_two_parts_is_cut_between_them():
    parts, sent, said = spoken_parts([FIRST, SECOND])
    samples = np.concatenate([chunk.samples for chunk in sent])
    whole = AudioChunk(samples, RATE, 0, sum(chunk.num_frames for chunk in sent), 0.0)
    words = heard(parts, [whole], TEXT).words
    second_s = parts[1].first_frame * FRAME / RATE
    assert words[3].end <= second_s < words[4].start
    assert abs(words[4].start - second_s - said[1].word_times[0][0]) < WORD_P50


def test_a_part_that_nothing_was_said_for_moves_no_word():
    text = "sonat. *** filo."
    parts, sent, said = spoken_parts(["sonat.", "filo."])
    parts[1].start = len("sonat.***")
    words = heard(parts, sent, text).words
    assert [word.word for word in words] == text.split()
    second_s = parts[1].first_frame * FRAME / RATE
    assert abs(words[2].start - second_s - said[1].word_times[0][0]) < WORD_P50


@pytest.mark.ci
def test_the_longest_text_takes_time_in_proportion():
    sentence = "Sonat filo tasi nof lalo fansi ota naso. "

    def seconds(num_chars: int) -> float:
        text = sentence * (num_chars // len(sentence))
        one = list(chunks(np.tile(spell(sentence.lower().strip()[:-1]).samples, 6)))
        parts, sent, frame, start = [], [], 0, 0
        for part in pack_sentences(text.strip(), MIN_PART_CHARS, MAX_PART_CHARS):
            parts.append(TextPart(text=part, start=start, first_frame=frame))
            start += len(visible(part))
            for chunk in one:
                piece = AudioChunk(chunk.samples, RATE, frame, chunk.num_frames, 0.0)
                sent.append(piece)
                frame += chunk.num_frames
            parts[-1].end(frame, "eos")
        assert len(heard(parts, sent, text).words) == len(text.split())
        return cpu_seconds(lambda: heard(parts, sent, text).words)

    assert seconds(MAX_CHARS) < 8 * seconds(MAX_CHARS // 4)


def pause(seconds: float, frame: int) -> AudioChunk:
    silence = np.zeros(round(seconds * RATE), np.int16)
    return AudioChunk(silence, RATE, frame, 0, 0.0, pause_s=seconds)


def test_words_beside_a_pause_end_before_it_and_begin_behind_it():
    parts, sent, _ = spoken_parts([FIRST, SECOND])
    boundary = parts[1].first_frame
    before = [chunk for chunk in sent if chunk.frame_index < boundary]
    behind = sent[len(before) :]
    told = [pause(0.5, 0), *before, pause(2.0, boundary), pause(1.0, boundary), *behind]
    words = heard(parts, told, TEXT, are_heard_apart=True).words
    plain = heard(parts, sent, TEXT).words
    count = len(FIRST.split())
    assert [word.word for word in words] == TEXT.split()
    first_s = sum(len(chunk.samples) for chunk in before) / RATE
    for index, (word, other) in enumerate(zip(words, plain, strict=True)):
        moved_s = 0.5 + (3.0 if index >= count else 0.0)
        moved = pytest.approx((other.start + moved_s, other.end + moved_s), abs=MOVED_WORD_SECONDS)
        assert (word.start, word.end) == moved
    assert words[count - 1].end <= 0.5 + first_s and words[count].start >= 3.5 + first_s


def test_a_part_with_a_sound_of_its_own_settles_when_its_sound_has_ended():
    parts, sent, _ = spoken_parts([FIRST, SECOND])
    boundary = parts[1].first_frame
    before = [chunk for chunk in sent if chunk.frame_index < boundary]
    timer = heard(parts, before, TEXT, is_over=False, are_heard_apart=True)
    known, _ = timer.take()
    timer.received.append(pause(1.0, boundary))
    words, segments = timer.take()
    assert [word.word for word in known + words] == FIRST.split()[:-1]  # one may still grow
    assert not segments
