"""Measure how close a vocoder's sound is to its teacher's, for codes made from the teacher's sound.

Of a checkpoint folder, also how well its codec repeats recordings of flite's speakers.

python -m tools.demo_voice.quality --vocoder qwen_megakernel/assets/demo-voice --sentences 100 \\
    --test --json benchmarks/results/demo_voice_codec.json

The sentences are those for choosing settings, or with `--test` those for measuring; no voice has
learned from either. Teacher and decoded sound lie on each other to the sample, so they are compared
as they are. PESQ and STOI need the packages `pesq` and `pystoi`; without them they are left out.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import librosa
import numpy as np
import torch
from loudness import integrated_loudness
from scipy.signal import resample_poly
from tqdm import tqdm

from benchmarks import common
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.checkpoint.codec_config import parse_codec_config
from qwen_megakernel.cli import parsing
from qwen_megakernel.cloning import recordings
from qwen_megakernel.cloning.voice_library import VoiceLibrary
from qwen_megakernel.vocoder.vocoder import Vocoder
from tools.demo_voice import features, package, recipe, texts
from tools.demo_voice.codebooks import SHIPPED
from tools.demo_voice.speech import Speaker

RATE = recipe.SAMPLE_RATE
WIDEBAND = 16000  # the rate at which PESQ and STOI listen
PITCH_RANGE_HZ = (55, 240)
PITCH_WINDOW, PITCH_HOP = 2048, 240
NEAR = 0.1  # places where the estimate errs more about the teacher's sound are left out
PAUSE_WINDOW = RATE // 50
# Speakers to repeat: the teacher, another one from whom the encoder has learned, and an older,
# choppy voice that it has never heard.
REPEATED = ("rms", "awb", "kal16")


def levels(sound: np.ndarray) -> dict[str, float]:
    """Return offset, peak, loudness in LUFS, and the level of the quietest 20 ms, in dBFS.

    Args:
        sound: [num_samples] float32 in [-1, 1] at 24 kHz, at least 0.4 s.
    """
    whole = len(sound) // PAUSE_WINDOW * PAUSE_WINDOW
    windows = sound[:whole].reshape(-1, PAUSE_WINDOW).astype(np.float64)
    quietest = np.sqrt(np.square(windows).mean(1)).min()
    return {
        "offset": float(sound.mean()),
        "peak": float(np.abs(sound).max()),
        "clipped": int((np.abs(sound) >= 1).sum()),
        "loudness": float(integrated_loudness(sound.astype(np.float64)[:, None], RATE)),
        "quietest": float(20 * np.log10(max(quietest, 1e-6))),
    }


def pitch(sound: np.ndarray) -> np.ndarray:
    """Return the pitch in Hz every 10 ms, interpolated in unvoiced places: [1 + num_samples // 240]
    float32."""
    low, high = PITCH_RANGE_HZ
    return librosa.yin(
        sound.astype(np.float32),
        fmin=low,
        fmax=high,
        sr=RATE,
        frame_length=PITCH_WINDOW,
        hop_length=PITCH_HOP,
    )


def alike(ours: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """Return the log-mel distance, and PESQ and STOI if their packages are installed."""
    mels = [
        np.log(
            librosa.feature.melspectrogram(y=sound, sr=RATE, n_fft=1024, hop_length=240, n_mels=80)
            + 1e-4
        )
        for sound in (ours, wanted)
    ]
    found = {"mel": float(np.abs(mels[0] - mels[1]).mean())}
    wide = [resample_poly(sound, WIDEBAND, RATE).astype(np.float32) for sound in (ours, wanted)]
    try:
        from pystoi import stoi

        found["stoi"] = float(stoi(wide[1], wide[0], WIDEBAND))
    except ImportError:
        pass
    try:
        from pesq import pesq

        found["pesq"] = float(pesq(WIDEBAND, wide[1], wide[0], "wb"))
    except ImportError:
        pass
    return found


def load_vocoder(path: Path) -> Vocoder:
    """Return the vocoder of a state file of `train_vocoder`, or of a checkpoint folder."""
    if path.is_dir():
        weights = package.load_codec(path)
    else:
        weights = torch.load(path, map_location="cpu", weights_only=True)["weights"]
    shapes = package.codebook_shapes(weights)
    config = parse_codec_config(recipe.codec_config(len(shapes), shapes[0][1]))
    return Vocoder(config, {name: tensor.float() for name, tensor in weights.items()})


def mean(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of teacher and decoded sound."""
    speaker = Speaker(args.codebooks)
    vocoder = load_vocoder(args.vocoder)
    sentences = texts.written() if args.test else texts.written_for_development()
    said = []
    for text in tqdm(sentences[: args.sentences], desc="sentences"):
        pair = speaker.pair(text)
        if pair is not None:
            said.append((text, *pair, vocoder.decode(pair[0].astype(np.int64))))
    melodies, likeness = [], []
    for _, codes, wanted, ours in said:
        likeness.append(alike(ours, wanted))
        hertz = features.decode_pitch(codes[:, -1]).ravel()
        found_in = [pitch(sound)[: len(hertz)] for sound in (ours, wanted)]
        is_known = (hertz > 0) & (np.abs(found_in[1] / np.maximum(hertz, 1) - 1) < NEAR)
        melodies.append(features.compare_melodies(found_in[0], hertz, is_known))
    found: dict[str, Any] = {
        "vocoder": args.vocoder.name,
        "sentences": len(said),
        "alike": mean(likeness),
        "melody": mean(melodies),
        "levels": {
            "teacher": mean([levels(wanted) for _, _, wanted, _ in said]),
            "decoded": mean([levels(ours) for *_, ours in said]),
        },
    }
    if args.recogniser:
        found["word_error_rate"] = _heard(said)
        if args.vocoder.is_dir():
            found["repeated"] = _repeated(args.vocoder, vocoder, [text for text, *_ in said])
    return found


def _repeated(
    folder: Path, vocoder: Vocoder, sentences: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the share of words that a recogniser hears wrong in recordings of each speaker, and
    in what the codec makes of them."""
    from tools.demo_voice.recogniser import Recogniser, word_error_rate

    recogniser, library = Recogniser(), VoiceLibrary(loading.load(loading.resolve(str(folder))))
    wanted = [text for text in sentences if recogniser.knows(text)]
    found = {}
    for speaker in REPEATED:
        heard: dict[str, list[list[str]]] = {"recording": [], "repeated": []}
        for text in tqdm(wanted, desc=speaker):
            samples, rate = said_by(speaker, text)
            repeated = vocoder.decode(library.encode(samples, rate).astype(np.int64))
            heard["recording"].append(recogniser.hear(samples, rate))
            heard["repeated"].append(recogniser.hear(repeated, RATE))
        found[speaker] = {name: word_error_rate(wanted, words) for name, words in heard.items()}
    return found


def said_by(speaker: str, text: str) -> tuple[np.ndarray, int]:
    """Return what the program flite says: [num_samples] float32, and their rate."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        subprocess.run(["flite", "-voice", speaker, "-t", text, "-o", file.name], check=True)
        return recordings.read(file.name)


def _heard(said: Sequence[tuple[str, np.ndarray, np.ndarray, np.ndarray]]) -> dict[str, float]:
    from tools.demo_voice.recogniser import Recogniser, word_error_rate

    recogniser = Recogniser()
    known = [each for each in said if recogniser.knows(each[0])]
    wanted = [text for text, *_ in known]
    return {
        name: word_error_rate(wanted, [recogniser.hear(each[place], RATE) for each in known])
        for name, place in (("teacher", 2), ("decoded", 3))
    }


def main(args: argparse.Namespace) -> int:
    """Measure, print the figures and keep them."""
    torch.set_num_threads(1)
    if args.json:
        common.observe(args.idle)
    found = common.header() | measure(args)
    for name in ("alike", "levels", "melody", "word_error_rate", "repeated"):
        if name in found:
            print(name, found[name])
    common.write_json(args.json, found)
    return 0


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add(
        "--vocoder",
        "state file of tools.demo_voice.train_vocoder, or a checkpoint folder",
        Path,
        required=True,
    )
    add("--codebooks", "codebooks file that the vocoder was trained with", Path, SHIPPED)
    add("--sentences", "number of sentences", int, 60)
    add("--test", "use the sentences that are reserved for measuring", bool)
    add(
        "--recogniser",
        "count the words that pocketsphinx recognises in the original and the decoded sound",
        argparse.BooleanOptionalAction,
        True,
    )
    common.add_result_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(parse_args()))
