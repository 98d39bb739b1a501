"""Measure a demonstration voice on sentences that it has not learned from.

python -m tools.demo_voice.evaluate --model demo-voice --json benchmarks/results/demo_voice.json

With `--weights FORM` they are those of rounded weights, for docs/precision.md.

The figures are sentences that end by themselves, length beside the reference's, how well the
melody follows the reference's, and, for sentences written by hand, the words that an offline
recogniser hears. Sampling is the checkpoint's.
"""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import numpy as np
import torch
from tqdm import tqdm

from benchmarks import common
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.choices import WEIGHTS, WEIGHTS_HELP
from qwen_megakernel.cli import parsing
from qwen_megakernel.decoders.backends import choose_backend, load_decoder
from qwen_megakernel.decoders.prompt import PromptBuilder
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.tokenizer import TextTokenizer
from qwen_megakernel.vocoder.vocoder import Vocoder
from tools.demo_voice import features, shards
from tools.demo_voice.alignment import aligned_rows, mean_distance
from tools.demo_voice.codebooks import SHIPPED, Codebooks
from tools.demo_voice.shards import FEEDS, Utterance

REFERENCES = Path(__file__).parent / "references.npz"
# A third way besides the two feeds: the vocoder alone, on the reference's codes.
AS_REFERENCE = "reference"
LENGTH_TOLERANCE = 0.25
PART = 25  # sentences that a worker reads at once
MAX_STRETCH = 3  # a sentence is cut off at this multiple of the reference's length


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading one sentence."""

    kind: str
    text: str
    codes: np.ndarray  # [num_frames, num_codes]
    ended: bool  # whether it ended by itself
    distance: float  # of its frames from the reference's (alignment.py)
    stretch: float  # number of frames over that of the reference
    pitches: tuple[np.ndarray, np.ndarray]  # Hz, ours and wanted, where both are voiced

    @property
    def is_length_right(self) -> bool:
        """Whether the length is within the tolerance of the reference's."""
        return abs(self.stretch - 1) <= LENGTH_TOLERANCE

    @property
    def rises(self) -> bool:
        """Whether the last frame with a pitch lies above the sentence's mean."""
        hertz = features.decode_pitch(self.codes[:, -1]).mean(1)
        hertz = hertz[hertz > 0]
        return len(hertz) > 0 and bool(hertz[-1] > hertz.mean())


