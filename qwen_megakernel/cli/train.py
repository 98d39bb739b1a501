"""The command `train`: makes a voice of Qwen3-TTS from recordings."""

import argparse
from pathlib import Path
from typing import Any

from qwen_megakernel.choices import DTYPES
from qwen_megakernel.cli import options, parsing
from qwen_megakernel.cli.training import (
    add_job_options,
    add_training_options,
    add_workers_option,
    chosen_options,
    job_of,
    print_report,
    print_steps,
    row_bar,
    step_bar,
)

DEFAULT_BASE = "Qwen/Qwen3-TTS-12Hz-0.6B-Base"


def add_commands(commands: Any) -> None:
    """Add `train prepare | run | merge` to the subparsers `commands`."""
    command = commands.add_parser("train", help="fine-tune Qwen3-TTS on recordings of one speaker")
    train = command.add_subparsers(required=True)
    _add_prepare(train)
    _add_run(train)
    _add_merge(train)


def prepare(args: argparse.Namespace) -> int:
    """Encode recordings: write codec frames and an x-vector of each to a JSONL file."""
    from qwen_megakernel.training import speech_data

    # Checks the recordings' list before anything is downloaded.
    speech_data.list_recordings(Path(args.recordings))
    options.report_loading(args, args.model)
    from qwen_megakernel.checkpoint import loading

    loaded = loading.load(options.model_files(args))
    place, output = Path(args.recordings), Path(args.output)
    report = speech_data.prepare(place, output, loaded, row_bar(args), args.workers)
    print_report(args, report)
    for fault in report.faults:
        print(f"  {fault}")
    return 0


def run(args: argparse.Namespace) -> int:
    """Fine-tune a Base model on prepared recordings; write the folder of a voice."""
    options.report_loading(args, args.model)
    from qwen_megakernel.training.speech_job import TuneJob, tune
    from qwen_megakernel.training.speech_trainer import TuneOptions

    job = job_of(args, TuneJob, model=args.model, name=args.name, held_out=args.held_out)
    chosen = chosen_options(args, TuneOptions)
    with step_bar(args) as watch:
        trainer = tune(job, chosen, watch)
    print_steps(args, trainer)
    if trainer.evaluations:
        (_, base), (step, tuned) = trainer.evaluations[0], trainer.evaluations[-1]
        print(f"held-out loss of each codebook, of the base model and after step {step}:")
        for codebook, (before, now) in enumerate(zip(base, tuned, strict=True)):
            print(f"  {codebook:2}  {before:7.3f}  {now:7.3f}")
    return 0


def merge(args: argparse.Namespace) -> int:
    """Write a voice as a CustomVoice checkpoint, which every command takes as --model."""
    options.report_loading(args, args.voice)
    import torch

    from qwen_megakernel.training import speech_job

    speech_job.merge(
        Path(args.voice),
        Path(args.output),
        dtype=getattr(torch, args.dtype) if args.dtype else None,
        local_files_only=args.local_files_only,
    )
    print(f"{args.output}: --model {args.output} speaks with it")
    return 0


def _add_run(train: Any) -> None:
    command = parsing.new_command(train, "run", run, "fine-tune a model on prepared recordings")
    add = command.add_argument
    whole = parsing.at_least(1)
    add("data", metavar="DATA", help="JSONL file that `train prepare` wrote")
    add("--model", default=DEFAULT_BASE, help="Base model to train (default: %(default)s)")
    add("--name", default="speaker", help="the speaker's name in the merged model")
    add(
        "--method",
        choices=("lora", "full"),
        help="lora: small matrices beside those of the layers; full: talker and code predictor "
        "(default: lora)",
    )
    add("--rank", type=whole, help="rank of the LoRA matrices (default: 16)")
    add("--alpha", type=whole, help="scale of the LoRA matrices, times the rank (default: 32)")
    add("--checkpointing", action="store_true", help="compute activations twice, to save memory")
    add_training_options(
        command,
        rows="recordings",
        lengths="frames of a recording",
        learning_rate="1e-4",
        batch_size=1,
        precision="bf16",
        epochs=10,
    )
    add("--held-out", type=float, default=0.1, help="share to measure the loss on (default: 0.1)")
    add("--eval-steps", type=whole, help="steps between two held-out losses (default: 50)")
    add(
        "--patience",
        type=whole,
        help="held-out losses in a row without a lower one, after which to stop (default: 5)",
    )
    add_job_options(command, save_steps=100)
    add("--device", help=options.DEVICE_HELP)
    options.add_local_files_option(command)
    options.add_verbosity(command)


def _add_merge(train: Any) -> None:
    command = parsing.new_command(train, "merge", merge, "write a voice as a CustomVoice model")
    add = command.add_argument
    add("voice", metavar="VOICE", help="folder that `train run` wrote")
    add("-o", "--output", required=True, metavar="FOLDER", help="new folder for the model")
    add(
        "--dtype",
        choices=DTYPES,
        help="number format of the weights (default: that of the base model)",
    )
    options.add_local_files_option(command)
    options.add_verbosity(command)


def _add_prepare(train: Any) -> None:
    command = parsing.new_command(train, "prepare", prepare, "encode recordings for training")
    add = command.add_argument
    add(
        "recordings",
        metavar="RECORDINGS",
        help="folder with metadata.csv (id|text) and wav/, folder of NAME.wav beside NAME.txt, or "
        'JSONL file of {"audio": ..., "text": ...}',
    )
    add(
        "-o",
        "--output",
        required=True,
        metavar="DATA",
        help="JSONL file to write; the lines in it are kept, so an interrupted run goes on",
    )
    add(
        "--model",
        default=DEFAULT_BASE,
        help="Base model that will be trained, whose encoders are used (default: %(default)s)",
    )
    add_workers_option(command)
    options.add_local_files_option(command)
    options.add_verbosity(command)
