"""benchmarks/roofline.py: counts compared with real tensors, floors with sums by hand."""

from math import prod

import pytest
import torch
from tolerances import PUBLISHED_COUNT, nearly

from benchmarks import page_parts, roofline
from benchmarks.measures import cpu_decode
from qwen_megakernel.checkpoint.codec_config import parse_codec_config
from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.frame_weights import frame_weights
from qwen_megakernel.checkpoint.random_configs import model_config, speech_tokenizer_config
from qwen_megakernel.checkpoint.tensor_shapes import model_tensors
from qwen_megakernel.decoders import quantization
from qwen_megakernel.decoders.cpu.decoder import CpuDecoder
from qwen_megakernel.decoders.slots import DecoderSizes
from tools import precision_table


def config_of(name):
    return parse_model_config(model_config(name))


@pytest.mark.parametrize(("name", "megabytes"), [("random-0.6b", 3309), ("random-1.7b", 5258)])
def test_the_weights_of_a_frame_are_those_of_the_design(name, megabytes):
    assert round(roofline.weight_bytes(config_of(name), "bf16") / 1e6) == megabytes


@pytest.mark.parametrize("name", ["tiny-random", "tiny-random-1.7b", "random-1.7b"])
def test_parts_are_counted_as_the_checkpoint_holds_them(name):
    config = config_of(name)
    shapes = model_tensors(config)
    passes = config.talker.num_code_groups - 1

    def held(prefix, word):
        names = [n for n in shapes if n.startswith(prefix) and word in n and n.endswith(".weight")]
        return sum(prod(shapes[n]) for n in names if len(shapes[n]) == 2)

    weights = frame_weights(config)
    assert weights.talker == held("talker.model.layers.", "_proj")
    assert weights.codec_head == held("talker.codec_head", "")
    assert weights.predictor == passes * held("talker.code_predictor.model.layers.", "_proj")
    assert weights.lm_heads == held("talker.code_predictor.lm_head.", "")
    assert weights.projection == held("talker.code_predictor.small_to_mtp_projection", "")


def test_int8_halves_the_layers_and_leaves_the_heads():
    config = config_of("random-0.6b")
    weights = frame_weights(config)
    bf16, talker, both = (
        roofline.weight_bytes(config, name) for name in ("bf16", "int8-talker", "int8")
    )
    assert bf16 - talker == weights.talker and talker - both == weights.predictor
    assert roofline.weight_bytes(config, "fp32") == 2 * bf16


def test_the_cache_grows_with_streams_and_positions():
    config = config_of("random-0.6b")
    assert roofline.cache_bytes(config, 2, 1, 1) == 114_688
    assert roofline.cache_bytes(config, 2, 16, 250) == 4000 * 114_688
    more = roofline.frame_bytes(config, 2, 2, 100) - roofline.frame_bytes(config, 2, 1, 100)
    assert more == 100 * 114_688


def test_the_barriers_are_those_of_the_stage_table():
    config = config_of("random-0.6b")
    assert [roofline.frame_barriers(config, streams=n) for n in (1, 2)] == [474, 549]
    text = " ".join((page_parts.ROOT / "csrc" / "README.md").read_text(encoding="utf-8").split())
    assert "= 474 barriers" in text and "or more streams it has 549 barriers" in text


def test_floors_are_bytes_over_bandwidth_or_products_over_arithmetic():
    gpu = roofline.Gpu("round", 1000, 100, "")
    config = config_of("random-0.6b")
    assert roofline.milliseconds(2e9, 1000) == nearly(2.0)
    weights = frame_weights(config).talker
    short, long = (roofline.prompt_floor_ms(config, n, gpu) for n in (10, 2000))
    assert short == nearly(2 * weights / 1e9)  # ms at 1000 GB/s
    assert long == nearly(2 * weights * 2000 / 100e12 * 1000)


def test_the_vocoders_weights_are_counted():
    """114 million parameters in all, of which the 16 codebooks are 2048 entries of 256 each."""
    codec = parse_codec_config(speech_tokenizer_config("random-0.6b"))
    weights = roofline.vocoder_weights(codec)
    assert weights == pytest.approx(114e6 - 16 * 2048 * 256, rel=PUBLISHED_COUNT)
    assert weights == roofline.vocoder_weights(
        parse_codec_config(speech_tokenizer_config("random-1.7b"))
    )


def test_every_gpu_names_its_source():
    assert all(gpu.source and gpu.gb_per_s > 0 and gpu.tflops > 0 for gpu in roofline.GPUS)
    assert len({gpu.name for gpu in roofline.GPUS}) == len(roofline.GPUS)


@pytest.mark.parametrize("precision", ["bf16", "int8", "int8-groups", "int8-groups-heads"])
def test_the_native_decoder_counts_the_same_bytes(precision):
    """It also counts the scale of each row, a hundredth of the bytes at this width."""
    config = precision_table.narrow_config()
    checkpoint = precision_table.random_checkpoint(config)
    if precision != "bf16":
        checkpoint.talker = quantization.quantize(checkpoint.talker, precision)
    sizes = DecoderSizes(1, 32, torch.device("cpu"), torch.float32)
    held = cpu_decode.weight_bytes(CpuDecoder(checkpoint, sizes, num_threads=1))
    counted = roofline.weight_bytes(config, precision)
    assert held == counted if precision != "int8" else counted < held < 1.02 * counted