class Reader:
    """Turns sentences into codes and, on request, into sound.

    Args:
        model: folder or name of a checkpoint.
        backend: "torch" or "emulation".
        max_frames: the most frames of a sentence.
        codebooks: file of the codebooks on which the voice was trained.
        weights: one of `choices.WEIGHTS`; None: as the checkpoint stores them.
    """

    def __init__(
        self,
        model: str,
        backend: str = "torch",
        max_frames: int = 1000,
        codebooks: Path = SHIPPED,
        weights: str | None = None,
    ):
        self.checkpoint = loading.load(loading.resolve(model))
        self._decoder, _ = load_decoder(
            self.checkpoint,
            choose_backend(backend, "cpu"),
            max_frames=max_frames,
            dtype=torch.float32,
            weights=weights,
        )
        self._prompts = PromptBuilder(self.checkpoint.config, self._decoder.embeddings)
        config = self.checkpoint.config
        self._tokenizer = TextTokenizer(self.checkpoint.files.folder, config)
        self._vocoder = Vocoder(self.checkpoint.codec_config, self.checkpoint.codec_decoder)
        self._codebooks = Codebooks.load(codebooks)

    def codes(self, text: str, max_frames: int, **request: Any) -> tuple[np.ndarray, bool]:
        """Return a sentence's codes [num_frames, num_codes], and whether it ended by itself.

        Args:
            request: fields of `SpeechOptions`; the sampling is the checkpoint's unless given.
        """
        wanted = SpeechOptions(**{"sampling": self.checkpoint.sampling} | request)
        prompt = self._prompts.build(self._tokenizer.encode(text), self._prompts.resolve(wanted))
        self._decoder.prefill(0, prompt, wanted.sampling, seed=wanted.seed, part=0)
        result = self._decoder.step([0], max_frames)
        return result.codes[0, : result.num_frames[0]], bool(result.ended[0])

    def read(self, reference: Utterance, feed: str, seed: int) -> Reading:
        """Read one sentence, with one of FEEDS, and compare it with its reference.

        The frames in which stepwise speech waits are heard, but not compared.
        """
        length = len(reference.codes)
        waiting = reference.waiting_frames if feed == "stepwise" else 0
        most = waiting + MAX_STRETCH * length
        codes, ended = self.codes(reference.text, most, text_feed=feed, seed=seed)
        spoken = codes[min(waiting, len(codes) - 1) :]
        return Reading(
            reference.kind,
            reference.text,
            codes,
            ended,
            mean_distance(spoken, reference.codes, self._codebooks),
            len(spoken) / length,
            self._pitches(spoken, reference.codes),
        )

    def _pitches(self, codes: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the pitch of frames that belong together, in Hz, where both have one."""
        rows = aligned_rows(codes, reference, self._codebooks)
        ours, wanted = (features.decode_pitch(c[:, -1]).mean(1) for c in (codes[rows], reference))
        both = (ours > 0) & (wanted > 0)
        return ours[both], wanted[both]

    def sound(self, codes: np.ndarray) -> np.ndarray:
        return self._vocoder.decode(codes)


def summary(readings: Sequence[Reading]) -> dict[str, Any]:
    """Return the figures of some sentences."""
    pitches = zip(*(reading.pitches for reading in readings), strict=True)
    ours, wanted = (np.concatenate(side) for side in pitches)
    found = {
        "sentences": len(readings),
        "ended": _share(reading.ended for reading in readings),
        "length_right": _share(reading.is_length_right for reading in readings),
        "length": float(np.mean([reading.stretch for reading in readings])),
        "distance": float(np.mean([reading.distance for reading in readings])),
        "melody": features.compare_melodies(ours, wanted, np.ones(len(ours), bool)),
    }
    if questions := [reading.rises for reading in readings if reading.text.endswith("?")]:
        found["questions"] = len(questions)
        found["questions_rise"] = _share(questions)
    return found


def _share(facts: Iterable[bool]) -> float:
    return float(np.mean(list(facts)))


def recognised(reader: Reader, said: Sequence[Reading | Utterance]) -> dict[str, Any]:
    """Return what pocketsphinx recognises: freely, and as a choice among these sentences."""
    from tools.demo_voice.recogniser import Recogniser, word_error_rate

    recogniser = Recogniser()
    known = [each for each in said if recogniser.knows(each.text)]
    sounds = [reader.sound(each.codes) for each in known]
    rate = reader.checkpoint.codec_config.sample_rate
    texts = [each.text for each in known]
    heard = [recogniser.hear(sound, rate) for sound in tqdm(sounds, desc="recogniser")]
    chosen = [recogniser.choose(sound, rate, texts) for sound in sounds]
    return {
        "sentences": len(known),
        "word_error_rate": word_error_rate(texts, heard),
        "sentence_told_apart": float(np.mean([i == c for i, c in enumerate(chosen)])),
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Read every sentence with both ways of feeding text."""
    references = list(enumerate(shards.read(args.references)))[:: args.every]
    parts = [references[i : i + PART] for i in range(0, len(references), PART)]
    how = args.codebooks, args.weights
    jobs = [(args.model, feed, how, part) for feed in FEEDS for part in parts]
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        done = list(tqdm(pool.imap(_read_part, jobs), total=len(jobs), desc="sentences"))
        sets: dict[str, Any] = {}
        heard: dict[str, Sequence[Reading | Utterance]] = {}
        for feed in FEEDS:
            rows: dict[str, list[Reading]] = {}
            everything = [
                reading
                for job, part in zip(jobs, done, strict=True)
                if job[1] == feed
                for reading in part
            ]
            for reading in everything:
                rows.setdefault(reading.kind, []).append(reading)
            for kind, row in {**rows, "all": everything}.items():
                sets[f"{kind}, {feed}"] = summary(row)
            heard[feed] = rows["written"][: args.recogniser]
        written = [utterance for _, utterance in references if utterance.kind == "written"]
        heard[AS_REFERENCE] = written[: args.recogniser]
        recogniser = {}
        if args.recogniser:
            listening = [(args.model, args.codebooks, said) for said in heard.values()]
            recogniser = dict(zip(heard, pool.map(_hear, listening, 1), strict=True))
    reader = Reader(args.model, codebooks=args.codebooks)
    return common.header() | {
        "model": args.model,
        "weights": args.weights,
        "parameters": {
            "talker": sum(t.numel() for t in reader.checkpoint.talker.values()),
            "vocoder": sum(t.numel() for t in reader.checkpoint.codec_decoder.values()),
        },
        "sets": sets,
        "recogniser": recogniser,
    }


def _read_part(
    job: tuple[str, str, tuple[Path, str | None], list[tuple[int, Utterance]]],
) -> list[Reading]:
    """Read the (seed, sentence) pairs of (model, feed, (codebooks, weights), pairs)."""
    torch.set_num_threads(1)
    model, feed, (codebooks, weights), part = job
    reader = Reader(model, codebooks=codebooks, weights=weights)
    return [reader.read(reference, feed, seed) for seed, reference in part]


def _hear(job: tuple[str, Path, Sequence[Reading | Utterance]]) -> dict[str, Any]:
    """Return what is recognised of (model, codebooks, sentences)."""
    torch.set_num_threads(1)
    model, codebooks, said = job
    return recognised(Reader(model, codebooks=codebooks), said)


def _flat(figures: dict[str, Any]) -> dict[str, float]:
    """Return figures with those of a melody among them."""
    found = {key: value for key, value in figures.items() if key != "melody"}
    return found | {f"melody_{key}": value for key, value in figures.get("melody", {}).items()}


def main(args: argparse.Namespace) -> int:
    """Measure, print the figures and keep them."""
    if args.json:
        common.observe(args.idle)
    found = measure(args)
    for name, figures in found["sets"].items():
        print(name, " ".join(f"{key} {value:.4g}" for key, value in _flat(figures).items()))
    for name, figures in found["recogniser"].items():
        print(name, " ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    common.write_json(args.json, found)
    return 0


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add("--model", "name or folder of the checkpoint to measure", str, "demo-voice")
    add("--weights FORM", WEIGHTS_HELP, WEIGHTS)
    add(
        "--references",
        "shard with the sentences and the codes that they should have",
        Path,
        REFERENCES,
    )
    add("--codebooks", "codebooks file on which the voice was trained", Path, SHIPPED)
    add("--workers", "number of processes that read sentences", int, 1)
    add("--every", "use only every n-th sentence", int, 1)
    common.add_result_option(parser)
    add(
        "--recogniser", "number of sentences to check with the speech recogniser; 0: none", int, 100
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(parse_args()))
