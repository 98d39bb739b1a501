"""Scripts for the official package run here with a changed import, and give the same speech."""

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
import waveforms
from fixtures import module_fixture
from tiny_speech import tiny_engine
from tolerances import PCM16

from qwen_megakernel.compat import FasterQwen3TTS, Qwen3TTSModel
from qwen_megakernel.errors import RecordingError, TaskError, UsageError
from qwen_megakernel.official_api import voice_of

GREEDY = "max_new_tokens=9, do_sample=False, subtalker_dosample=False"
IMPORTS = {"official": "from qwen_tts import", "ours": "from qwen_megakernel.compat import"}

LOAD = """
import torch
{package} Qwen3TTSModel

model = Qwen3TTSModel.from_pretrained(
    MODEL, device_map="cpu", dtype=torch.float32, attn_implementation="eager"
)
supported = model.get_supported_languages(), model.get_supported_speakers()
"""
SCRIPTS = {
    "clone in context": (
        "tiny-random-base",
        f"""
results = [
    model.generate_voice_clone(
        text="Hello there, you.", language="English", ref_audio=REFERENCE, ref_text=TRANSCRIPT,
        {GREEDY},
    ),
    model.generate_voice_clone(
        "It is cold today.", None, REFERENCE, TRANSCRIPT, False, None, True, {GREEDY}
    ),
]
""",
    ),
    "one prompt for many texts": (
        "tiny-random-base",
        f"""
prompt = model.create_voice_clone_prompt(ref_audio=REFERENCE, ref_text=TRANSCRIPT)
assert [item.icl_mode for item in prompt] == [True] and prompt[0].ref_code.dtype == torch.int64
x_vector = model.create_voice_clone_prompt(SAMPLES, x_vector_only_mode=True)
results = [
    model.generate_voice_clone(
        text=["Hello there.", "It is cold today, you said."], language=["Auto", "french"],
        voice_clone_prompt=prompt, {GREEDY},
    ),
    model.generate_voice_clone("Hello.", voice_clone_prompt=x_vector, {GREEDY}),
    model.generate_voice_clone(
        "Hello.",
        voice_clone_prompt=dict(
            ref_code=[None], ref_spk_embedding=[x_vector[0].ref_spk_embedding],
            x_vector_only_mode=[True], icl_mode=[False],
        ),
        {GREEDY},
    ),
]
""",
    ),
    "speakers": (
        "tiny-random-1.7b",
        f"""
results = [
    model.generate_custom_voice(
        text=["Hello there.", "It is cold."], language=["Chinese", "English"],
        speaker=["Dylan", "ryan"], instruct=["Speak slowly.", ""], {GREEDY},
    ),
    model.generate_custom_voice(
        "Hello there.", "vivian", non_streaming_mode=False, {GREEDY}
    ),
]
""",
    ),
    "small model drops instruct": (
        "tiny-random",
        f"""
results = [model.generate_custom_voice("Hello.", "serena", instruct="Shout.", {GREEDY})]
""",
    ),
    "design": (
        "tiny-random-design",
        f"""
results = [
    model.generate_voice_design("Hello there.", "A calm old man.", "German", {GREEDY}),
    model.generate_voice_design(["Hello.", "It is."], instruct="", {GREEDY}),
]
""",
    ),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A recording of 2 s, at a rate that is not the model's."""
    path = tmp_path_factory.mktemp("reference") / "mario.wav"
    soundfile.write(path, waveforms.voice_like(2, 16000), 16000)
    return path


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(name, marks=pytest.mark.ci if name.startswith(("small", "design")) else [])
        for name in SCRIPTS
    ],
)
def test_a_script_says_the_same_with_both_packages(
    official_package, model_folder, reference, script
):
    name, body = SCRIPTS[script]
    outcomes = {}
    for package, statement in IMPORTS.items():
        namespace = {
            "MODEL": str(model_folder(name)),
            "REFERENCE": str(reference),
            "SAMPLES": soundfile.read(reference, dtype="float32"),
            "TRANSCRIPT": "It is cold today.",
        }
        exec(LOAD.format(package=statement) + body, namespace)
        outcomes[package] = namespace["results"], namespace["supported"]
        if package == "ours":
            namespace["model"].close()
    (official, official_supported), (ours, our_supported) = outcomes.values()
    assert our_supported == official_supported
    for (wavs, rate), (our_wavs, our_rate) in zip(official, ours, strict=True):
        assert rate == our_rate == 24000 and len(wavs) == len(our_wavs)
        for wav, our_wav in zip(wavs, our_wavs, strict=True):
            lost = len(our_wav) - len(wav)  # the official cut after a reference
            assert our_wav.dtype == wav.dtype == np.float32 and len(our_wav) and 0 <= lost <= 1
            assert np.abs(our_wav[lost:] - wav).max() <= PCM16


