"""Train the vocoder, an instance of the official decoder class, on codes and their frames' sound.

python -m tools.demo_voice.train_vocoder --texts DATA/train.tsv --output vocoder.pt
python -m tools.demo_voice.train_vocoder ... --resume            continue the run of --output
python -m tools.demo_voice.train_vocoder ... --init FOLDER       start from a checkpoint folder
"""

import argparse
import importlib
import os
import random
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import librosa
import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from qwen_megakernel.cli import parsing
from tools.demo_voice import features, package, recipe, run_options, texts, vocoder_start
from tools.demo_voice.codebooks import Codebooks
from tools.demo_voice.speech import Speaker
from tools.demo_voice.training_run import Pair, TrainingRun
from tools.validation import official

SAMPLES = recipe.SAMPLES_PER_FRAME
CONTEXT_FRAMES = 2  # first frames of a segment, not compared because their past is missing
RESOLUTIONS = ((2048, 480), (1024, 240), (512, 120), (256, 60))  # window, hop
MEL_WINDOW, NUM_MELS = 1024, 80
MEL_WEIGHT, WAVE_WEIGHT, RATIO_WEIGHT = 3.0, 0.5, 0.5
# Words are lost where the slow spectral envelope is wrong, so its error counts on its own: that of
# the log-mel spectrum, averaged over two bands and 40 ms, squared so that large errors count most.
ENVELOPE_WEIGHT, ENVELOPE_AREA = 4.0, (2, 4)  # bands and hops
PRE_EMPHASIS = 0.9  # without it, the wave's and the ratio's losses hear little above 1 kHz
PITCH_WIDTH = 32  # columns of the codebooks for the pitch
BEFORE_THE_STACK = ("quantizer.", "pre_conv.")  # parts whose shapes depend on the codes
INITIAL_GAMMA = 0.3  # of the ConvNeXt blocks, whose official 1e-6 would take long to grow
NUM_TEST = 16


