"""The built-in random checkpoints: readable by the official package, varied, reproducible."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tolerances import FEW_WEIGHTS, MANY_WEIGHTS

from qwen_megakernel.checkpoint import random_weights
from qwen_megakernel.checkpoint.random_configs import RECIPES, model_config

TINY = [name for name in RECIPES if name.startswith("tiny")]
TEXTS = ("Hello there.", "The quick brown fox jumps.", "One two three four.", "Is it not?")


@pytest.mark.parametrize("name", TINY)
def test_the_official_loader_finds_every_tensor_and_no_more(name, model_folder, official_model):
    model = official_model(name).model
    assert model.tts_model_size == ("1b7" if name.endswith("1.7b") else "0b6")
    codec = model.speech_tokenizer.model
    for module, path in ((model, "."), (codec, "speech_tokenizer")):
        written = load_file(model_folder(name) / path / "model.safetensors")
        loaded = module.state_dict()
        assert loaded.keys() == written.keys()
        for key, tensor in written.items():
            assert torch.equal(loaded[key], tensor.float()), key


def test_the_official_processor_keeps_the_qwen_regex_and_the_template_ids(official_model):
    tokenizer = official_model("tiny-random").processor.tokenizer
    config = model_config("tiny-random")
    start, end = config["im_start_token_id"], config["im_end_token_id"]
    prompt = tokenizer("<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>assistant\n")[
        "input_ids"
    ]
    role = [start, config["assistant_token_id"], 198]
    assert prompt == [*role, *tokenizer("Hello")["input_ids"], end, 198, *role]
    assert not getattr(tokenizer, "fix_mistral_regex", False)
    # Mistral's regex would cut at the change of case, and the merge could not happen.
    assert tokenizer.tokenize("iPhone") == ["iPhone"]
    special = ("<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
    first = config["tts_pad_token_id"]
    assert tokenizer.convert_tokens_to_ids(special) == [first, first + 1, first + 2]


@pytest.mark.ci  # the official package speaks them
def test_greedy_decoding_varies_and_ends(official_model):
    model = official_model("tiny-random-design")
    greedy = {"do_sample": False, "subtalker_dosample": False}
    greedy |= {"language": "english", "max_new_tokens": 60}
    lengths = []
    for text in TEXTS:
        audio, rate = model.generate_voice_design(text=text, instruct="calm", **greedy)
        lengths.append(len(audio[0]) // 1920)
        assert rate == 24000
        assert 0.05 < audio[0].std() < 0.3
        assert audio[0].min() > -1 and audio[0].max() < 1
    assert min(lengths) >= 2
    assert sum(length < 59 for length in lengths) >= 2, lengths
    assert len(set(lengths)) > 1, lengths


def test_same_seed_same_bytes_and_another_seed_other_weights(tmp_path):
    def weights(folder: str, seed: int) -> bytes:
        random_weights.write_checkpoint("tiny-random", tmp_path / folder, seed)
        return (tmp_path / folder / "model.safetensors").read_bytes()

    first = weights("a", 7)
    assert first == weights("b", 7)
    assert first != weights("c", 8)


def test_weights_have_the_scales_of_the_recipe(model_folder):
    folder = model_folder("tiny-random")
    model = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in model.values()} == {torch.bfloat16}

    def std(name: str) -> float:
        return model[name].float().std().item()

    assert std("talker.model.text_embedding.weight") == pytest.approx(1.0, rel=MANY_WEIGHTS)
    assert std("talker.model.codec_embedding.weight") == pytest.approx(0.3, rel=MANY_WEIGHTS)
    assert std("talker.model.layers.0.self_attn.q_proj.weight") == pytest.approx(
        128**-0.5, rel=MANY_WEIGHTS
    )
    down_proj = std("talker.model.layers.0.mlp.down_proj.weight")
    assert down_proj == pytest.approx(0.5 * 256**-0.5, rel=MANY_WEIGHTS)
    head = model["talker.codec_head.weight"].float()
    rows = head.norm(dim=1)
    assert rows.mean().item() == pytest.approx(3.0, rel=MANY_WEIGHTS)
    assert rows[2150].item() > 1.5 * rows.mean().item()
    norm = model["talker.model.norm.weight"].float()
    assert norm.mean().item() == pytest.approx(1.0, abs=FEW_WEIGHTS)
    assert 0.05 < norm.std().item() < 0.15

    codec = load_file(folder / "speech_tokenizer" / "model.safetensors")
    assert {tensor.dtype for tensor in codec.values()} == {torch.float32}
    usage = codec["decoder.quantizer.rvq_rest.vq.layers.3._codebook.cluster_usage"]
    rows = codec["decoder.quantizer.rvq_rest.vq.layers.3._codebook.embedding_sum"]
    dead = usage == 0
    assert 0.02 < dead.float().mean() < 0.1
    embedding = rows / usage.clamp(min=1e-5)[:, None]
    assert embedding[dead].std().item() == pytest.approx(
        embedding[~dead].std().item(), rel=FEW_WEIGHTS
    )


def test_no_row_of_a_large_tensor_repeats():
    noise = random_weights._Noise("random-0.6b", 0)
    # Row m is row 0 again when m * width is a multiple of the block.
    for width in (1024, 2048, 3072, 6144):
        assert len(noise.block) // math.gcd(len(noise.block), width) > 151936
    noise.block = noise.block[:1021]  # another prime, so that it wraps every 16 rows
    rows = np.stack([noise.take(64) for _ in range(500)])
    assert len(np.unique(rows, axis=0)) == 500
