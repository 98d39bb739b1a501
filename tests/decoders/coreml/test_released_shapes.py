"""A checkpoint of the released shapes becomes Core ML models, which equal the plain decoder.

.ci/run runs it alone, because it takes minutes, and 12 GB of memory.
"""

import resource
import subprocess
import sys
from dataclasses import replace

import mil
import numpy as np
import pytest
import torch
from commands import ROOT
from tolerances import COREML_RELEASED_AUDIO, COREML_RELEASED_F16

from qwen_megakernel.decoders import quantization
from qwen_megakernel.decoders.coreml import decoder as coreml_decoder
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.vocoder.vocoder import Vocoder

MODEL, NUM_POSITIONS, CHUNK_FRAMES = "random-0.6b", 64, 4
MAX_MEMORY_GIB = 20


def distance(found: np.ndarray | torch.Tensor, expected: torch.Tensor) -> float:
    error = torch.as_tensor(found).flatten() - expected.flatten()
    return float(error.abs().max() / expected.abs().max())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_checkpoint_of_released_shapes_is_converted_and_computes(load_checkpoint, tmp_path):
    loaded = load_checkpoint(MODEL)
    command = (
        *("export", "coreml", MODEL, "--to", tmp_path, "--weights", "int8"),
        *("--positions", NUM_POSITIONS, "--chunk-frames", CHUNK_FRAMES),
    )
    subprocess.run(
        [sys.executable, "-m", "qwen_megakernel", *map(str, command)], cwd=ROOT, check=True
    )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    assert peak < MAX_MEMORY_GIB

    weights = quantization.quantize(loaded.talker, "int8-rows")
    sizes = DecoderSizes(1, NUM_POSITIONS, torch.device("cpu"), torch.float32)
    plain = PlainDecoder(replace(loaded, talker=weights), sizes)
    torch.manual_seed(0)
    x = torch.randn(3, loaded.config.talker.stack.hidden_size)

    talker = coreml_decoder.CoreMLStack(mil.load(tmp_path, "CodeDecoder"))
    found = talker.run(x, talker.new_cache(NUM_POSITIONS), 0)
    hidden = plain.talker.forward(x, plain.talker.new_cache(NUM_POSITIONS), 0)[-1]
    assert 0 < distance(found["hidden"], hidden) < COREML_RELEASED_F16
    assert distance(found["logits"], torch.mv(plain.codec_head, hidden)) < COREML_RELEASED_F16

    predictor = coreml_decoder.CoreMLStack(mil.load(tmp_path, "MultiCodeDecoder"))
    logits = predictor.run(x[:2], predictor.new_cache(0), 0)["logits"]
    assert 0 < distance(logits[0], plain._predict(x[:2], 0, 1)) < COREML_RELEASED_F16

    ids = torch.tensor([7])
    tables = plain.embeddings
    for name, token, expected in (
        ("TextProjector", 7, tables.text(ids)),
        ("CodeEmbedder", 7, tables.codec(ids)),
        ("MultiCodeEmbedder", 7 + loaded.config.predictor.vocab_size, tables.code_tables[1][ids]),
    ):
        token = np.array([token], dtype=np.int32)
        embedding = mil.load(tmp_path, name).predict({"token": token})["embedding"]
        assert distance(embedding, expected) < COREML_RELEASED_F16

    config = loaded.codec_config.decoder
    codes = torch.randint(0, config.codebook_size, (2 * CHUNK_FRAMES, config.num_quantizers))
    pcm = mil.decode_speech(mil.load(tmp_path, "SpeechDecoder"), codes.int(), CHUNK_FRAMES)
    whole = Vocoder(loaded.codec_config, loaded.codec_decoder).decode(codes)
    np.testing.assert_allclose(pcm, whole, atol=COREML_RELEASED_AUDIO, rtol=0)
