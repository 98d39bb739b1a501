"""The command `train`: makes a voice of Qwen3-TTS from recordings."""

import argparse
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from qwen_megakernel.choices import DEFAULT_MODEL, DTYPES, SAMPLE_TEXT
from qwen_megakernel.cli import options, parsing, training
from qwen_megakernel.output_files import check_writable


def add_commands(commands: Any) -> None:
    command = commands.add_parser("train", help="fine-tune Qwen3-TTS on recordings of one speaker")
    train = command.add_subparsers(required=True)
    _add_prepare(train)
    _add_run(train)
    _add_merge(train)
    _add_verify(train)


def prepare(args: argparse.Namespace) -> int:
    """Encode recordings: write codec frames and an x-vector of each to a JSONL file."""
    from qwen_megakernel.training import speech_data

    place, output = Path(args.recordings), Path(args.output)
    # Checks the recordings' list and the output before anything is downloaded.
    speech_data.list_recordings(place)
    check_writable(output, "recordings")
    options.say(args, f"loading {args.model}")
    from qwen_megakernel.checkpoint import loading

    loaded = loading.load(options.model_files(args))
    report = speech_data.prepare(place, output, loaded, training.row_bar(args), args.workers)
    training.print_report(args, report)
    for fault in report.faults:
        print(f"  {fault}")
    return 0


def run(args: argparse.Namespace) -> int:
    """Fine-tune a Base model on prepared recordings; write the folder of a voice."""
    options.say(args, f"loading {args.model}")
    from qwen_megakernel.training.speech_job import TuneJob, tune
    from qwen_megakernel.training.speech_trainer import TuneOptions

    names = {name: vars(args)[name] for name in ("model", "name", "held_out", "sample_text")}
    job = training.job_of(args, TuneJob, **names)
    chosen = training.chosen_options(args, TuneOptions)
    with training.step_bar(args) as watch:
        trainer = tune(job, chosen, watch)
    training.print_steps(args, trainer)
    if trainer.evaluations:
        (_, base), (step, tuned) = trainer.evaluations[0], trainer.evaluations[-1]
        print(f"held-out loss of each codebook, of the base model and after step {step}:")
        for codebook, (before, now) in enumerate(zip(base, tuned, strict=True)):
            print(f"  {codebook:2}  {before:7.3f}  {now:7.3f}")
    return 0


def merge(args: argparse.Namespace) -> int:
    """Write a voice as a CustomVoice checkpoint, which every command takes as --model."""
    options.say(args, f"loading {args.voice}")
    import torch

    from qwen_megakernel.training import speech_job

    speech_job.merge(
        Path(args.voice),
        Path(args.output),
        dtype=getattr(torch, args.dtype) if args.dtype else None,
        local_files_only=args.local_files_only,
    )
    print(f"{args.output}: --model {shlex.quote(args.output)} speaks with it")
    return 0


def verify(args: argparse.Namespace) -> int:
    """Check prepared recordings, and training on them, without keeping the result."""
    options.say(args, f"loading {args.model}")
    from qwen_megakernel.training import speech_checks
    from qwen_megakernel.training.speech_job import TuneJob
    from qwen_megakernel.training.speech_trainer import TuneOptions

    kind = partial(TuneOptions, learning_rate=1e-3, warmup_steps=0, epochs=20)
    job = training.job_of(args, TuneJob, model=args.model)
    chosen = training.chosen_options(args, kind)
    return training.print_checks(args, lambda watch: speech_checks.verify(job, chosen, watch))


def _add_model_options(command: argparse.ArgumentParser, **defaults: Any) -> None:
    """Add what `train run` and `train verify` share: data, model, method, training, machine."""
    add = parsing.adder(command)
    add("data DATA", "JSONL file that `train prepare` wrote", parsing.file_name)
    add("--model", "Base model to train", str, DEFAULT_MODEL)
    add(
        "--method",
        "lora: small matrices beside those of the layers; full: talker and code predictor "
        "(default: lora)",
        ("lora", "full"),
    )
    add("--rank", "rank of the LoRA matrices (default: 16)", parsing.POSITIVE)
    add("--alpha", "scale of the LoRA matrices, times the rank (default: 32)", parsing.POSITIVE)
    add("--checkpointing", "compute activations twice, to save memory", bool)
    lengths = "frames of a recording"
    defaults = {"batch_size": 1, "precision": "bf16", **defaults}
    training.add_training_options(command, rows="recordings", lengths=lengths, **defaults)
    add("--device", options.DEVICE_HELP)
    add(*options.LOCAL_FILES)


def _add_verify(train: Any) -> None:
    command = parsing.new_command(
        train, "verify", verify, "check prepared recordings, and training on two of them"
    )
    _add_model_options(command, learning_rate="1e-3", epochs=20, warmup_steps=0)


def _add_run(train: Any) -> None:
    command = parsing.new_command(train, "run", run, "fine-tune a model on prepared recordings")
    add = parsing.adder(command)
    _add_model_options(command, learning_rate="1e-4", epochs=10, warmup_steps=10)
    add("--name", "the speaker's name in the merged model", str, "speaker")
    add("--held-out", "share of recordings to measure the loss on, or 0", float, 0.1)
    add("--eval-steps", "steps between two held-out losses (default: 50)", parsing.POSITIVE)
    add(
        "--patience",
        "held-out losses in a row without a lower one, after which to stop (default: 5)",
        parsing.POSITIVE,
    )
    add(
        "--sample-text",
        'text to speak every --eval-steps, to VOICE/sample-STEP.wav; "": none '
        '(default: "%(default)s")',
        default=SAMPLE_TEXT,
    )
    training.add_job_options(command, save_steps=100)


def _add_merge(train: Any) -> None:
    command = parsing.new_command(train, "merge", merge, "write a voice as a CustomVoice model")
    add = parsing.adder(command)
    add("voice VOICE", "folder that `train run` wrote", parsing.file_name)
    add("-o --output FOLDER", "new folder for the model", parsing.file_name, required=True)
    add("--dtype", "number format of the weights (default: that of the base model)", DTYPES)
    add(*options.LOCAL_FILES)


def _add_prepare(train: Any) -> None:
    command = parsing.new_command(train, "prepare", prepare, "encode recordings for training")
    add = parsing.adder(command)
    add(
        "recordings RECORDINGS",
        "folder with metadata.csv (id|text) and wav/, folder of NAME.wav beside NAME.txt, or "
        'JSONL file of {"audio": ..., "text": ...}',
        parsing.file_name,
    )
    add(
        "-o --output DATA",
        "JSONL file to write; the lines in it are kept, so an interrupted run goes on",
        parsing.file_name,
        required=True,
    )
    add("--model", "Base model that will be trained, whose encoders are used", str, DEFAULT_MODEL)
    training.add_workers_option(command)
    add(*options.LOCAL_FILES)
