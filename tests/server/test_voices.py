"""Voices over HTTP: cloned for one request, uploaded, listed, used, deleted; and errors."""

import asyncio
import base64
import io
import os
import struct
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile
from fake_engine import FakeEngine
from fixtures import module_fixture, module_value
from live_server import assert_error, serving
from tiny_speech import tiny_engine
from waveforms import voice_like

from qwen_megakernel import Voice
from qwen_megakernel.errors import RecordingError
from qwen_megakernel.server.error_responses import ApiError
from qwen_megakernel.server.settings import ServerSettings
from qwen_megakernel.server.voices import OPENAI_VOICES, VoiceStore, _decode

VOICES = "/v1/audio/voices"
DETECT = "/v1/audio/detect"
TEXT = "Hello there."
RATE = 24000


def recording(seconds=2.0, rate=RATE, container="WAV", **options):
    file = io.BytesIO()
    soundfile.write(file, voice_like(seconds, rate), rate, format=container, **options)
    return file.getvalue()


folder = module_value(lambda tmp_path_factory: tmp_path_factory.mktemp("voices"))
tts = module_fixture(lambda folder: tiny_engine("tiny-random-base", voices=folder))
live = module_fixture(
    lambda tts, folder: serving(tts, voices=folder, allow_upload=True, max_upload_bytes=300_000)
)


def upload(live, data=None, name="mario", **fields):
    fields = {"name": name, "consent": "yes, 2026-11-20"} | fields
    files = {"audio_sample": ("sample.wav", recording() if data is None else data, "audio/wav")}
    return live.client.post(VOICES, data=fields, files=files)


# ---- for one request -----------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["", "data:audio/wav;base64,"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.encodebytes])  # with line breaks
def test_a_recording_in_the_request_is_cloned(live, tts, head, encode):
    data = recording()
    body = {"ref_audio": head + encode(data).decode(), "response_format": "pcm"}
    answer = live.speak(TEXT, voice="alloy", seed=3, max_new_tokens=5, **body)
    assert answer.headers["x-warning"] == "voice is ignored: ref_audio is given"
    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    voice = tts.create_voice(samples, rate=rate)
    expected = tts.synthesize(TEXT, voice=voice, seed=3, max_frames=4, first_chunk_frames=1)
    heard = np.frombuffer(answer.content, "<i2") / 32768
    assert np.array_equal(heard, expected.audio.astype(float))


def test_a_recording_with_its_transcript_is_used_in_context(live, tts):
    data, transcript = recording(), "these are a few words"
    body = {"ref_audio": base64.b64encode(data).decode(), "ref_text": transcript}
    body |= {"seed": 3, "max_new_tokens": 5, "stream_format": "sse", "include_codes": True}
    answers = [live.speak(TEXT, **body), live.speak(TEXT, **body, x_vector_only_mode=True)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].text != answers[1].text
    answer = live.speak(TEXT, ref_audio="A", x_vector_only_mode=False)
    assert assert_error(answer, 400)["param"] == "ref_text"


def test_the_same_recording_again_is_remembered_and_counted(live, tts):
    body = {"ref_audio": base64.b64encode(recording(2.5)).decode(), "max_new_tokens": 3}
    before = tts.reference_cache_hits
    for _ in range(2):
        assert live.speak(TEXT, **body).status_code == 200
    assert tts.reference_cache_hits == before + 1
    line = f"tts_reference_cache_hits_total {float(before + 1)}"
    assert line in live.client.get("/metrics").text


# ---- fields of errors ----------------------------------------------------------------------------


def test_an_error_names_the_clients_field(live, folder):
    (folder / "torn.voice.safetensors").write_bytes(b"torn")
    for field, body in {
        "voice": {"voice": "torn"},
        "speaker_embedding": {"speaker_embedding": [0.5, 0.5]},
        "style": {"style": "happy"},
        "input": {"text_format": "ssml", "input": "<speak>"},
    }.items():
        assert assert_error(live.speak(**({"input": TEXT} | body)), 400)["param"] == field
    mixed = live.speak(TEXT, voice="torn+" * 10 + "torn")
    assert assert_error(mixed, 400)["param"] == "voice"
    ref_audio = base64.b64encode(recording()).decode()
    with tiny_engine() as speakers, serving(speakers) as other:  # whose model cannot clone
        answer = other.speak(TEXT, ref_audio=ref_audio)
        assert assert_error(answer, 400, "task_error")["param"] == "ref_audio"
    (folder / "torn.voice.safetensors").unlink()


# ---- kept ----------------------------------------------------------------------------------------


