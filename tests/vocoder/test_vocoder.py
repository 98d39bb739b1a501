"""The incremental vocoder against the official decoder of the speech tokenizer."""

from typing import Any

import numpy as np
import pytest
import torch
from fixtures import module_value
from tolerances import AUDIO_F32, AUDIO_F64
from torch import Tensor
from vocoder_toys import (
    TOY,
    TOY_SAMPLES,
    assert_positions_do_not_matter,
    codec_config,
    decode_in_chunks,
    fill,
    random_codes,
    random_split,
)

from qwen_megakernel.checkpoint.random_configs import speech_tokenizer_config
from qwen_megakernel.errors import UsageError
from qwen_megakernel.vocoder.vocoder import Vocoder

RELEASED = speech_tokenizer_config("random-0.6b")["decoder_config"]


def official_decoder(decoder_config: dict[str, Any]) -> Any:
    """The official decoder with random weights under which every branch changes the samples."""
    from qwen_tts.core.tokenizer_12hz import modeling_qwen3_tts_tokenizer_v2 as modeling
    from transformers.modeling_utils import no_init_weights

    config = modeling.Qwen3TTSTokenizerV2DecoderConfig(**decoder_config)
    config._attn_implementation = "eager"
    with no_init_weights():
        decoder = modeling.Qwen3TTSTokenizerV2Decoder(config).eval()
    fill({name: weight.data for name, weight in decoder.named_parameters()})
    return decoder


@torch.inference_mode()
def official_pcm(decoder: Any, codes: Tensor) -> Tensor:
    return decoder(codes.long().transpose(1, 2))[:, 0]


def assert_same_audio(actual: Tensor, expected: Tensor, tolerance: float = AUDIO_F32) -> None:
    assert actual.shape == expected.shape
    assert expected.std() > 0.02, "the test would hear nothing"
    assert (actual - expected).abs().max() <= tolerance


decoder = module_value(lambda official_package: official_decoder(TOY))
vocoder = module_value(lambda decoder: Vocoder(codec_config(TOY), decoder.state_dict()))


exact_vocoder = module_value(
    lambda decoder: Vocoder(codec_config(TOY), decoder.state_dict(), dtype=torch.float64)
)


def test_whole_decode_equals_official(vocoder, decoder):
    codes = random_codes(vocoder, 2, 60)
    pcm = decode_in_chunks(vocoder, codes, [60])
    assert pcm.dtype == torch.float32
    assert_same_audio(pcm, official_pcm(decoder, codes))


@pytest.mark.parametrize("name", ["tiny-random", "demo-voice"])
def test_loaded_checkpoint_decodes_as_official(name, load_checkpoint, official_model):
    loaded = load_checkpoint(name)
    vocoder = Vocoder(loaded.codec_config, loaded.codec_decoder)
    codes = random_codes(vocoder, 30)
    pcm = torch.from_numpy(vocoder.decode(codes))
    assert pcm.dtype == torch.float32
    decoder = official_model(name).model.speech_tokenizer.model.decoder
    assert_same_audio(pcm[None], official_pcm(decoder, codes[None]))


@pytest.mark.parametrize("seed", range(6))
def test_any_split_gives_the_samples_of_the_whole(vocoder, decoder, seed):
    codes = random_codes(vocoder, 1, 90, seed=seed)
    sizes = random_split(90, (1, 2, 5, 12, 33, 60)[seed], seed)
    pcm = decode_in_chunks(vocoder, codes, sizes)
    assert_same_audio(pcm, official_pcm(decoder, codes))


def test_any_split_is_exact_but_for_rounding(exact_vocoder):
    codes = random_codes(exact_vocoder, 1, 90)
    whole = decode_in_chunks(exact_vocoder, codes, [90])
    for largest in (1, 4, 40):
        pcm = decode_in_chunks(exact_vocoder, codes, random_split(90, largest, largest))
        assert_same_audio(pcm, whole, AUDIO_F64)


def test_past_300_frames_equals_one_forward_pass(vocoder, decoder):
    """The official wrapper restarts its decoder every 300 frames; its forward pass does not."""
    codes = random_codes(vocoder, 1, 420)
    for largest in (1, 25, 420):
        pcm = decode_in_chunks(vocoder, codes, random_split(420, largest, 1))
        assert_same_audio(pcm, official_pcm(decoder, codes))


def test_longer_input_never_changes_the_past(exact_vocoder):
    codes = random_codes(exact_vocoder, 40)
    whole = exact_vocoder.decode(codes)
    for num_frames in (1, 2, 7, 31, 39):
        pcm = exact_vocoder.decode(codes[:num_frames])
        assert np.abs(pcm - whole[: len(pcm)]).max() <= AUDIO_F64


def test_every_chunk_has_1920_samples_a_frame(load_checkpoint):
    loaded = load_checkpoint("tiny-random")
    vocoder = Vocoder(loaded.codec_config, loaded.codec_decoder)
    state = vocoder.new_state()
    for num_frames in range(1, 11):
        pcm = vocoder.step(random_codes(vocoder, 1, num_frames), [state])
        assert pcm.shape == (1, num_frames * 1920)


@pytest.mark.parametrize("num_frames", [1, 2, 3, 4, 10, 45])
def test_company_never_changes_a_sample(vocoder, num_frames):
    codes = random_codes(vocoder, 5, 2 * num_frames)
    together = decode_in_chunks(vocoder, codes, [num_frames] * 2)
    for row in range(5):
        alone = decode_in_chunks(vocoder, codes[row : row + 1], [num_frames] * 2)
        assert torch.equal(alone[0], together[row])