base = module_fixture(
    lambda: Qwen3TTSModel.from_pretrained(
        "tiny-random-base", backend="torch", dtype="float32", warmup=False
    )
)


def test_an_engines_own_names_of_options_are_taken_too(cache_folder):
    for kind, own in ((Qwen3TTSModel, {"device": "cpu"}), (FasterQwen3TTS, {"max_frames": 9})):
        with kind.from_pretrained("tiny-random", warmup=False, **own) as model:
            assert model.max_frames == own.get("max_frames", 1000) and model.device.type == "cpu"


def test_n_new_tokens_are_at_most_one_frame_fewer(base, reference):
    prompt = base.create_voice_clone_prompt(str(reference), x_vector_only_mode=True)
    for limit in (2, 5):
        wavs, _ = base.generate_voice_clone(
            "It is cold today, and so on.", voice_clone_prompt=prompt, max_new_tokens=limit, seed=1
        )
        assert len(wavs[0]) <= (limit - 1) * 1920
    with pytest.raises(UsageError, match="max_new_tokens is 1"):
        base.generate_voice_clone("Hi.", voice_clone_prompt=prompt, max_new_tokens=1)


def test_every_kind_of_recording_is_the_same_voice(base, reference, monkeypatch):
    data = reference.read_bytes()
    monkeypatch.setattr("urllib.request.urlopen", lambda url, **_: io.BytesIO(data))
    kinds = [
        str(reference),
        reference,
        soundfile.read(reference),
        f"data:audio/wav;base64,{base64.b64encode(data).decode()}",
        base64.b64encode(data).decode(),  # which has slashes, as all but short data has
        "https://example.com/mario.wav",
    ]
    items = base.create_voice_clone_prompt(kinds, x_vector_only_mode=True)
    for item in items[1:]:
        assert torch.equal(item.ref_spk_embedding, items[0].ref_spk_embedding)


def test_a_short_recording_as_base64_is_no_path(base):
    file = io.BytesIO()
    soundfile.write(file, waveforms.voice_like(1.1, 4000), 4000, "IMA_ADPCM", format="WAV")
    text = base64.b64encode(file.getvalue()).decode()
    assert "/" in text and len(text) < 4096  # shorter than the longest path
    assert base.create_voice_clone_prompt(text, x_vector_only_mode=True)
    with pytest.raises(RecordingError, match="no such file"):
        base.create_voice_clone_prompt("a/" * 200 + "b.wav", x_vector_only_mode=True)


def test_prompts_of_arrays_and_of_tensors_with_gradients_are_taken(base, reference):
    (item,) = base.create_voice_clone_prompt(str(reference), "It is cold today.")
    codes, row = item.ref_code, item.ref_spk_embedding
    others = [
        replace(item, ref_code=codes.numpy(), ref_spk_embedding=row.numpy()),
        replace(item, ref_code=codes.tolist(), ref_spk_embedding=row.tolist()),
        replace(item, ref_spk_embedding=row.clone().requires_grad_()),
    ]
    for other in others:
        assert voice_of(other) == voice_of(item)