def test_an_uploaded_voice_is_listed_used_and_deleted(live, folder):
    answer = upload(live, ref_text="these are a few words")
    assert answer.status_code == 201
    told = {"id": "mario", "name": "mario", "object": "voice", "uploaded": True}
    assert answer.json()["voice"] == told
    assert Voice.load(folder / "mario.voice.safetensors").transcript == "these are a few words"
    listing = live.client.get(VOICES).json()
    assert [voice["id"] for voice in listing["voices"]] == ["mario"]
    assert listing["uploaded_voices"] == listing["voices"]
    for options in ({}, {"x_vector_only_mode": True}):
        answer = live.speak(TEXT, voice="mario", max_new_tokens=4, **options)
        assert answer.status_code == 200 and "x-warning" not in answer.headers
    assert upload(live).status_code == 409
    assert live.client.delete(f"{VOICES}/mario").json() == {"success": True, "name": "mario"}
    assert live.client.delete(f"{VOICES}/mario").status_code == 404
    assert live.speak(TEXT, voice="mario").status_code == 400
    assert not list(folder.iterdir())


@pytest.mark.parametrize("container", ["FLAC", "OGG", "MP3"])
def test_recordings_of_the_usual_kinds_are_taken(live, container):
    assert upload(live, recording(container=container), name=container).status_code == 201
    live.client.delete(f"{VOICES}/{container}")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 400),
        (b"no audio at all", 400),
        (recording()[:30], 400),
        (recording(0.5), 400),
        (np.zeros(2 * RATE, "<i2").tobytes(), 400),  # samples without a header
        (recording(61, 8000, "FLAC", subtype="PCM_S8"), 400),
        (recording(container="AIFF"), 400),
        (recording(rate=7), 400),
        (bytes(400_000), 413),
    ],
    ids=["empty", "text", "cut", "short", "raw", "long", "aiff", "7 Hz", "large"],
)
def test_what_is_no_recording_of_a_voice_is_refused(live, folder, data, status):
    facts = assert_error(upload(live, data), status)
    message = facts["message"]
    assert message and "BytesIO" not in message and ".." not in message
    if status == 400:
        assert (facts["param"], facts["code"]) == ("audio_sample", "recording_error")
    assert not list(folder.iterdir())


@pytest.mark.parametrize(("path", "field"), [(VOICES, "audio_sample"), (DETECT, "audio")])
@pytest.mark.parametrize("data", [b"\xff\xf1 as AAC begins", recording(container="AIFF")])
def test_a_refused_file_gets_the_list_of_those_that_are_read(live, path, field, data):
    fields = {"name": "mario", "consent": "yes"} if path == VOICES else None
    answer = live.client.post(path, files={field: ("x.aac", data)}, data=fields)
    hint = "Send WAV, FLAC, OGG or MP3, with 8 channels at most; FFmpeg makes one of any other file"
    assert assert_error(answer, 400, "recording_error")["message"].endswith(f"\n{hint}.")


def test_hours_in_a_small_file_are_refused_and_only_a_minute_is_decoded(live):
    """An hour of silence as FLAC: some kilobytes, 350 MB in memory."""
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", RATE, 1, format="FLAC") as writer:
        for _ in range(360):
            writer.write(np.zeros(10 * RATE, np.int16))
    assert len(file.getvalue()) < 300_000
    facts = assert_error(upload(live, file.getvalue()), 400)
    assert "at least 61 s long" in facts["message"]


def test_a_header_that_lies_about_its_length_is_read_to_the_limit_at_most(live):
    data = bytearray(recording())
    data[40:44] = struct.pack("<I", 2**31)
    assert upload(live, bytes(data)).status_code in (201, 400)
    live.client.delete(f"{VOICES}/mario")


def test_a_small_file_is_no_gigabyte_in_memory():
    """A minute of silence in 8 channels at 384 kHz: 300 KB, 700 MB as samples."""
    file = io.BytesIO()
    silence = np.zeros((384_000, 8), np.int16)
    with soundfile.SoundFile(file, "w", 384_000, 8, format="FLAC") as writer:
        for _ in range(60):
            writer.write(silence)
    tracemalloc.start()
    samples, rate = _decode(file.getvalue())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(samples), rate) == (60 * 384_000, 384_000)
    assert peak < 250e6
    with pytest.raises(RecordingError, match="768000 samples per second"):
        _decode(recording(1.0, 768_000))


