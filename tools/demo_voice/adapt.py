"""Fine-tune the demonstration voice to other speech of its teacher, and measure what it says then.

python -m tools.demo_voice.adapt --json benchmarks/results/demo_voice_adapted.json

Two of the voices to learn speak more slowly, or higher; their codes are made as those of the
voice's own training. The third is another speaker of flite's, whose recordings the codec's encoder
hears. After each epoch, the adapted voice says sentences that it has not learned from, and its
speech is compared with the base model's and with the recordings'.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import numpy as np
import torch
from tqdm import tqdm

from benchmarks import common
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.checkpoint.loading import DEMO_VOICE, Checkpoint
from qwen_megakernel.cli import parsing
from qwen_megakernel.cloning.voice_library import VoiceLibrary
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.tokenizer import TextTokenizer
from qwen_megakernel.training import own_speech
from qwen_megakernel.training.speech_model import SpeechModel
from qwen_megakernel.training.speech_trainer import SpeechTrainer, Spoken, TuneOptions, add_adapters
from qwen_megakernel.training.trained_voice import as_saved, changed_tensors, merge_tensors
from qwen_megakernel.vocoder.vocoder import Vocoder
from qwen_megakernel.voice import Voice
from tools.demo_voice import features, texts
from tools.demo_voice.flite import RATE, Flite
from tools.demo_voice.recipe import SPEAKER
from tools.demo_voice.recogniser import Recogniser, word_error_rate
from tools.demo_voice.speech import Speaker

SLOW, HIGH, OTHER = "slow", "high", "other"
OTHER_SPEAKER = "awb"  # a man of Scotland
# As `Speaker` takes them; the second is as high as the other speaker.
VOICES = {SLOW: {"slowness": 1.25}, HIGH: {"height": 1.28}, OTHER: {}}
OPTIONS = TuneOptions(
    learning_rate=1e-3,
    batch_size=2,
    gradient_accumulation=1,
    precision="fp32",
    epochs=3,
    rank=32,
    alpha=64,
)
# Codes that the encoder heard are not all right. At the rate above, three epochs learn the wrong
# ones by heart: then 45 % of the words are wrong.
RATES = {SLOW: OPTIONS.learning_rate, HIGH: OPTIONS.learning_rate, OTHER: 2e-4}
MAX_FRAMES = 160
# What the figures are held against: an epoch's length over the base model's, the pitch's distance
# from the recordings', and the share of wrong words over that of the base model.
LENGTHS, MOST_SEMITONES, MOST_ERRORS = (1.2, 1.3), 1.0, 1.3


@dataclass(frozen=True, slots=True)
class Said:
    """The same sentences as one voice says them."""

    codes: Sequence[np.ndarray]  # of each sentence, [num_frames, num_codes]
    ended: float  # share of the sentences that ended by themselves

    @property
    def num_frames(self) -> int:
        """Frames of all sentences, each from the first with a pitch to the last."""
        voiced = [np.flatnonzero(codes[:, -1] != features.NO_PITCH) for codes in self.codes]
        return sum(int(frames[-1] - frames[0]) + 1 for frames in voiced if len(frames))

    @property
    def hertz(self) -> float:
        """The median pitch of the frames that have one."""
        hertz = features.decode_pitch(np.concatenate(self.codes)[:, -1])
        return float(np.median(hertz[hertz > 0]))


def adapted(
    base: Checkpoint, spoken: Sequence[Spoken], options: TuneOptions
) -> Iterator[Checkpoint]:
    """Yield the base model with the adapters that it has learned after each epoch merged."""
    model = SpeechModel(base, torch.device("cpu"), torch.float32)
    add_adapters(model, options)
    trainer = SpeechTrainer(model, spoken, [], SPEAKER, options)
    table = base.talker["model.codec_embedding.weight"]
    speaker = Voice(SPEAKER, table[base.config.talker.speakers[SPEAKER]].float().numpy())
    for epoch in range(1, options.epochs + 1):
        trainer.run(until=trainer.num_steps * epoch // options.epochs)
        merged = replace(base, talker=dict(base.talker))
        learned = as_saved(trainer.current())
        merge_tensors(merged, changed_tensors(base, learned, options.scale, speaker), SPEAKER)
        yield merged


def sentences_to_learn(number: int) -> list[str]:
    """Return sentences by hand, then as many of the grammar; none is measured."""
    grammar, found = texts.Grammar(texts.FOLDER / "grammar.txt"), texts.written_for_development()
    for seed in itertools.count():
        if len(found) >= number:
            return found[:number]
        found += texts.development_sets(grammar, seed)[texts.TEMPLATE]
    raise AssertionError


def recordings(
    name: str, base: Checkpoint, sentences: Sequence[str]
) -> list[tuple[str, np.ndarray, float]]:
    """Return what a voice says: each sentence, its codes [num_frames, num_codes], and the median
    pitch in Hz."""
    if name != OTHER:
        spoken = Speaker(**VOICES[name]).utterances([(name, text) for text in sentences])
        return [(each.text, each.codes, Said([each.codes], 1).hertz) for each in spoken]
    flite, library = Flite.shared(OTHER_SPEAKER), VoiceLibrary(base)
    return [
        (text, library.encode(flite.sound(said.f0, said.cepstrum, said.voiced), RATE), said.hertz)
        for text, said in ((text, flite(text)) for text in tqdm(sentences, "recordings"))
        if said
    ]


def say(model: Checkpoint, sentences: Sequence[str]) -> Said:
    """Let a model say sentences as its checkpoint samples."""
    tokenizer = TextTokenizer(model.files.folder, model.config)
    how = SpeechOptions(voice=SPEAKER, sampling=model.sampling)
    cpu, codes, ended = torch.device("cpu"), [], []
    for sentence in tqdm(sentences, desc="sentences", leave=False):
        ids = tokenizer.encode(sentence)
        drawn = own_speech.draw(model, ids, how, MAX_FRAMES, cpu, torch.float32)
        codes.append(drawn.codes[0, : drawn.num_frames[0]])
        ended.append(drawn.ended[0])
    return Said(codes, float(np.mean(ended)))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Learn each voice; return what it says after each epoch, beside base model and recordings."""
    base = loading.load(loading.resolve(DEMO_VOICE))
    tokenizer = TextTokenizer(base.files.folder, base.config)
    vocoder, recogniser = Vocoder(base.codec_config, base.codec_decoder), Recogniser()
    rate = base.codec_config.sample_rate
    wanted = [each for each in texts.written() if recogniser.knows(each)][: args.sentences]
    to_learn = sentences_to_learn(args.recordings)

    def figures(said: Said, *, with_words: bool = True) -> dict[str, float]:
        length = said.num_frames / base_said.num_frames
        found = {"length": length, "hertz": said.hertz, "ended": said.ended}
        if with_words:
            sounds = (vocoder.decode(codes) for codes in tqdm(said.codes, "words", leave=False))
            heard = [recogniser.hear(sound, rate) for sound in sounds]
            found["word_errors"] = word_error_rate(wanted, heard)
        return found

    base_said = say(base, wanted)
    found: dict[str, Any] = {"base": figures(base_said)}
    for name in VOICES:
        spoken = [
            Spoken(tokenizer.encode(text), torch.tensor(codes.astype(np.int64)))
            for text, codes, _ in recordings(name, base, to_learn)
        ]
        _, codes, hertz = zip(*recordings(name, base, wanted), strict=True)
        options = replace(OPTIONS, learning_rate=RATES[name])
        epochs = [say(model, wanted) for model in adapted(base, spoken, options)]
        found[name] = {
            "recordings": len(spoken),
            "seconds": sum(map(len, spoken)) * features.FRAME_SECONDS,
            "recorded": figures(Said(codes, 1)) | {"hertz": float(np.median(hertz))},
            "epochs": [figures(said, with_words=said is epochs[-1]) for said in epochs],
        }
    return found


