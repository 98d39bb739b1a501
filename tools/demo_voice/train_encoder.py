"""Train the codec encoder, an instance of the official class, to hear the voice's codes in speech.

python -m tools.demo_voice.train_encoder --texts DATA/train.tsv --output encoder.pt
python -m tools.demo_voice.train_encoder ... --resume            continue the run of --output
python -m tools.demo_voice.train_encoder ... --init FOLDER       start from a checkpoint folder

The first seven codebooks are those of the envelope, cut to their first components, of which the
network gives the sums. The eighth is that of the pitch, whose nearest row is the code.
"""

import argparse
import importlib
import math
import os
import random
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers.models.mimi.modeling_mimi import MimiConv1d

from qwen_megakernel.checkpoint.tensor_shapes import CODEC_ENCODER_PREFIX
from tools.demo_voice import features, package, recipe, run_options, texts
from tools.demo_voice.codebooks import Codebooks
from tools.demo_voice.listening import Listening
from tools.demo_voice.optimizer import MuonAndAdamW
from tools.demo_voice.training_run import Pair, TrainingRun
from tools.validation import official

WIDTH = recipe.ENCODER_WIDTH
PITCH_SCALE = 0.5  # of the pitch's codebook, by which near codes are told apart
VOICED = 4.0  # its last column, so that a frame whose phase is unsure is not taken for unvoiced
PITCH_WEIGHT, AWAY_WEIGHT = 0.5, 0.03
LAYER_SCALE = 0.1  # of the transformer's branches, whose official 0.01 would take long to grow
INPUT_GAIN = 10.0  # samples are near 0.1, where the activations are all but linear
MUON_RATE = 2.0
NUM_TEST = 24


def books_of(codebooks: Codebooks) -> Tensor:
    """Return the encoder's codebooks [num_codes, 256, WIDTH]; the last is that of the pitch."""
    books = codebooks.books / codebooks.books[0].std()
    found = torch.zeros(len(books) + 1, *books.shape[1:-1], WIDTH)
    found[:-1] = books[..., :WIDTH]
    found[-1] = PITCH_SCALE * torch.from_numpy(features.pitch_book(WIDTH))
    found[-1, :, -1] = -VOICED
    found[-1, : features.NO_PITCH, -1] = VOICED
    return found


def new_encoder(books: Tensor, seed: int) -> nn.Module:
    """Return the official encoder with these codebooks."""
    official.package()
    tokenizer = "qwen_tts.core.tokenizer_12hz"
    modeling = importlib.import_module(f"{tokenizer}.modeling_qwen3_tts_tokenizer_v2")
    configs = importlib.import_module(f"{tokenizer}.configuration_qwen3_tts_tokenizer_v2")
    config = configs.Qwen3TTSTokenizerV2Config(**recipe.codec_config(len(books))).encoder_config
    config._attn_implementation = "sdpa"
    torch.manual_seed(seed)
    encoder = modeling.Qwen3TTSTokenizerV2Encoder._from_config(config)
    for name, module in list(encoder.named_modules()):
        if isinstance(module, MimiConv1d):
            encoder.set_submodule(name, Padded(module))
    with torch.no_grad():
        layers = [layer for part in _quantizers(encoder) for layer in part.layers]
        for layer, book in zip(layers, books, strict=True):
            layer.codebook.embed_sum.copy_(book)
            layer.codebook.cluster_usage.fill_(1)
        for part in _quantizers(encoder):
            part.output_proj.weight.zero_()
        encoder.encoder.layers[0].conv.weight.mul_(INPUT_GAIN)
        for layer in encoder.encoder_transformer.layers:
            layer.self_attn_layer_scale.scale.fill_(LAYER_SCALE)
            layer.mlp_layer_scale.scale.fill_(LAYER_SCALE)
    return encoder