def test_of_uploads_of_one_name_at_the_same_time_one_wins(live, folder):
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: upload(live, name="twin").status_code, range(4)))
    assert sorted(answers) == [201, 409, 409, 409]
    assert live.client.delete(f"{VOICES}/twin").status_code == 200
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "name",
    ["../x", "a/b", ".hidden", "a\\b", "C:x", "a" * 81, "", "a\0b", "漢" * 80],  # 240 bytes
)
def test_a_name_that_is_no_file_name_is_refused(live, folder, name):
    assert assert_error(upload(live, name=name), 400)["param"] == "name"
    assert not list(folder.iterdir()) and not (folder.parent / "x.voice.safetensors").exists()


def test_a_name_that_means_a_mix_is_refused(live, folder):
    for name in ("anna(2)+ben", "anna + ben"):
        facts = assert_error(upload(live, name=name), 400)
        assert facts["param"] == "name" and "means a mix of voices" in facts["message"]
    assert not list(folder.iterdir())
    assert upload(live, name="c++").status_code == 201
    assert live.client.delete(f"{VOICES}/c++").status_code == 200


@pytest.mark.parametrize("hidden", [*"\x1b\x7f\x85\u2028\u202e\u200d\u00a0\u3000\ue000\U000e0041"])
def test_a_name_with_a_character_that_cannot_be_seen_is_refused(live, folder, hidden):
    for name in (f"ok{hidden}1", f"ok{hidden}", f"{hidden}ok"):
        facts = assert_error(upload(live, name=name), 400)
        assert facts["param"] == "name"
        assert facts["message"].replace("\n", "").isprintable()
    assert not list(folder.iterdir())


def test_names_that_look_alike_are_one_name(live, folder):
    answer = upload(live, name=" Zoe\u0308 ")
    assert answer.json()["voice"]["name"] == "Zo\u00eb"
    assert [path.name for path in folder.iterdir()] == ["Zo\u00eb.voice.safetensors"]
    for name in ("Zo\u00eb", "zoe\u0308", "ZO\u00cb ", " Zo\u00eb"):
        assert assert_error(upload(live, name=name), 409, "voice_exists")
        assert live.speak(TEXT, voice=name, max_new_tokens=3).status_code == 200
    assert live.client.delete(f"{VOICES}/ ZOE\u0308 ").status_code == 200
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["alloy", "Alloy", "ALLOY ", "  alloy"])
def test_the_names_clients_send_unasked_cannot_be_taken(live, name):
    assert name.lower().strip() in OPENAI_VOICES
    assert live.speak(TEXT, voice=name, max_new_tokens=3).status_code == 200
    assert upload(live, name=name).status_code == 409


@pytest.mark.parametrize("missing", ["name", "consent", "audio_sample"])
def test_a_field_that_is_missing_is_named(live, missing):
    fields = {"name": "luigi", "consent": "yes"}
    files = {"audio_sample": ("s.wav", recording(), "audio/wav")}
    fields.pop(missing, None)
    files = {key: value for key, value in files.items() if key != missing} or {"x": b""}
    answer = live.client.post(VOICES, data=fields, files=files)
    assert assert_error(answer, 400)["param"] == missing


@pytest.mark.parametrize(("path", "field"), [(VOICES, "audio_sample"), (DETECT, "audio")])
def test_a_name_in_place_of_a_file_gets_curls_form_of_a_file(live, path, field):
    texts = {"name": "luigi", "consent": "yes", field: "s.wav"}
    answer = live.client.post(path, files={key: (None, value) for key, value in texts.items()})
    facts = assert_error(answer, 400, "invalid_value")
    assert facts["message"] == f"{field} is text; it must be a file, in curl -F {field}=@FILE."


def test_a_file_in_place_of_a_name_is_named(live):
    files = {"name": ("n.txt", b"mario"), "audio_sample": ("s.wav", recording())}
    answer = live.client.post(VOICES, data={"consent": "yes"}, files=files)
    facts = assert_error(answer, 400, "invalid_value")
    assert facts["message"] == "name is a file; it must be a string."


@pytest.mark.parametrize("head", ["multipart/form-data", "multipart/form-data; boundary=b"])
def test_a_body_that_is_no_form_is_refused_in_one_sentence(live, head):
    answer = live.client.post(VOICES, content=b"no form", headers={"Content-Type": head})
    message = assert_error(answer, 400)["message"]
    assert message.endswith("multipart data.") or message.endswith("in multipart.")
    assert ".." not in message


def test_the_owners_voices_are_used_and_listed_but_not_deleted(live, folder, tts):
    path = folder / "owner.voice.safetensors"
    tts.create_voice(voice_like(2.0, RATE), rate=RATE, name="owner").save(path)
    assert live.client.get(VOICES).json()["uploaded_voices"] == []
    answer = live.client.delete(f"{VOICES}/owner")
    facts = assert_error(answer, 403, "voice_not_uploaded")
    assert "was not uploaded" in facts["message"] and path.is_file()
    assert live.speak(TEXT, voice="owner", max_new_tokens=3).status_code == 200
    path.write_bytes(path.read_bytes()[:100])  # a damaged file has no mark, either
    assert live.client.delete(f"{VOICES}/owner").status_code == 403
    message = assert_error(live.speak(TEXT, voice="owner"), 400)["message"]
    assert message.startswith("owner.voice.safetensors is damaged") and str(folder) not in message
    path.unlink()