def test_streams_at_different_positions_share_a_batch(vocoder):
    assert_positions_do_not_matter(vocoder)


# The toy sees 41 past frames: 15 through the convolutions behind the transformer, 3 * 8 through its
# attention, 2 through pre_conv.
@pytest.mark.parametrize("num_reference", [1, 5, 15, 17, 40, 41, 150])
def test_warm_equals_decoding_the_reference(exact_vocoder, num_reference):
    codes = random_codes(exact_vocoder, num_reference + 20)
    reference, new = codes[:num_reference], codes[num_reference:]
    stepped, warmed = exact_vocoder.new_state(), exact_vocoder.new_state()
    exact_vocoder.step(reference[None], [stepped])
    exact_vocoder.warm(reference.numpy(), warmed)
    torch.testing.assert_close(warmed, stepped, rtol=0, atol=AUDIO_F64)
    pcm = exact_vocoder.step(new[None], [warmed])
    assert_same_audio(pcm, exact_vocoder.step(new[None], [stepped]), AUDIO_F64)


def test_warm_replaces_the_official_cut(vocoder, decoder):
    """The official code decodes the reference before the speech, and cuts its samples off."""
    codes = random_codes(vocoder, 70)
    state = vocoder.new_state()
    vocoder.warm(codes[:50], state)
    pcm = torch.cat([vocoder.step(frame[None], [state]) for frame in codes[50:].split(1)], dim=1)
    assert_same_audio(pcm, official_pcm(decoder, codes[None])[:, 50 * TOY_SAMPLES :])


def test_loud_audio_is_clipped_as_officially(official_package):
    decoder = official_decoder(TOY)
    decoder.decoder[-1].conv.weight.data *= 30
    vocoder = Vocoder(codec_config(TOY), decoder.state_dict())
    codes = random_codes(vocoder, 1, 10)
    pcm = decode_in_chunks(vocoder, codes, [3, 7])
    assert pcm.min() == -1 and pcm.max() == 1
    assert_same_audio(pcm, official_pcm(decoder, codes))


def test_half_precision_tensors_are_widened_first(decoder):
    halves = {name: weight.half() for name, weight in decoder.state_dict().items()}
    widened = {name: weight.float() for name, weight in halves.items()}
    codecs = [Vocoder(codec_config(TOY), tensors) for tensors in (halves, widened)]
    codes = random_codes(codecs[0], 12)
    assert np.array_equal(codecs[0].decode(codes), codecs[1].decode(codes))


@pytest.mark.parametrize("code", [-1, 24])
def test_codes_outside_the_codebook_are_refused_before_any_work(vocoder, code):
    codes = random_codes(vocoder, 2, 6)
    codes[1, 4, 2] = code
    states = [vocoder.new_state(), vocoder.new_state()]
    with pytest.raises(UsageError, match=rf"Code {code} is outside 0 \.\. 23"):
        vocoder.step(codes, states)
    with pytest.raises(UsageError, match=rf"Code {code} "):
        vocoder.warm(codes[1], states[0])
    assert all(torch.equal(state, vocoder.new_state()) for state in states)


@pytest.mark.parametrize("shape", [(1, 6, 4), (1, 6, 2), (1, 0, 3), (6, 3)])
def test_codes_of_another_shape_are_refused(vocoder, shape):
    with pytest.raises(UsageError, match="must be frames of 3 codes"):
        vocoder.step(torch.zeros(shape, dtype=torch.int32), [vocoder.new_state()])


def test_codes_that_are_no_integers_are_refused(vocoder):
    with pytest.raises(UsageError, match="must be integers"):
        vocoder.step(torch.zeros(1, 2, 3), [vocoder.new_state()])
    for codes in (None, "abc", [["a"]], [[1, 2, 3], [1]], [[2**70]], np.array(["a"])):
        with pytest.raises(UsageError, match=r"Codes are .*must be integers, 3 for each frame"):
            vocoder.decode(codes)


def test_bfloat16_is_refused(decoder):
    with pytest.raises(UsageError, match=r"cannot run in torch\.bfloat16"):
        Vocoder(codec_config(TOY), decoder.state_dict(), dtype=torch.bfloat16)


def test_a_state_has_the_counted_size(official_package):
    """It has 135 232 inputs of convolutions, 1 163 264 keys and values, and a number of keys."""
    with torch.device("meta"):
        decoder = official_decoder(RELEASED)
        vocoder = Vocoder(codec_config(RELEASED), decoder.state_dict(), device="meta")
    state = vocoder.new_state()
    assert state.shape == (135_232 + 1_163_264 + 1,)


@pytest.mark.ci  # seconds of shapes that are large
def test_released_shapes_equal_official_in_any_split(official_package):
    decoder = official_decoder(RELEASED)
    vocoder = Vocoder(codec_config(RELEASED), decoder.state_dict())
    codes = random_codes(vocoder, 2, 12)
    expected = official_pcm(decoder, codes)
    assert_same_audio(decode_in_chunks(vocoder, codes, [1, 2, 9]), expected)
    alone = decode_in_chunks(vocoder, codes[:1], [5, 4, 3])
    assert_same_audio(alone, expected[:1])
