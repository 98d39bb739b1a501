"""Train talker and code predictor on shards.

python -m tools.demo_voice.train_talker --data DATA/train --test DATA/development --output talker.pt
python -m tools.demo_voice.train_talker ... --resume           continue the run of --output
python -m tools.demo_voice.train_talker ... --init FOLDER      start from a checkpoint folder

A resumed run ends with the same weights as an uninterrupted one.
"""

import argparse
import math
import os
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import numpy as np
import torch
from safetensors.torch import load_file
from tqdm import tqdm

from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.checkpoint.tensor_shapes import TALKER_PREFIX
from qwen_megakernel.cli import parsing
from qwen_megakernel.output_files import replacing
from tools.demo_voice import recipe, run_options, shards, tokenizer
from tools.demo_voice.batches import Layout, Packer
from tools.demo_voice.codebooks import SHIPPED, Codebooks
from tools.demo_voice.decode import progress
from tools.demo_voice.optimizer import Muon
from tools.demo_voice.shards import Utterance
from tools.demo_voice.talker_net import Weights, initial_weights, losses

RESIDUAL_WEIGHT = 0.6  # weight of the other codes' loss beside code 0's
WARMUP_STEPS = 100
MIN_RATE = 0.01  # share of the peak rate at the end
MAX_GRADIENT_NORM = 1.0
ADAM_BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.02
NUM_SPOKEN = 32  # test sentences of each kind to speak at intervals