def test_an_uploaded_voice_keeps_the_consent_in_a_file_that_others_cannot_read(live, folder):
    before = os.umask(0)
    try:
        assert upload(live, name="luigi", consent="Luigi, by letter").status_code == 201
    finally:
        os.umask(before)
    path = folder / "luigi.voice.safetensors"
    assert path.stat().st_mode & 0o777 == 0o600
    assert Voice.load(path).consent == "Luigi, by letter" and Voice.load(path).is_uploaded
    assert live.client.delete(f"{VOICES}/luigi").status_code == 200
    for consent in ("x" * 1001, " ", "\n"):
        answer = upload(live, name="luigi", consent=consent)
        assert assert_error(answer, 400)["param"] == "consent"
    assert not list(folder.iterdir())


def test_uploads_have_a_limit_that_the_owners_voices_do_not_count_for(tts, folder):
    owner = folder / "owner.voice.safetensors"
    tts.create_voice(voice_like(2.0, RATE), rate=RATE).save(owner)
    with serving(tts, voices=folder, allow_upload=True, max_uploads=2) as live:
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda name: upload(live, name=name), "abcd"))
        refused = [answer for answer in answers if answer.status_code != 201]
        for answer in refused:
            facts = assert_error(answer, 409, "too_many_voices")
            assert "--max-uploads" in facts["message"]
        kept = live.client.get(VOICES).json()["uploaded_voices"]
        assert len(kept) == len(refused) == 2
        for voice in kept:
            assert live.client.delete(f"{VOICES}/{voice['id']}").status_code == 200
        assert upload(live, name="e").status_code == 201
        live.client.delete(f"{VOICES}/e")
    owner.unlink()


async def test_an_upload_during_the_count_of_another_counts(tts, folder, monkeypatch):
    """It begins and ends while the other one's list of the folder is under way."""
    settings = ServerSettings(voices=folder, allow_upload=True, max_uploads=1)
    store, list_files = VoiceStore(tts, settings), VoiceStore._uploaded
    is_listed, is_kept = threading.Event(), threading.Event()

    def list_slowly(store: VoiceStore) -> set[str]:
        found = list_files(store)
        if not is_listed.is_set():
            is_listed.set()
            is_kept.wait(1)
        return found

    async def keep(name: str) -> bool:
        try:
            await store.upload(recording(), name, None, "yes")
        except ApiError as error:
            assert error.code == "too_many_voices"
            return False
        is_kept.set()
        return True

    monkeypatch.setattr(VoiceStore, "_uploaded", list_slowly)
    first = asyncio.create_task(keep("a"))
    await asyncio.to_thread(is_listed.wait)
    assert sorted([await keep("b"), await first]) == [False, True]
    store.delete("a" if first.result() else "b")


def test_the_error_about_an_unknown_voice_lists_some_of_500_with_the_closest():
    names = [f"voice{index}" for index in range(498)]
    with serving(FakeEngine(voices=(*names, "Anna", "ben"))) as live:
        answer = live.speak(voice="ana")
    what, hint = assert_error(answer, 400, "unknown_voice")["message"].splitlines()
    assert what == (
        'Unknown voice "ana". This model has: Anna, voice0, voice1, voice2, voice3, voice4, voice5,'
        " voice6, voice7, voice8 and 490 more."
    )
    assert hint == "GET /v1/audio/voices lists the names."


def test_paths_cannot_be_deleted(live, tmp_path):
    for name in ("..%2Fx", "%2e%2e%2fx", "nobody"):
        assert live.client.delete(f"{VOICES}/{name}").status_code == 404


def test_uploads_are_off_unless_they_are_allowed_and_the_refusal_says_how(tmp_path):
    (tmp_path / "mario.voice.safetensors").touch()
    with serving(FakeEngine(), voices=tmp_path) as live:
        for answer in (
            upload(live),
            live.client.post(VOICES, json={"name": "mario"}),
            live.client.delete(f"{VOICES}/mario"),
        ):
            facts = assert_error(answer, 403, "uploads_not_allowed")
            assert facts["message"].endswith("Start it with --allow-upload --voices DIR.")
    assert [path.name for path in tmp_path.iterdir()] == ["mario.voice.safetensors"]