class Spectra:
    """The spectra from which the losses are computed."""

    def __init__(self, device: torch.device):
        self._windows = {size: torch.hann_window(size, device=device) for size, _ in RESOLUTIONS}
        mel = librosa.filters.mel(sr=recipe.SAMPLE_RATE, n_fft=MEL_WINDOW, n_mels=NUM_MELS)
        self._mel = torch.from_numpy(mel).to(device)

    def losses(self, output: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """Return total, log-mel, relative wave and envelope distances of [n, num_samples] sounds.

        All of them compare pre-emphasised sound.
        """
        total, mel, envelope = (output.new_zeros(()) for _ in range(3))
        output, target = (sound[:, 1:] - PRE_EMPHASIS * sound[:, :-1] for sound in (output, target))
        for size, hop in RESOLUTIONS:
            ours, wanted = (self._magnitude(sound, size, hop) for sound in (output, target))
            ratio = (ours - wanted).norm() / wanted.norm().clamp(min=1e-2)
            logs = ((ours + 1e-2).log() - (wanted + 1e-2).log()).abs().mean()
            total = total + (logs + RATIO_WEIGHT * ratio) / len(RESOLUTIONS)
            if size == MEL_WINDOW:
                mels = [(self._mel @ spectrum + 1e-3).log() for spectrum in (ours, wanted)]
                error = mels[0] - mels[1]
                mel = error.abs().mean()
                slow = torch.nn.functional.avg_pool2d(error[:, None], ENVELOPE_AREA, stride=2)
                envelope = slow.square().mean().clamp(min=1e-8).sqrt()
        wave = (output - target).abs().mean() / target.abs().mean().clamp(min=1e-3)
        total = total + MEL_WEIGHT * mel + ENVELOPE_WEIGHT * envelope + WAVE_WEIGHT * wave
        return total, mel.detach(), wave.detach(), envelope.detach()

    def _magnitude(self, sound: Tensor, size: int, hop: int) -> Tensor:
        spectrum = torch.stft(
            sound, size, hop, size, self._windows[size], return_complex=True, pad_mode="constant"
        )
        return spectrum.abs().clamp(min=1e-5)


def initial_books(codebooks: Codebooks) -> Tensor:
    """Return [num_codes, 256, code_width]: the initial codebooks of the decoder.

    They are those that made the codes, with separate columns for the pitch, a frame's last code.
    """
    books = codebooks.books / codebooks.books[0].std()
    number, size, width = books.shape
    found = torch.zeros(number + 1, size, width + PITCH_WIDTH)
    found[:-1, :, :width] = books
    found[-1, :, width:] = torch.from_numpy(features.pitch_book(PITCH_WIDTH))
    return found


def new_decoder(books: Tensor, seed: int) -> nn.Module:
    """Return the official decoder with these codebooks."""
    official.package()
    tokenizer = "qwen_tts.core.tokenizer_12hz"
    modeling = importlib.import_module(f"{tokenizer}.modeling_qwen3_tts_tokenizer_v2")
    configs = importlib.import_module(f"{tokenizer}.configuration_qwen3_tts_tokenizer_v2")
    config = configs.Qwen3TTSTokenizerV2DecoderConfig(
        **recipe.codec_config(len(books), books.shape[-1])["decoder_config"]
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(seed)
    decoder = modeling.Qwen3TTSTokenizerV2Decoder._from_config(config)
    with torch.no_grad():
        quantizer = decoder.quantizer
        layers = [*quantizer.rvq_first.vq.layers, *quantizer.rvq_rest.vq.layers]
        for layer, book in zip(layers, books, strict=True):
            layer._codebook.embedding_sum.copy_(book)
            layer._codebook.cluster_usage.fill_(1)
        width = books.shape[-1]
        projection = torch.randn(quantizer.rvq_first.output_proj.weight.shape) * width**-0.5
        for part in (quantizer.rvq_first, quantizer.rvq_rest):
            part.output_proj.weight.copy_(projection)  # the codes of all books add up
        for stage in decoder.upsample:
            stage[1].gamma.fill_(INITIAL_GAMMA)
    return decoder


class Training(TrainingRun):
    """A run of the vocoder."""

    figures = ("total", "mel", "wave", "envelope")

    def __init__(self, args: argparse.Namespace, training: list[Pair], test: list[Pair]):
        self.test_pairs = test
        codebooks = Codebooks.load(args.codebooks)
        decoder = new_decoder(initial_books(codebooks), args.seed).to(args.device)
        if args.init:
            _start_from(decoder, package.load_codec(args.init))
        if args.warm_up and not args.resume:
            sentences = [codes for _, codes in training]
            vocoder_start.teach(decoder, codebooks, sentences, args.warm_up, args.seed)
        parameters = decoder.parameters()
        optimizer = torch.optim.AdamW(parameters, args.learning_rate, (0.8, 0.99), weight_decay=0.0)
        super().__init__(args, decoder, training, optimizer)
        self.spectra = Spectra(self.device)
        # All segments have one shape, so it compiles once.
        self.forward = torch.compile(decoder, dynamic=False) if args.compile else decoder

    def losses(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        target, codes = batch
        with self.autocast():
            output = self.forward(codes.mT)[:, 0]
        skipped = CONTEXT_FRAMES * SAMPLES
        return self.spectra.losses(output[:, skipped:].float(), target[:, skipped:])

    @torch.no_grad()
    def test(self) -> dict[str, float]:
        """Return the distances on whole sentences that were not trained on."""
        self.network.eval()
        found = []
        for sound, codes in self.test_pairs:
            output = self.network(codes.T[None].to(self.device))[:, 0].clamp(-1, 1)
            found.append(torch.stack(self.spectra.losses(output, sound[None].to(self.device))))
        self.network.train()
        means = torch.stack(found).mean(0).tolist()
        return {f"test_{name}": mean for name, mean in zip(self.figures, means, strict=True)}


def _start_from(decoder: nn.Module, stored: dict[str, Tensor]) -> None:
    """Load a checkpoint's weights; if its codes differ, load only the layers after the codes."""
    own = decoder.state_dict()
    shapes, wanted = ({k: v.shape for k, v in part.items()} for part in (stored, own))
    if shapes != wanted:
        stored = {k: v for k, v in stored.items() if not k.startswith(BEFORE_THE_STACK)}
    decoder.load_state_dict(own | stored)


def make_pairs(args: argparse.Namespace) -> tuple[list[Pair], list[Pair]]:
    """Return (training, test) sentences as the sound that they should have, and their codes."""
    speaker = Speaker(args.codebooks)
    training = [text for _, text in texts.read(args.texts)]
    random.Random(args.seed).shuffle(training)
    test = texts.written_for_development()[:NUM_TEST]

    def pair(text: str) -> Pair | None:
        found = speaker.pair(text)
        if found is None or len(found[0]) < args.segment:
            return None
        codes, sound = found
        return torch.from_numpy(sound), torch.from_numpy(codes.astype(np.int64))

    progress = tqdm(training[: args.sentences], desc="sentences")
    pairs: Any = [[pair(text) for text in part] for part in (progress, test)]
    return tuple([item for item in part if item] for part in pairs)


def parse_args(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = run_options.parser(__doc__, learning_rate=1.2e-3, hold=0.4)
    run_options.add_segments(parser, sentences=1300, steps=8000, batch=6, segment=9)
    add = parsing.adder(parser)
    add("--warm-up", "number of updates of the first layers alone, before the others", int, 0)
    return parser.parse_args(arguments)


def main(args: argparse.Namespace) -> dict[str, float]:
    """Train; return the last figures."""
    training = Training(args, *make_pairs(args))
    if args.resume:
        training.resume(args.output)
    training.run()
    return training.history[-1] if training.history else {}


if __name__ == "__main__":
    main(parse_args())