def missed(found: dict[str, Any]) -> list[str]:
    """Return the limits that the figures of `measure` miss."""
    lines = []
    for name in VOICES:
        recorded, epochs = found[name]["recorded"], found[name]["epochs"]
        last = epochs[-1]
        semitones = 12 * abs(np.log2(last["hertz"] / recorded["hertz"]))
        if semitones > MOST_SEMITONES:
            lines.append(f"{name}: the pitch is {semitones:.2f} semitones off")
        if last["word_errors"] > MOST_ERRORS * found["base"]["word_errors"]:
            lines.append(f"{name}: {last['word_errors']:.3f} of the words are heard wrong")
        if name == SLOW:
            lengths = [each["length"] for each in epochs]
            if min(lengths) < LENGTHS[0] or max(lengths) > LENGTHS[1]:
                lines.append(f"{name}: the lengths are {lengths}")
    return lines


def main(args: argparse.Namespace) -> int:
    """Measure, print and keep the figures; return 1 if one misses its limit."""
    if args.json:
        common.observe(args.idle)
    torch.set_num_threads(1)
    found = measure(args)
    rows = [("base", found["base"])]
    for name in VOICES:
        rows += [(name, row) for row in (found[name]["recorded"], *found[name]["epochs"])]
    for name, row in rows:
        print(name, " ".join(f"{key} {value:.4g}" for key, value in row.items()))
    common.write_json(args.json, common.header() | {"voices": found})
    return common.report_missed(missed(found))


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add("--recordings", "number of sentences to learn from", int, 450)
    add("--sentences", "number of sentences to measure", int, 60)
    common.add_result_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(parse_args()))
