"""The command `sheen`: prepare | train | infer | verify."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_megakernel.choices import DTYPES
from qwen_megakernel.cli import options, parsing, speak
from qwen_megakernel.cli.training_progress import (
    chosen_options,
    print_report,
    print_steps,
    row_bar,
    step_bar,
)

if TYPE_CHECKING:
    from qwen_megakernel.sheen.training.job import Job
    from qwen_megakernel.sheen.training.verify import Check
    from qwen_megakernel.training.trainer import StepRecord, TrainOptions

# The defaults of sheen.codec and sheen.model_folder, which import torch.
DEFAULT_SNAC = "hubertsiuzdak/snac_24khz"
DEFAULT_BASE_MODEL = "Qwen/Qwen2.5-0.5B"

BACKENDS = ("auto", "kernel", "torch", "emulation")
FAILED = 1  # the exit code of a check that failed

_DATA_HELP = "dataset that `sheen prepare` wrote"


def add_commands(commands: Any) -> None:
    """Add `sheen prepare | train | infer | verify` to the subparsers `commands`."""
    command = commands.add_parser("sheen", help="train a voice and speak with it")
    sheen = command.add_subparsers(required=True)
    _add_prepare(sheen)
    _add_train(sheen)
    _add_infer(sheen)
    _add_verify(sheen)


def prepare(args: argparse.Namespace) -> int:
    """Encode recordings: read metadata.csv and wav/, write their codes to a JSONL file."""
    options.report_loading(args, args.snac)
    from qwen_megakernel.gpu.driver import find_device
    from qwen_megakernel.sheen.codec import SnacCodec, find_snac
    from qwen_megakernel.sheen.training.prepare import prepare
    from qwen_megakernel.training.preparing import METADATA, read_metadata

    # Checks the dataset before anything is downloaded.
    read_metadata(Path(args.dataset) / METADATA, is_text=args.espeak is not None)
    device = find_device(args.device)
    folder = find_snac(args.snac, local_files_only=args.local_files_only, progress=not args.quiet)
    report = prepare(
        Path(args.dataset),
        Path(args.output),
        SnacCodec(folder, device),
        espeak=args.espeak,
        progress=row_bar(args),
    )
    print_report(args, report)
    return 0


def train(args: argparse.Namespace) -> int:
    """Train a voice on a dataset."""
    options.report_loading(args, args.model)
    from qwen_megakernel.sheen.training.job import train_voice

    with step_bar(args) as (start, after):
        trainer = train_voice(_job(args), _train_options(args), on_start=start, on_step=after)
    print_steps(args, trainer)
    return 0


def infer(args: argparse.Namespace) -> int:
    """Speak a text with a trained voice."""
    text = speak.read_text(args)
    options.check_options(args)
    mark = options.marking_from_args(args)
    options.report_loading(args, args.model)
    from qwen_megakernel.sheen.engine import SheenEngine

    engine = SheenEngine.from_pretrained(
        args.model,
        backend=args.backend,
        device=args.device,
        dtype=args.dtype,
        phonemes=args.phonemes,
        order=args.order,
        mark=mark,
        warmup=False,
    )
    with engine as tts:
        options.report_engine(args, tts)
        tts.max_chars = sys.maxsize  # `read_text` has checked the length
        tts.format_option = options.TEXT_FORMAT
        stream = tts.stream(text, **options.given_options(args))
        speak.write_speech(args, tts, stream, text)
    return 0


def verify_dataset(args: argparse.Namespace) -> int:
    """Check a dataset: every line, and all lines together."""
    from qwen_megakernel.sheen.training.verify import check_dataset

    return _print_checks(check_dataset(Path(args.data), args.codebook_size, args.max_length))


def verify_tokenizer(args: argparse.Namespace) -> int:
    """Check the tokenizer and the embeddings of a trained voice."""
    options.report_loading(args, args.model)
    from qwen_megakernel.sheen import model_folder
    from qwen_megakernel.sheen.training.verify import check_tokenizer

    return _print_checks(check_tokenizer(model_folder.find(args.model).folder))


def verify_snac(args: argparse.Namespace) -> int:
    """Check that a SNAC codec encodes, decodes and streams."""
    options.report_loading(args, args.snac)
    from qwen_megakernel.sheen.codec import find_snac
    from qwen_megakernel.sheen.training.verify import check_snac

    folder = find_snac(args.snac, local_files_only=args.local_files_only, progress=not args.quiet)
    return _print_checks(check_snac(folder))


def verify_training(args: argparse.Namespace) -> int:
    """Check training on two samples of a dataset, without keeping the result."""
    options.report_loading(args, args.model)
    from tqdm import tqdm

    from qwen_megakernel.sheen.training.verify import check_training

    bars: list[tqdm] = []  # empty until the steps begin, as in `train`

    def step(record: "StepRecord", num_steps: int) -> None:
        if not bars:
            bars.append(tqdm(unit="step", disable=args.quiet, file=sys.stderr, total=num_steps))
        bars[0].update()
        if bars[0].n == num_steps:
            bars[0].close()

    return _print_checks(check_training(_job(args), _train_options(args), step))


def _print_checks(checks: "Iterable[Check]") -> int:
    """Print each check when it is done; returns the exit code."""
    failed = 0
    for check in checks:
        print(f"{'ok  ' if check.passed else 'FAIL'} {check.name}: {check.detail}", flush=True)
        failed += not check.passed
    print("all passed" if not failed else f"{failed} failed")
    return FAILED if failed else 0


def _job(args: argparse.Namespace) -> "Job":
    from qwen_megakernel.sheen.training.job import Job

    return Job(
        data=Path(args.data),
        output=Path(args.output),
        base_model=args.model,
        snac=args.snac,
        device=args.device,
        save_steps=args.save_steps,
        resume=args.resume,
        local_files_only=args.local_files_only,
        progress=not args.quiet,
    )


def _train_options(args: argparse.Namespace) -> "TrainOptions":
    from qwen_megakernel.training.trainer import TrainOptions

    return chosen_options(args, TrainOptions)


def _add_prepare(sheen: Any) -> None:
    command = parsing.new_command(sheen, "prepare", prepare, "encode recordings for training")
    add = command.add_argument
    add("dataset", metavar="DIR", help="folder with metadata.csv (id|phonemes) and wav/")
    add(
        "-o",
        "--output",
        default="dataset.jsonl",
        help="JSONL file to write; the rows in it are kept, so an interrupted run goes on "
        "(default: %(default)s)",
    )
    add(
        "--espeak",
        metavar="VOICE",
        help="espeak-ng voice to phonemise with, such as en-us; metadata.csv is then id|text",
    )
    _add_snac_options(command)


def _add_train(sheen: Any) -> None:
    command = parsing.new_command(sheen, "train", train, "train a voice")
    add = command.add_argument
    _add_training_options(command)
    add("-o", "--output", required=True, metavar="DIR", help="folder to write the voice to")
    add("--save-steps", type=int, default=500, help="steps between saves (default: 500)")
    add(
        "--resume",
        action="store_true",
        help="go on from the state of an interrupted run in --output",
    )


def _add_infer(sheen: Any) -> None:
    command = parsing.new_command(sheen, "infer", infer, "speak with a voice")
    add = command.add_argument
    add("text", help="text to speak; - reads standard input")
    add("--model", required=True, metavar="DIR", help="folder of the trained voice")
    add("--phonemes", action="store_true", help="take the text as phonemes, without espeak-ng")
    add(
        "--order",
        default="repair",
        choices=("repair", "refuse"),
        help="repair: draw only from tokens that may come next (default); refuse: draw from all "
        "and stop with an error at the first wrong one, to test how well a voice is trained",
    )
    add(
        "--backend",
        default="auto",
        choices=BACKENDS,
        help="backend that computes the codec codes: kernel (CUDA), torch (transformers), "
        "emulation (the kernel on a CPU, slow) (default: auto, the kernel on a GPU that can run "
        "it, else torch)",
    )
    add("--device", help=options.DEVICE_HELP)
    add(
        "--dtype",
        choices=DTYPES,
        help="number format to compute in (default: bfloat16 on a GPU, float32 on a CPU)",
    )
    speak.add_output_options(command)
    options.add_options(command, options.OF_TRAINED_VOICES)
    options.add_mark_options(command)
    options.add_verbosity(command)


def _add_verify(sheen: Any) -> None:
    command = sheen.add_parser("verify", help="check a dataset, a voice, a codec or training")
    verify = command.add_subparsers(required=True)
    command = parsing.new_command(
        verify, "dataset", verify_dataset, "check every line of a dataset"
    )
    add = command.add_argument
    add("data", metavar="JSONL", help=_DATA_HELP)
    add("--codebook-size", type=int, default=4096, help="codes per codebook (default: 4096)")
    add("--max-length", type=int, default=1024, help="most tokens in a sequence (default: 1024)")
    options.add_verbosity(command)

    command = parsing.new_command(
        verify,
        "tokenizer",
        verify_tokenizer,
        "check the tokenizer and embeddings of a trained voice",
    )
    command.add_argument("model", metavar="DIR", help="folder of the trained voice")
    options.add_verbosity(command)

    command = parsing.new_command(
        verify, "snac", verify_snac, "check that the SNAC codec encodes, decodes and streams"
    )
    _add_snac_options(command)

    command = parsing.new_command(
        verify, "training", verify_training, "check training on two samples"
    )
    _add_training_options(command)
    command.set_defaults(output="", save_steps=1, resume=False)


def _add_snac_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--snac",
        default=DEFAULT_SNAC,
        help="SNAC codec: hub id, folder, or tiny-random-snac, which needs no download "
        f"(default: {DEFAULT_SNAC})",
    )
    add("--device", help=options.DEVICE_HELP)
    options.add_local_files_option(command)
    options.add_verbosity(command)


def _add_training_options(command: argparse.ArgumentParser) -> None:
    """Add the options of training; None takes the default of `TrainOptions`."""
    add = command.add_argument
    add("data", metavar="JSONL", help=_DATA_HELP)
    add(
        "--model",
        default=DEFAULT_BASE_MODEL,
        help="language model to train: hub id or folder of a Qwen2.5, or "
        f"tiny-random-qwen2.5, which needs no download (default: {DEFAULT_BASE_MODEL})",
    )
    add("--learning-rate", type=float, help="highest learning rate (default: 2e-5)")
    add("--batch-size", type=int, help="rows in a forward pass (default: 4)")
    add("--gradient-accumulation", type=int, help="passes before an optimizer step (default: 4)")
    add("--max-length", type=int, help="most tokens in a row (default: 1024)")
    add(
        "--precision",
        choices=("fp16", "bf16", "fp32"),
        help="number format to train in (default: fp16)",
    )
    add("--epochs", type=int, help="passes over the dataset (default: 20)")
    add("--max-steps", type=int, help="number of steps after which to stop, even within an epoch")
    add("--warmup-steps", type=int, help="steps while the learning rate rises (default: 100)")
    add("--weight-decay", type=float, help="weight decay of AdamW (default: 0.01)")
    add(
        "--max-grad-norm",
        type=float,
        help="largest norm of the gradients; larger ones are scaled down (default: 1.0)",
    )
    add("--seed", type=int, help="seed of new embeddings and of the rows' order (default: 0)")
    _add_snac_options(command)
