"""The web page in a real browser, headless, against a live server.

The tests record every buffer that the page gives to Web Audio, and the time at which it starts.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import waveforms
from fake_engine import STORY, FakeEngine
from live_server import serving
from page_driver import (
    CHROMIUM,
    FLAGS,
    WRITE_DOWN,
    download,
    expect,
    figure,
    finished,
    pcm,
    pixels,
    played,
    playwright,
    slow_clock,
    speak,
    waveform_width,
)
from tiny_speech import tiny_engine
from tolerances import PAGE_BEHIND_THE_LAST, PAGE_ON_A_SAMPLE, PAGE_SECONDS
from waiting import wait_until

from qwen_megakernel import TTSEngine
from qwen_megakernel.errors import EngineBusy, GenerationError
from qwen_megakernel.server.app import PAGE

Open = Callable[..., Any]
pytestmark = pytest.mark.ci  # a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium is installed (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """open_page(engine, **settings): the loaded page of a server, which must log nothing to the
    console, and request nothing from other hosts."""
    asked: list[str] = []
    complaints: list[str] = []

    def open_(engine: Any = None, **settings: Any) -> Any:
        stopping = servers.enter_context(contextlib.ExitStack())
        server = stopping.enter_context(serving(engine or FakeEngine(), **settings))
        page = contexts.enter_context(browser.new_context()).new_page()
        page.set_default_timeout(20_000)
        page.add_init_script(WRITE_DOWN)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda it: complaints.append(it.text) if it.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        page.server, page.stop_server, page.asked = server, stopping.close, asked
        page.goto(server.url)
        expect(page.locator("#model")).to_have_text(server.engine.files.name)
        return page

    with contextlib.ExitStack() as servers, contextlib.ExitStack() as contexts:
        yield open_
    assert not [url for url in asked if not url.startswith(("http://127.0.0.1", "blob:"))]
    # The browser itself logs refused requests; the page must log nothing else.
    assert not [line for line in complaints if "Failed to load resource" not in line]


# ---- hearing -----------------------------------------------------------------------------------


def test_speech_is_played_whole_and_without_a_gap_to_the_sample(open_page: Open) -> None:
    page = open_page(engine := FakeEngine())
    slow_clock(page)
    speak(page)
    finished(page)
    pieces = played(page)
    assert pcm(pieces) == engine.streams[0].sent and len(pieces) > 3
    assert {piece["rate"] for piece in pieces} == {24000}
    starts = np.array([piece["when"] * 24000 for piece in pieces])
    lengths = [len(piece["samples"]) for piece in pieces]
    np.testing.assert_allclose(starts, np.round(starts), atol=PAGE_ON_A_SAMPLE, rtol=0)
    np.testing.assert_allclose(np.diff(starts), lengths[:-1], atol=PAGE_BEHIND_THE_LAST, rtol=0)
    assert page.inner_text("#gaps") == "0"
    samples = download(page)
    assert samples.astype("<i2").tobytes() == engine.streams[0].sent


def test_sound_begins_long_before_the_speech_is_complete(open_page: Open) -> None:
    engine = FakeEngine(rtf=0.8)
    page = open_page(engine)
    speak(page, STORY * 20)
    expect(page.locator("#first")).to_contain_text("ms")
    wait_until(lambda: waveform_width(page) > 0)
    early = waveform_width(page)
    assert played(page) and engine.speaking
    wait_until(lambda: waveform_width(page) > early)  # the drawing grows
    assert engine.speaking
    page.keyboard.press("Escape")


def test_late_chunks_leave_gaps_that_are_counted(open_page: Open) -> None:
    page = open_page(FakeEngine(rtf=1.6))
    speak(page, "Hello there, how are you today?")
    finished(page)
    assert figure(page, "gaps") >= 1 and figure(page, "rtf") > 1


def test_the_line_that_sounds_is_marked(open_page: Open) -> None:
    lines = ["Hello there, my old friend.", "How are you today?", "Fine!"]
    page = open_page(FakeEngine(letter_s=0.1))
    speak(page, " ".join(lines))
    expect(page.locator("#lines")).to_have_text(" ".join(lines))
    marked = page.locator("#lines .now")
    for line in lines[:2]:
        expect(marked).to_have_text(line)
    finished(page)
    expect(marked).to_have_count(0)
    page.get_by_role("button", name="Play again").click()
    expect(marked).to_have_text(lines[0])


def test_figures_are_those_of_the_speech_which_can_be_played_again(open_page: Open) -> None:
    engine = FakeEngine(first_delay_s=0.2, silent_frames=3)
    page = open_page(engine)
    slow_clock(page)
    speak(page)
    finished(page)
    seconds = len(engine.streams[0].sent) / 48000
    assert figure(page, "length") == pytest.approx(seconds, abs=PAGE_SECONDS)
    whole_ms = 1000 * figure(page, "rtf") * figure(page, "length")
    assert 200 <= figure(page, "first") < whole_ms + 50  # rounded
    assert figure(page, "heard") >= figure(page, "first") + 3 * 80
    assert 0 < figure(page, "rtf") < 1
    assert "seconds" in page.locator("#waveform").get_attribute("aria-label")
    expect(page.locator("#status")).to_contain_text("Finished")
    page.get_by_role("button", name="Play again").click()
    assert pcm(played(page)) == 2 * engine.streams[0].sent and len(engine.streams) == 1


def test_codes_are_drawn_a_column_for_each_frame(open_page: Open) -> None:
    # The engine that hums counts its frames in the first code; its other codes are 0.
    page = open_page(engine := FakeEngine())
    speak(page, "Hello there, how are you?")
    finished(page)
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()  # playback is over
    frames = engine.streams[0].num_frames
    top, rest = pixels(page, "codes", 1 / 32), pixels(page, "codes", 1 / 2)
    assert len(np.unique(rest, axis=0)) == 1
    assert len(np.unique(top, axis=0)) == frames
    assert top[-1].sum() > top[0].sum() + 200  # later frames are brighter
    assert page.locator("#codes").get_attribute("aria-label") == f"Codes, {frames} frames"


def test_a_speech_is_saved_in_another_format_with_the_same_words(open_page: Open) -> None:
    page = open_page(engine := FakeEngine())
    page.locator("summary").click()
    page.fill("#lexicon", "Nguyen")
    speak(page, "Nguyen is here.")
    expect(page.locator("#error")).to_contain_text("has no “=”")
    page.fill("#lexicon", "Nguyen = win\n\nhere = a = b")
    speak(page, "Nguyen is here.")
    finished(page)
    first = engine.streams[0]
    assert first.text.spoken == "win is a = b."
    samples = download(page, "flac")
    assert len(engine.streams) == 2 and engine.streams[1].text.spoken == first.text.spoken
    assert engine.streams[1].seed == first.seed
    assert samples.astype("<i2").tobytes() == engine.streams[1].sent


def test_the_page_of_endpoints_is_rendered(open_page: Open) -> None:
    page = open_page()
    page.asked.clear()
    page.goto(f"{page.server.url}/docs")
    expect(page.locator("#swagger-ui")).to_contain_text("/v1/audio/speech/stream")
    expect(page.locator(".opblock-summary-path").first).to_be_visible()
    assert all(url.startswith((page.server.url, "data:")) for url in page.asked)


def test_stop_ends_the_request_and_keeps_what_was_spoken(open_page: Open) -> None:
    engine = FakeEngine(rtf=0.5)
    page = open_page(engine)
    speak(page, STORY * 20)
    expect(page.locator("#first")).to_contain_text("ms")
    page.keyboard.press("Escape")
    wait_until(lambda: engine.streams[0].cancelled)
    assert engine.streams[0].num_frames < engine.streams[0]._frames_in_text()
    expect(page.locator("#status")).to_have_text("Stopped.")
    samples = download(page)
    assert engine.streams[0].sent.startswith(samples.astype("<i2").tobytes())
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()


def test_stop_is_disabled_though_the_browser_reports_the_end_of_a_buffer_late(open_page) -> None:
    page = open_page()
    page.evaluate(
        "Object.defineProperty(AudioScheduledSourceNode.prototype, 'onended', { set() {} })"
    )
    speak(page, "Hello.")
    finished(page)
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()


# ---- asking ------------------------------------------------------------------------------------


def test_every_setting_reaches_the_engine(open_page: Open) -> None:
    page = open_page(engine := FakeEngine())
    page.get_by_text("More settings").click()
    page.get_by_label("Voice", exact=True).select_option("vivian")
    page.get_by_label("Language").select_option("German")
    for label, value in {
        "How to speak": "calmly",
        "Seed": "18446744073709551615",  # the largest seed
        "Temperature": "0.7",
        "Top-k": "20",
        "Top-p": "0.9",
        "Repetition penalty": "1.1",
        "Speed": "0.5",
        "Volume (dB)": "-6",
        "Silence before, at most (ms)": "60",
        "Silence after, at most (ms)": "200",
        "Longest speech (seconds)": "0.9",
    }.items():
        page.get_by_label(label, exact=True).fill(value)
    speak(page)
    finished(page)
    request = engine.streams[0].request
    expect(page.locator("#end")).to_contain_text("limit")
    expect(page.locator("#end")).to_contain_text("18446744073709551615")
    assert (request.voice, request.language, request.instruct) == ("vivian", "german", "calmly")
    assert request.seed == 2**64 - 1
    assert request.max_frames == 6  # 0.9 s and a little, at half the speed
    sampling = request.sampling.talker
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.7, 20, 0.9)
    assert sampling.repetition_penalty == 1.1
    assert (request.sound.speed, request.sound.volume) == (0.5, -6)
    assert (request.sound.leading_silence, request.sound.trailing_silence) == (60, 200)


def test_a_box_says_whether_numbers_are_read_as_words(open_page: Open) -> None:
    page = open_page(engine := FakeEngine())
    page.get_by_text("More settings").click()
    box = page.get_by_label("Read numbers")
    expect(box).not_to_be_checked()  # off by default for this model
    for _ in range(2):
        speak(page, "5 kg")
        finished(page)
        box.check()
    assert [stream.text.spoken for stream in engine.streams] == ["5 kg", "five kilograms"]


def test_the_format_of_the_text_can_be_chosen(open_page: Open) -> None:
    page = open_page(engine := FakeEngine())
    page.get_by_text("More settings").click()
    for name in ("plain", "pauses", "ssml"):
        page.get_by_label("Text format").select_option(name)
        speak(page, "Hi.")
        finished(page)
    assert [stream.text_format for stream in engine.streams] == ["plain", "pauses", "ssml"]


def test_errors_are_shown_and_the_next_request_works(open_page: Open) -> None:
    engine = FakeEngine(refusal=EngineBusy("8 of 8 places in the queue are taken."))
    page = open_page(engine)
    speak(page)
    expect(page.get_by_role("alert")).to_contain_text("8 of 8 places in the queue")
    engine.refusal = None
    engine.fail_after, engine.error = 3, GenerationError("The grid broke.")
    speak(page)
    expect(page.get_by_role("alert")).to_have_text("The grid broke.")
    engine.fail_after = None
    speak(page)
    finished(page)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_server_that_is_gone_is_named_and_the_status_is_true(open_page: Open) -> None:
    page = open_page()
    speak(page)
    finished(page)
    page.stop_server()
    speak(page)
    alert = page.get_by_role("alert")
    expect(alert).to_have_text("The server does not answer. Is it still running?")
    expect(page.locator("#status")).to_have_text("Failed.")


def test_what_the_model_cannot_read_is_told_until_the_next_request(open_page: Open) -> None:
    with tiny_engine("demo-voice", max_frames=6) as engine:
        page = open_page(engine)
        warning = page.locator("#warning")
        expect(warning).to_be_hidden()
        speak(page, "Say 你好 there 𞤀, <break/>")
        finished(page)
        expect(warning).to_contain_text("The text has Chinese characters (你好), which this model")
        expect(warning).to_contain_text("Adlam letters (𞤀)")
        expect(warning).to_contain_text("markup (<break/>), which is not obeyed but read aloud; ")
        expect(warning).to_contain_text("text_format ssml obeys it")
        speak(page, "Hello.")
        expect(warning).to_be_hidden()
        finished(page)
        expect(warning).to_be_hidden()
        speak(page, "Wait [pause 1s] here.")
        finished(page)
        expect(warning).to_contain_text("text_format pauses obeys [pause 1.5s]")
        speak(page, "")  # for which the browser asks
        expect(warning).to_be_hidden()


@pytest.mark.parametrize("can_clone", [True, False])
def test_the_form_for_cloning_is_there_where_the_model_can_clone(open_page, can_clone) -> None:
    engine = FakeEngine()
    engine.can_clone = can_clone
    page = open_page(engine)
    expect(page.get_by_label("Voice", exact=True)).to_have_value("aiden")  # all is loaded
    expect(page.locator("#clone")).to_be_visible(visible=can_clone)
    expect(page.get_by_role("heading", name="Clone a voice")).to_be_visible(visible=can_clone)


def test_an_api_key_can_be_given(open_page: Open, browser: Any) -> None:
    engine = FakeEngine()
    with serving(engine, api_key="secret") as server:
        page = browser.new_page()
        page.goto(server.url)
        expect(page.get_by_role("alert")).to_contain_text("API key")
        page.get_by_text("More settings").click()
        page.get_by_label("API key").fill("secret")
        page.get_by_label("API key").blur()
        expect(page.locator("#model")).to_have_text("hum")
        speak(page, "Hello.")
        finished(page)
        page.close()


@pytest.fixture(scope="module")
def base_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TTSEngine, Path]]:
    voices = tmp_path_factory.mktemp("voices")
    with tiny_engine("tiny-random-base", max_frames=24, voices=voices) as engine:
        yield engine, voices


@pytest.mark.parametrize("allow_upload", [True, False])
def test_a_recording_is_cloned_and_speaks(open_page, base_engine, allow_upload, tmp_path) -> None:
    engine, voices = base_engine
    recording = tmp_path / "mario.wav"
    soundfile.write(recording, waveforms.voice_like(2, 16000), 16000)
    page = open_page(engine, voices=voices, allow_upload=allow_upload)
    page.get_by_label("Recording of one speaker").set_input_files(recording)
    page.get_by_label("Name").fill("mario")
    page.get_by_role("button", name="Add voice").click()
    expect(page.locator("#clone-status")).to_have_text("")  # nothing happens without consent
    page.get_by_label("The speaker agrees").check()
    page.get_by_role("button", name="Add voice").click()
    expect(page.locator("#clone-status")).to_contain_text("“mario” is chosen")
    assert page.get_by_label("Voice", exact=True).input_value() == "mario"
    assert engine.voices == (["mario"] if allow_upload else [])
    page.get_by_text("More settings").click()
    page.get_by_label("Seed", exact=True).fill("5")
    speak(page, "Hello.")
    finished(page)
    voice = "mario" if allow_upload else engine.create_voice(recording)
    expected = engine.stream("Hello.", voice=voice, seed=5)
    assert pcm(played(page)) == b"".join(chunk.pcm16 for chunk in expected)
    for file in voices.iterdir():
        file.unlink()


# ---- for everyone ------------------------------------------------------------------------------


def test_nothing_is_wider_than_the_screen(open_page: Open) -> None:
    page = open_page()
    page.get_by_text("More settings").click()
    speak(page, "Hello.")
    finished(page)
    for width in (320, 375, 768, 1280):
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for control in page.locator("button:visible, a:visible, select, input:visible").all():
            box = control.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width
            if control.get_attribute("type") != "checkbox":
                assert box["height"] >= 43.9  # high enough for a thumb


def test_the_keyboard_alone_is_enough(open_page: Open) -> None:
    page = open_page(engine := FakeEngine())
    order, here = [], "document.activeElement"
    for _ in range(5):
        page.keyboard.press("Tab")
        order.append(page.evaluate(f"{here}.id || {here}.tagName"))
        # The focus is visible.
        assert page.evaluate(f"getComputedStyle({here}).outlineStyle") != "none"
    assert order == ["text", "voice", "language", "SUMMARY", "speak"]
    page.keyboard.press("Enter")
    finished(page)
    page.get_by_label("Text", exact=True).focus()
    page.keyboard.press("Control+Enter")
    wait_until(lambda: len(engine.streams) == 2)
    finished(page)


def test_a_screen_reader_gets_every_text(open_page: Open) -> None:
    page = open_page()
    page.get_by_text("More settings").click()
    speak(page, "Hello.")
    finished(page)
    tree = page.locator("body").aria_snapshot()
    controls = page.locator("input:visible, select, textarea, button:visible, canvas").all()
    for control in controls:
        name = control.evaluate(
            "(it) => it.labels?.[0]?.innerText || it.getAttribute('aria-label') || it.innerText"
        )
        assert name.strip()
    for line in (
        'heading "Qwen3-TTS, streamed" [level=1]',
        'heading "Speak a text" [level=2]',
        'textbox "Text"',
        'combobox "Voice"',
        'button "Speak"',
        'img "Waveform, 0.6 seconds"',
        'img "Codes, 8 frames"',
        'button "Recording of one speaker, 1 to 60 seconds"',
        'checkbox "The speaker agrees that this voice is cloned."',
        'status: "Finished: 0.6 seconds',
    ):
        assert line in tree, tree
    assert 'lang="en"' in PAGE.read_text(encoding="utf-8")