def test_what_the_official_package_refuses_is_refused(base, reference):
    with tiny_engine() as custom:
        with pytest.raises(TaskError):
            custom.generate_voice_clone("Hi.", ref_audio=str(reference), ref_text="It is.")
        with pytest.raises(ValueError, match="speaker"):
            custom.generate_custom_voice("Hi.", "")
        with pytest.raises(ValueError, match="Unknown voice"):
            custom.generate_custom_voice("Hi.", "nobody")
    refused = [
        lambda: base.generate_custom_voice("Hi.", "ryan"),
        lambda: base.generate_voice_design("Hi.", "calm"),
        lambda: base.generate_voice_clone("Hi."),
        lambda: base.create_voice_clone_prompt(str(reference)),
        lambda: base.create_voice_clone_prompt([str(reference)] * 2, ["a", "b", "c"]),
        lambda: base.create_voice_clone_prompt(np.zeros(9), x_vector_only_mode=True),
        lambda: base.generate_voice_clone(
            ["Hi.", "Ho.", "Ha."], ["english", "german"], str(reference), x_vector_only_mode=True
        ),
        lambda: base.generate_voice_clone(
            "Hi.", ref_audio=str(reference), x_vector_only_mode=True, num_beams=4
        ),
        lambda: base.generate_voice_clone(
            "Hi.", voice_clone_prompt={"icl_mode": [True], "ref_spk_embedding": [torch.zeros(128)]}
        ),
    ]
    for call in refused:
        with pytest.raises(ValueError):
            call()
    for options, message in (
        ({"ref_audio": str(reference), "max_new_tokens": "9"}, "max_new_tokens is '9'"),
        (
            {"ref_audio": str(reference), "x_vector_only_mode": [True] * 2},
            "2 entries; .* have 1[.]",
        ),
        ({"voice_clone_prompt": 5}, "voice_clone_prompt has 5; it must be what create_voice_clone"),
        ({"voice_clone_prompt": {}}, "it needs ref_spk_embedding"),
    ):
        with pytest.raises(UsageError, match=message):
            base.generate_voice_clone("Hi.", **({"x_vector_only_mode": True} | options))
    for wrong in ("A" * 400, "A" * 401, "data:audio/wav;base64"):
        with pytest.raises(RecordingError, match="base64"):
            base.create_voice_clone_prompt(wrong, x_vector_only_mode=True)
    with pytest.raises(RecordingError, match="cannot be fetched"):
        base.create_voice_clone_prompt("https://[example.com", x_vector_only_mode=True)


FASTER = {"backend": "torch", "device": "cpu", "dtype": "float32", "warmup": False}


def test_scripts_of_the_faster_package_run(cache_folder, reference):
    """The package needs a GPU, so prompts, chunks and defaults are compared with this engine."""
    text, greedy = "It is cold today.", {"do_sample": False}
    theirs = greedy | {"subtalker_dosample": False, "max_new_tokens": 12, "language": "English"}
    with FasterQwen3TTS.from_pretrained("tiny-random-base", max_seq_len=64, **FASTER) as model:
        audio = {"text": text, "ref_audio": str(reference)}
        chunks = list(
            model.generate_voice_clone_streaming(**audio, ref_text="", chunk_size=4, **theirs)
        )
        whole, rate = model.generate_voice_clone(**audio, **theirs)
        in_context, _ = model.generate_voice_clone(
            "It is cold.", "English", reference, text, xvec_only=False, max_new_tokens=4, seed=3
        )
        ours = greedy | {"subtalker_do_sample": False, "max_frames": 11, "language": "english"}
        voice = model.create_voice(reference)
        expected = model.synthesize(text, voice=voice, text_feed="full", **ours)
        assert len(in_context[0]) and rate == 24000
        with pytest.raises(UsageError, match="Samples need their rate"):
            model.generate_voice_clone(text, "English", np.zeros(48000))
    assert [figures["chunk_steps"] for _, _, figures in chunks[:-1]] == [4] * (len(chunks) - 1)
    assert [figures["is_final"] for _, _, figures in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1][2]["total_steps_so_far"] == len(expected.codes)
    assert np.array_equal(np.concatenate([audio for audio, _, _ in chunks]), expected.audio)
    assert np.array_equal(whole[0], expected.audio)


def test_speakers_and_designs_of_the_faster_package_run(cache_folder):
    with FasterQwen3TTS.from_pretrained("tiny-random", **FASTER) as model:
        wavs, _ = model.generate_custom_voice("Hi.", "ryan", "English", max_new_tokens=4, seed=1)
        expected = model.synthesize(
            "Hi.", voice="ryan", language="english", text_feed="stepwise", max_frames=3, seed=1
        )
        assert np.array_equal(wavs[0], expected.audio)
        with pytest.raises(TaskError):
            model.generate_voice_design("Hi.", "calm", "English")
        with pytest.raises(UsageError):
            model.generate_voice_clone("Hi.", "English")
    with FasterQwen3TTS.from_pretrained("tiny-random-design", **FASTER) as model:
        chunks = model.generate_voice_design_streaming(
            "Hi.", "A calm man.", "English", max_new_tokens=4, seed=1
        )
        assert sum(figures["chunk_steps"] for _, _, figures in chunks) <= 3