def _quantizers(encoder: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return the quantisers of the envelope and of the pitch."""
    quantizer = encoder.quantizer
    return (
        quantizer.semantic_residual_vector_quantizer,
        quantizer.acoustic_residual_vector_quantizer,
    )


class Padded(nn.Module):
    """An official convolution for whole strides of samples.

    The official one computes its padding with tensors, at which `torch.compile` stops.
    """

    def __init__(self, official_conv: nn.Module):
        super().__init__()
        self.conv = official_conv.conv
        total = int(official_conv.padding_total)
        right = 0 if official_conv.causal else total // 2
        is_zero = official_conv.pad_mode == "constant"
        pad = nn.ConstantPad1d if is_zero else nn.ReplicationPad1d
        self.pad = pad((total - right, right), *[0] * is_zero)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.conv(self.pad(hidden))


class Hearing(nn.Module):
    """What the encoder's codebooks are given.

    Args:
        encoder: the official encoder.
    """

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """[n, num_samples] -> the envelope's and the pitch's rows, [n, num_frames, WIDTH] each."""
        encoder = self.encoder
        found = encoder.encoder(samples[:, None]).transpose(1, 2)
        found = encoder.encoder_transformer(found)[0].transpose(1, 2)
        found = encoder.downsample(found)
        envelope, pitch = (part.input_proj(found).mT for part in _quantizers(encoder))
        return envelope, pitch


class Training(TrainingRun):
    """A run of the encoder."""

    figures = ("total", "envelope", "pitch")

    def __init__(self, args: argparse.Namespace, training: list[Pair], test: list[Pair]):
        self.test_pairs = test
        books = books_of(Codebooks.load(args.codebooks))
        encoder = new_encoder(books, args.seed).to(args.device)
        if args.init:
            encoder.load_state_dict(package.load_codec(args.init, CODEC_ENCODER_PREFIX))
        learned = {
            name: parameter
            for name, parameter in encoder.named_parameters()
            if "output_proj" not in name  # encoding does not use it
        }
        optimizer = MuonAndAdamW(learned, args.learning_rate, MUON_RATE)
        super().__init__(args, encoder, training, optimizer)
        self.books = books.to(self.device)
        self.hearing = Hearing(encoder)
        # All segments have one shape, so it compiles once.
        self.forward = torch.compile(self.hearing, dynamic=False) if args.compile else self.hearing

    def losses(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        sounds, latents, codes = batch
        with self.autocast():
            heard = self.forward(sounds)
        return self.compare(*heard, latents, codes)

    def compare(
        self, envelope: Tensor, pitch: Tensor, latents: Tensor, codes: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the total, the distance of the envelopes, and the pitch's nats."""
        distance = ((envelope.float() - latents).square().sum(-1) + 1e-4).sqrt().mean()
        book = self.books[-1, : features.NO_PITCH + 1]
        rows = pitch.float()
        logits = 2 * rows @ book.T - book.square().sum(-1)
        nats = nn.functional.cross_entropy(logits.flatten(0, 1), codes.flatten())
        away = (rows - self.books[-1][codes]).square().sum(-1).mean()
        total = distance + PITCH_WEIGHT * nats + AWAY_WEIGHT * away
        return total, distance.detach(), nats.detach()

    @torch.no_grad()
    def test(self) -> dict[str, float]:
        found = []
        for pair in self.test_pairs:
            sound, latents, codes = (each[None].to(self.device) for each in pair)
            envelope, rows = self.hearing(sound)
            losses = [float(loss) for loss in self.compare(envelope, rows, latents, codes)]
            sounds = [_nearest(each, self.books[0]) for each in (envelope, latents)]
            heard = _nearest(rows, self.books[-1])
            found.append([*losses, *_agreement(heard[0], codes[0]), _share(sounds[0] == sounds[1])])
        means = np.nanmean(found, axis=0).tolist()
        names = (*self.figures, "voicing", "phase", "count", "sound")
        return {f"test_{name}": mean for name, mean in zip(names, means, strict=True)}


def _nearest(rows: Tensor, book: Tensor) -> Tensor:
    return torch.cdist(rows.float(), book[None]).argmin(-1)


def _agreement(heard: Tensor, wanted: Tensor) -> tuple[float, ...]:
    """Return the shares of frames with the right voicing, with the right phase, and with a number
    of periods that is off by a third at most."""
    silent = features.NO_PITCH
    both = (heard < silent) & (wanted < silent)
    ours, theirs = (
        torch.tensor([features.unpack_pitch(int(code))[:2] for code in codes[both]])
        for codes in (heard, wanted)
    )
    if not len(ours):
        return _share((heard < silent) == (wanted < silent)), math.nan, math.nan
    away = (ours - theirs).abs() * features.PHASES
    return (
        _share((heard < silent) == (wanted < silent)),
        _share(away[:, 0] < 0.5),
        _share(away[:, 1] < 1.5),
    )


def _share(flags: Tensor) -> float:
    return float(flags.float().mean())


def make_pairs(
    codebooks: Codebooks, sentences: Sequence[str], seed: int, least_frames: int
) -> list[Pair]:
    """Return recordings of sentences as samples, the envelope's rows and the pitch's codes."""
    listening, unit = Listening(seed), float(codebooks.books[0].std())
    pairs = []
    for text in tqdm(sentences, desc="recordings", mininterval=30):
        heard = listening(text)
        if heard is None or len(heard.pitch) < least_frames:
            continue
        latents = codebooks.project(torch.from_numpy(heard.features))[:, :WIDTH] / unit
        pitch = torch.from_numpy(heard.pitch.astype(np.int64))
        pairs.append((torch.from_numpy(heard.sound), latents, pitch))
    return pairs


def parse_args(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = run_options.parser(__doc__, learning_rate=2e-3, hold=0.3)
    run_options.add_segments(parser, sentences=18000, steps=15000, batch=8, segment=24)
    return parser.parse_args(arguments)


def main(args: argparse.Namespace) -> dict[str, float]:
    """Train; return the last figures."""
    codebooks = Codebooks.load(args.codebooks)
    sentences: Any = [text for _, text in texts.read(args.texts)]
    random.Random(args.seed).shuffle(sentences)
    training = make_pairs(codebooks, sentences[: args.sentences], args.seed, args.segment)
    test = make_pairs(codebooks, texts.written_for_development()[:NUM_TEST], args.seed + 1, 1)
    run = Training(args, training, test)
    if args.resume:
        run.resume(args.output)
    run.run()
    return run.history[-1] if run.history else {}


if __name__ == "__main__":
    main(parse_args())
