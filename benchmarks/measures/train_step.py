"""Measure a step of `train run`: its seconds, and the peak memory of the process.

What a GPU of 24 GB would need is calculated from this step: the bytes of weights, gradients and
Adam's state, those that autograd keeps for the backward pass, and the products of the arithmetic at
the GPU's peak. A GPU takes longer than that, and its attention keeps other tensors.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks import common, option_types
from benchmarks.roofline import GPUS
from qwen_megakernel.checkpoint.frame_weights import frame_weights
from qwen_megakernel.cli import options
from qwen_megakernel.training.speech_job import Parts, TuneJob
from qwen_megakernel.training.speech_trainer import METHODS, SpeechTrainer, Spoken, TuneOptions
from qwen_megakernel.training.trainer import PRECISIONS
from qwen_megakernel.voice import Voice

GPUS_OF_24_GB = ("RTX 4090", "L4")
ADAM_STATES = 2  # float32 numbers that Adam keeps for a weight, beside its gradient
TEXT = "Good morning, and welcome. The train leaves at nine, and it takes three hours."


@common.takes(
    common.option("--model", "name or folder of the Base model", str, "random-0.6b-base"),
    common.option("--method", "as `train run` takes it", METHODS, "lora"),
    common.option("--precision", "of products", tuple(PRECISIONS), "bf16"),
    common.option("--checkpointing", "compute activations twice", bool),
    common.option("--seconds", "length of the recording", option_types.positive, 5.0),
    common.option("--device", options.DEVICE_HELP),
    common.count("--threads", 2, "number of PyTorch threads"),
    common.count("--runs", 3, "number of steps whose figures count"),
    common.count("--warmup", 1, "number of steps before them, whose figures do not count", least=0),
    options.add_verbosity,
)
def train_step(args: argparse.Namespace) -> int:
    """Measure and report."""
    torch.set_num_threads(args.threads)
    parts = Parts.load(TuneJob(Path(), Path(), args.model, device=args.device))
    chosen = TuneOptions(
        method=args.method,
        precision=args.precision,
        checkpointing=args.checkpointing,
        gradient_accumulation=1,
        epochs=args.warmup + args.runs,
    )
    num_frames = round(args.seconds / parts.base.codec_config.frame_seconds)
    trainer = new_trainer(parts, chosen, num_frames)
    calculated = memory_of(trainer)
    runs: list[float] = []
    started = time.perf_counter()

    def after(_: object) -> None:
        nonlocal started
        now = time.perf_counter()
        runs.append(now - started)
        started = now

    trainer.run(after)
    runs = runs[args.warmup :]
    calculated |= {"least_seconds_per_step": least_seconds(parts, chosen, num_frames)}
    found = common.model_header(parts.base.files, threads=args.threads) | {
        "settings": {
            "method": args.method,
            "precision": args.precision,
            "checkpointing": args.checkpointing,
            "seconds": args.seconds,
            "num_frames": num_frames,
            "warmup": args.warmup,
        },
        "peak_memory_mb": common.peak_memory_mb(),
        "summary": {"seconds_per_step": common.spread(runs)},
        "calculated": calculated,
    }
    print(f"{np.median(runs):.2f} s a step of {num_frames} frames, {found['peak_memory_mb']} MB")
    for name, value in calculated.items():
        print(f"calculated: {name} {value}")
    common.write_json(args.json, found)
    return 0


def new_trainer(parts: Parts, chosen: TuneOptions, num_frames: int) -> SpeechTrainer:
    """Return a trainer whose steps read one recording of random codes."""
    config, draw = parts.base.config, torch.Generator().manual_seed(0)
    shape = num_frames, config.talker.num_code_groups
    codes = torch.randint(0, config.predictor.vocab_size, shape, generator=draw)
    voice = Voice("speaker", torch.randn(config.talker.stack.hidden_size, generator=draw).numpy())
    spoken = [Spoken(parts.tokenizer.encode(TEXT), codes)]
    return SpeechTrainer(parts.new_model(chosen), spoken, [], voice, chosen)


def memory_of(trainer: SpeechTrainer) -> dict[str, float]:
    """Return the megabytes that a training holds during a backward pass, by what they hold."""
    parameters = list(trainer.model.parameters())
    learned = [each for each in parameters if each.requires_grad]
    weights = sum(each.nbytes for each in parameters)
    gradients = sum(each.nbytes for each in learned)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    own = {each.untyped_storage().data_ptr() for each in parameters}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        losses = list(trainer._losses(trainer._groups(0)[0]))
    activations = sum(size for place, size in kept.items() if place not in own)
    del losses
    sizes = {
        "weights_mb": weights,
        "gradients_mb": gradients,
        "adam_mb": ADAM_STATES * gradients,
        "activations_mb": activations,
    }
    return {name: size / 1e6 for name, size in sizes.items()}


def least_seconds(parts: Parts, chosen: TuneOptions, num_frames: int) -> dict[str, float]:
    """Return the seconds that the products of a step take at the peak of each GPU."""
    weights = frame_weights(parts.base.config)
    passes = 2 + (chosen.method == "full") + chosen.checkpointing  # forward, backward, again
    return {
        gpu.name: 2 * weights.total * num_frames * passes / (gpu.tflops * 1e12)
        for gpu in GPUS
        if gpu.name in GPUS_OF_24_GB
    }
