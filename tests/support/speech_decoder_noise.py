"""Measure how much noise 16-bit numbers add to the waveform of Core ML's speech decoder.

python tests/support/speech_decoder_noise.py

This writes the result file and the table of docs/coreml.md. mil.py runs the program in the file
operation by operation and rounds each result to the type that it declares: a Neural Engine that
computes in 16 bits inside an operation adds to that noise.
"""

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs as a script from anywhere

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import mil
import numpy as np
import torch

from benchmarks import common, page_parts, result_tables
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.decoders.coreml import export
from qwen_megakernel.vocoder.vocoder import Vocoder

RESULT = page_parts.RESULTS / "coreml_speech_decoder.json"
MODELS = ("demo-voice", "tiny-random", "random-0.6b")
NUM_FRAMES, CHUNK_FRAMES = 24, 4


def signal_to_noise(loaded: loading.Checkpoint, precision: str) -> float:
    """Return the dB of signal to noise of random codes, in chunks, against the float32 vocoder."""
    config = loaded.codec_config.decoder
    generator = torch.Generator().manual_seed(0)
    shape = NUM_FRAMES, config.num_quantizers
    codes = torch.randint(0, config.codebook_size, shape, generator=generator)
    expected = Vocoder(loaded.codec_config, loaded.codec_decoder).decode(codes).astype(np.float64)
    options = export.ExportOptions(num_positions=8, chunk_frames=CHUNK_FRAMES)
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "SpeechDecoder.mlpackage"
        export._convert(loaded, "SpeechDecoder", options, precision).save(str(package))
        decoder = mil.load(Path(folder), "SpeechDecoder")
        found = mil.decode_speech(decoder, codes.to(torch.int32), CHUNK_FRAMES)
    return float(10 * np.log10(np.square(expected).sum() / np.square(found - expected).sum()))


def main() -> None:
    """Measure, and write the result file and the page's table."""
    common.observe()
    found = common.header() | {"frames": NUM_FRAMES, "signal_to_noise_db": {}}
    for name in MODELS:
        loaded = loading.load(loading.resolve(name))
        found["signal_to_noise_db"][name] = {
            precision: signal_to_noise(loaded, precision) for precision in export.PRECISIONS
        }
    common.write_json(str(RESULT), found)
    page_parts.write("docs/coreml.md", result_tables.coreml())


if __name__ == "__main__":
    main()
