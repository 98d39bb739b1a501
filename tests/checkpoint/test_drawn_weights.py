"""Random weights that are drawn when they are loaded equal the written ones, without files."""

import pytest
import torch
from tiny_speech import TEXT, VOICE, tiny_engine
from tolerances import DRAWN_SPREAD

from qwen_megakernel.checkpoint import loading, random_weights
from qwen_megakernel.checkpoint.random_weights import EOS_GAIN, LOGIT_STD
from qwen_megakernel.errors import ModelFilesError


@pytest.fixture(scope="module", params=["tiny-random", "tiny-random-base-1.7b"])
def both(request, tmp_path_factory):
    """The same model drawn and written, and the folder of the drawn one's files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QWEN_MEGAKERNEL_CACHE", str(tmp_path_factory.mktemp("cache")))
        drawn, written = (
            loading.load(loading.resolve(name))
            for name in ("drawn:" + request.param, request.param)
        )
    return drawn, written


def test_they_are_the_tensors_of_the_written_checkpoint(both):
    drawn, written = both
    assert drawn.config == written.config and drawn.sampling == written.sampling
    for ours, theirs in (
        (drawn.talker, written.talker),
        (drawn.codec_decoder, written.codec_decoder),
    ):
        kinds = [{name: (t.shape, t.dtype) for name, t in each.items()} for each in (ours, theirs)]
        assert kinds[0] == kinds[1]


def test_they_have_its_scales(both):
    for ours, theirs in zip(*((each.talker, each.codec_decoder) for each in both), strict=True):
        for name, tensor in theirs.items():
            if tensor.numel() >= 512:
                spread, wanted = ours[name].float().std(), tensor.float().std()
                assert abs(spread - wanted) <= DRAWN_SPREAD * wanted, name


def test_the_end_of_speech_is_louder_and_dead_rows_stay_dead(both):
    drawn, _ = both
    head = drawn.talker["codec_head.weight"].float()
    rows = head.norm(dim=1) / LOGIT_STD
    assert rows[drawn.config.talker.codec_eos_id] > EOS_GAIN * 0.7 * rows.mean()
    (usage,) = {n for n in drawn.codec_decoder if "rvq_first" in n and n.endswith("cluster_usage")}
    dead = drawn.codec_decoder[usage][random_weights.DEAD_ROW_EVERY - 1]
    assert float(dead) == 0


def test_no_file_of_weights_is_written(both):
    drawn, _ = both
    assert not list(drawn.files.folder.rglob("*.safetensors"))
    assert (drawn.files.folder / "vocab.json").exists()


def test_the_same_name_draws_the_same_weights(cache_folder):
    first, second = (loading.load(loading.resolve("drawn:tiny-random")).talker for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_engine_speaks_with_them(cache_folder):
    with tiny_engine("drawn:tiny-random") as tts:
        assert len(tts.synthesize(TEXT, voice=VOICE, seed=1, max_frames=4).codes) == 4


def test_a_native_decoder_gets_them_in_host_memory_beside_a_gpu_too(cache_folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    test_an_engine_speaks_with_them(cache_folder)  # with CUDA's generator it would fail here


def test_only_random_models_are_drawn():
    with pytest.raises(ModelFilesError, match="no built-in model"):
        loading.resolve("drawn:demo-voice")