class Training:
    """Weights, optimizers and batches of one run, and how far it has come."""

    def __init__(self, args: argparse.Namespace, config: ModelConfig, pool: list[Utterance]):
        self.args, self.config, self.device = args, config, torch.device(args.device)
        self.dtype = getattr(torch, args.dtype)
        weights = initial_weights(config, args.seed)
        if args.init:
            weights |= _fitting(args.init / "model.safetensors", weights)
        self.weights = {
            name: value.to(self.device).requires_grad_(_is_learned(name, args.predictor_only))
            for name, value in weights.items()
        }
        learned = {name: value for name, value in self.weights.items() if value.requires_grad}
        self.muon = Muon({name: p for name, p in learned.items() if _is_hidden_matrix(name, p)})
        others = [p for name, p in learned.items() if name not in self.muon.buffers]
        groups = [
            {"params": [p for p in others if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
            {"params": [p for p in others if p.ndim == 1], "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(groups, args.learning_rate, ADAM_BETAS, fused=True)
        self.parameters = list(learned.values())
        shape = {"num_rows": args.rows, "row_length": args.row_length, "num_frames": args.frames}
        training = [u for u in pool if u.kind == shards.TRAINING]
        self.codebooks = Codebooks.load(args.codebooks)
        voice = config, tokenizer.role_ids(), self.codebooks.silence
        self.packer = Packer(*voice, training, **shape, seed=args.seed)
        self.sentences: dict[str, list[Utterance]] = {}  # kind -> utterances
        for utterance in pool:
            if utterance.kind != shards.TRAINING:
                self.sentences.setdefault(utterance.kind, []).append(utterance)
        self.step = self.seen = 0
        self.history: list[dict[str, float]] = []
        self.losses: Callable = torch.compile(losses, dynamic=False) if args.compile else losses

    def run(self) -> None:
        """Train to the end, saving at intervals."""
        args = self.args
        bar = tqdm(total=args.presentations, initial=self.seen, unit=" utterances", smoothing=0.02)
        recent, saved = [], time.monotonic()
        tested = saved
        while self.seen < args.presentations:
            figures, count = self.train_step()
            recent.append(figures)
            bar.update(count)
            is_over = self.seen >= args.presentations
            if is_over or time.monotonic() - saved > 60 * args.save_minutes:
                first, accuracy, residual = np.mean(recent, axis=0).tolist()
                self.history.append(
                    {
                        "seen": self.seen,
                        "rate": self.rate(),
                        "first": first,
                        "accuracy": accuracy,
                        "residual": residual,
                    }
                )
                self.save(args.output)
                if is_over or time.monotonic() - tested > 60 * args.test_minutes:
                    self.history[-1] |= self.test()
                    self.save(args.output)
                    tested = time.monotonic()
                bar.write(" ".join(f"{k} {v:.4g}" for k, v in self.history[-1].items()))
                recent, saved = [], time.monotonic()
        bar.close()

    def train_step(self) -> tuple[list[float], int]:
        """Make one update; return loss of code 0, accuracy, loss of the others, and utterances."""
        batch, count = self.packer.batch()
        batch = {name: value.to(self.device) for name, value in batch.items()}
        first, accuracy, residual = self.losses(self.weights, self.config, batch, self.dtype)
        total = RESIDUAL_WEIGHT * residual
        if not self.args.predictor_only:
            total = total + first
        for parameter in self.parameters:
            parameter.grad = None
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, MAX_GRADIENT_NORM)
        rate = self.rate()
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.muon.step(rate)
        self.step, self.seen = self.step + 1, self.seen + count
        return [first.item(), accuracy.item(), residual.item()], count

    def rate(self) -> float:
        """Return the learning rate now: it rises, stays constant, then falls in a line."""
        done, hold = self.seen / self.args.presentations, self.args.hold
        fall = 1.0 if done < hold else max(MIN_RATE, (1 - done) / (1 - hold))
        return self.args.learning_rate * fall * min(1.0, (self.step + 1) / WARMUP_STEPS)

    def test(self) -> dict[str, float]:
        """Return how a few sentences of `--test` are spoken, in both ways of feeding text."""
        found = {}
        for (kind, sentences), feed in product(self.sentences.items(), shards.FEEDS):
            layout = Layout(is_full=feed == "full")
            some = sentences[:NUM_SPOKEN]
            if not layout.is_full:
                some = [sentence.delayed(self.codebooks.silence) for sentence in some]
            figures = progress(self.weights, self.config, some, self.codebooks, layout)
            found |= {f"{kind}_{feed}_{name}": value for name, value in figures.items()}
        return found

    def save(self, path: Path) -> None:
        """Write everything that `resume` needs; the file appears whole."""
        state = {
            "weights": {name: value.detach() for name, value in self.weights.items()},
            "adam": self.adam.state_dict(),
            "muon": self.muon.buffers,
            "packer": self.packer.state(),
            "step": self.step,
            "seen": self.seen,
            "history": self.history,
        }
        with replacing(path) as draft:
            torch.save(state, draft)

    def resume(self, path: Path) -> None:
        """Go on from where `save` was called."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        with torch.no_grad():
            for name, value in state["weights"].items():
                self.weights[name].copy_(value)
            for name, value in state["muon"].items():
                self.muon.buffers[name].copy_(value)
        self.adam.load_state_dict(state["adam"])
        self.packer.restore(state["packer"])
        self.step, self.seen, self.history = state["step"], state["seen"], state["history"]


def _is_learned(name: str, predictor_only: bool) -> bool:
    """Return whether a tensor is learned here; the talker learns the predictor's embeddings."""
    return not predictor_only or (
        name.startswith("code_predictor.") and "codec_embedding" not in name
    )


def _is_hidden_matrix(name: str, parameter: torch.Tensor) -> bool:
    return parameter.ndim == 2 and ".layers." in name


def _fitting(path: Path, weights: Weights) -> Weights:
    """Return a checkpoint's tensors that have the wanted shape; log the names of the others."""
    stored = {
        name.removeprefix(TALKER_PREFIX): value.float() for name, value in load_file(path).items()
    }
    found = {
        name: stored[name]
        for name, value in weights.items()
        if name in stored and stored[name].shape == value.shape
    }
    fresh = sorted(weights.keys() - found.keys())
    print(f"{path}: {len(found)} tensors loaded; newly drawn: {', '.join(fresh) or 'none'}")
    return found


def parse_args(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = run_options.parser(__doc__, learning_rate=2e-3, hold=0.35)
    add = parsing.adder(parser)
    add("--data", "folder of shards to learn from", Path, required=True)
    add("--test", "folder of shards with sentences to speak at intervals", Path)
    add(
        "--presentations",
        "total number of utterances to train on, repetitions included",
        int,
        500_000,
    )
    add("--predictor-only", "train the code predictor and leave the talker as it is", bool)
    add("--rows", "number of rows in a batch", int, 4)
    add("--row-length", "number of positions in a row", int, 512)
    add("--frames", "number of frames of a batch that the code predictor learns from", int, 320)
    add("--codebooks", "codebooks file, with which the spoken frames are compared", Path, SHIPPED)
    add("--test-minutes", "minutes between two tests on the test sentences", float, 10.0)
    add(
        "--compile",
        "compile the talker's step with torch.compile",
        argparse.BooleanOptionalAction,
        True,
    )
    return parser.parse_args(arguments)


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Train; return the last figures."""
    if not math.isfinite(args.learning_rate) or args.learning_rate <= 0:
        raise SystemExit(f"--learning-rate is {args.learning_rate}; it must be positive.")
    torch.manual_seed(args.seed)
    folders = [args.data, args.test] if args.test else [args.data]
    pool = [utterance for folder in folders for utterance in shards.read_folder(folder)]
    config = recipe.parsed_model_config(pool[0].codes.shape[1])
    training = Training(args, config, pool)
    if args.resume:
        training.resume(args.output)
    training.run()
    return training.history[-1] if training.history else {}


if __name__ == "__main__":
    main(parse_args())
