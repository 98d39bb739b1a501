"""The command `sheen`: prepare | train | infer | verify."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_megakernel.choices import DTYPES
from qwen_megakernel.cli import options, parsing, speak, training
from qwen_megakernel.output_files import check_writable

if TYPE_CHECKING:
    from qwen_megakernel.sheen.training.job import Job
    from qwen_megakernel.training.trainer import TrainOptions

# The defaults of sheen.codec and sheen.model_folder, which import torch.
DEFAULT_SNAC = "hubertsiuzdak/snac_24khz"
DEFAULT_BASE_MODEL = "Qwen/Qwen2.5-0.5B"

_OF_ENGINES = ("backend", "device", "dtype", "phonemes", "order")
BACKENDS = ("auto", "kernel", "torch", "emulation")

_DATA_HELP = "dataset that `sheen prepare` wrote"


def add_commands(commands: Any) -> None:
    command = commands.add_parser("sheen", help="train a voice and speak with it")
    sheen = command.add_subparsers(required=True)
    _add_prepare(sheen)
    _add_train(sheen)
    _add_infer(sheen)
    _add_verify(sheen)


def prepare(args: argparse.Namespace) -> int:
    """Encode recordings: read metadata.csv and wav/, write their codes to a JSONL file."""
    options.say(args, f"loading {args.snac}")
    from qwen_megakernel.gpu.driver import find_device
    from qwen_megakernel.sheen.codec import SnacCodec, find_snac
    from qwen_megakernel.sheen.training.prepare import prepare
    from qwen_megakernel.training.preparing import METADATA, read_metadata

    # Checks the dataset and the output before anything is downloaded.
    read_metadata(Path(args.dataset) / METADATA, is_text=args.espeak is not None)
    check_writable(Path(args.output), "a dataset")
    device = find_device(args.device)
    folder = find_snac(args.snac, local_files_only=args.local_files_only, progress=not args.quiet)
    report = prepare(
        Path(args.dataset),
        Path(args.output),
        SnacCodec(folder, device),
        espeak=args.espeak,
        progress=training.row_bar(args),
        workers=args.workers,
    )
    training.print_report(args, report)
    return 0


def train(args: argparse.Namespace) -> int:
    """Train a voice on a dataset."""
    options.say(args, f"loading {args.model}")
    from qwen_megakernel.sheen.training.job import train_voice

    with training.step_bar(args) as watch:
        trainer = train_voice(*_inputs(args), watch)
    training.print_steps(args, trainer)
    return 0


def infer(args: argparse.Namespace) -> int:
    """Speak a text with a trained voice."""
    text = speak.read_text(args)
    options.check_options(args)
    mark = options.marking_from_args(args)
    options.say(args, f"loading {args.model}")
    from qwen_megakernel.sheen.engine import SheenEngine

    given = {name: getattr(args, name) for name in _OF_ENGINES}
    with SheenEngine.from_pretrained(args.model, mark=mark, warmup=False, **given) as tts:
        options.report_engine(args, tts)
        tts.max_chars = sys.maxsize  # `read_text` has checked the length
        tts.format_option = options.TEXT_FORMAT
        stream = tts.stream(text, **options.given_options(args))
        speak.write_speech(args, tts, stream, text)
    return 0


def verify_dataset(args: argparse.Namespace) -> int:
    """Check a dataset: every line, and all lines together."""
    from qwen_megakernel.sheen.training.verify import check_dataset

    checks = check_dataset(Path(args.data), args.codebook_size, args.max_length)
    return training.print_checks(args, lambda watch: checks)


def verify_tokenizer(args: argparse.Namespace) -> int:
    """Check the tokenizer and the embeddings of a trained voice."""
    options.say(args, f"loading {args.model}")
    from qwen_megakernel.sheen import model_folder
    from qwen_megakernel.sheen.training.verify import check_tokenizer

    folder = model_folder.find(args.model).folder
    return training.print_checks(args, lambda watch: check_tokenizer(folder))


def verify_snac(args: argparse.Namespace) -> int:
    """Check that a SNAC codec encodes, decodes and streams."""
    options.say(args, f"loading {args.snac}")
    from qwen_megakernel.sheen.codec import find_snac
    from qwen_megakernel.sheen.training.verify import check_snac

    folder = find_snac(args.snac, local_files_only=args.local_files_only, progress=not args.quiet)
    return training.print_checks(args, lambda watch: check_snac(folder))


def verify_training(args: argparse.Namespace) -> int:
    """Check training on two samples of a dataset, without keeping the result."""
    options.say(args, f"loading {args.model}")
    from qwen_megakernel.sheen.training.verify import check_training

    inputs = _inputs(args)
    return training.print_checks(args, lambda watch: check_training(*inputs, watch))


def _inputs(args: argparse.Namespace) -> "tuple[Job, TrainOptions]":
    from qwen_megakernel.sheen.training.job import Job
    from qwen_megakernel.training.trainer import TrainOptions

    job = training.job_of(args, Job, base_model=args.model, snac=args.snac)
    return job, training.chosen_options(args, TrainOptions)


def _add_prepare(sheen: Any) -> None:
    command = parsing.new_command(sheen, "prepare", prepare, "encode recordings for training")
    add = parsing.adder(command)
    add("dataset DIR", "folder with metadata.csv (id|phonemes) and wav/", parsing.file_name)
    add(
        "-o --output",
        "JSONL file to write; the rows in it are kept, so an interrupted run goes on",
        parsing.file_name,
        "dataset.jsonl",
    )
    add(
        "--espeak VOICE",
        "espeak-ng voice to phonemise with, such as en-us; metadata.csv is then id|text",
    )
    training.add_workers_option(command)
    _add_snac_options(command)


def _add_train(sheen: Any) -> None:
    command = parsing.new_command(sheen, "train", train, "train a voice")
    _add_training_options(command)
    training.add_job_options(command, save_steps=500)


def _add_infer(sheen: Any) -> None:
    command = parsing.new_command(sheen, "infer", infer, "speak with a voice")
    options.add_text_options(command)
    speak.add_output_options(command)
    # A trained voice has one language, and reads all of a text first.
    others = ("style", "language", "instruct", "text_feed")
    options.add_options(command, [name for name in options.OFFERED if name not in others])
    options.add_mark_options(command)
    add = parsing.adder(command, options.MACHINE)
    add("--model DIR", "folder of the trained voice", parsing.file_name, required=True)
    add("--phonemes", "take the text as phonemes, without espeak-ng", bool)
    add(
        "--order",
        "repair: draw only from tokens that may come next (default); refuse: draw from all and "
        "stop with an error at the first wrong one, to test how well a voice is trained",
        ("repair", "refuse"),
        "repair",
    )
    add(
        "--backend",
        "backend that computes the codec codes: kernel (CUDA), torch (transformers), emulation "
        "(the kernel on a CPU, slow) (default: auto, the kernel on a GPU that can run it, else "
        "torch)",
        BACKENDS,
        "auto",
    )
    add("--device", options.DEVICE_HELP)
    add(
        "--dtype",
        "number format to compute in (default: bfloat16 on a GPU, float32 on a CPU)",
        DTYPES,
    )


def _add_verify(sheen: Any) -> None:
    command = sheen.add_parser("verify", help="check a dataset, a voice, a codec or training")
    verify = command.add_subparsers(required=True)
    command = parsing.new_command(
        verify, "dataset", verify_dataset, "check every line of a dataset"
    )
    add = parsing.adder(command)
    add("data JSONL", _DATA_HELP, parsing.file_name)
    add("--codebook-size", "codes per codebook", parsing.POSITIVE, 4096)
    add("--max-length", "most tokens in a sequence", parsing.POSITIVE, 1024)

    command = parsing.new_command(
        verify,
        "tokenizer",
        verify_tokenizer,
        "check the tokenizer and embeddings of a trained voice",
    )
    parsing.adder(command)("model DIR", "folder of the trained voice", parsing.file_name)

    command = parsing.new_command(
        verify, "snac", verify_snac, "check that the SNAC codec encodes, decodes and streams"
    )
    _add_snac_options(command)

    command = parsing.new_command(
        verify, "training", verify_training, "check training on two samples"
    )
    _add_training_options(command)


def _add_snac_options(command: argparse.ArgumentParser) -> None:
    add = parsing.adder(command)
    add(
        "--snac",
        "SNAC codec: hub id, folder, or tiny-random-snac, which needs no download "
        f"(default: {DEFAULT_SNAC})",
        default=DEFAULT_SNAC,
    )
    add("--device", options.DEVICE_HELP)
    add(*options.LOCAL_FILES)


def _add_training_options(command: argparse.ArgumentParser) -> None:
    """Add the options of training; None takes the default of `TrainOptions`."""
    add = parsing.adder(command)
    add("data JSONL", _DATA_HELP, parsing.file_name)
    add(
        "--model",
        "language model to train: hub id or folder of a Qwen2.5, or "
        f"tiny-random-qwen2.5, which needs no download (default: {DEFAULT_BASE_MODEL})",
        default=DEFAULT_BASE_MODEL,
    )
    training.add_training_options(
        command,
        rows="rows",
        lengths="tokens of a row",
        learning_rate="2e-5",
        batch_size=4,
        precision="fp16",
        epochs=20,
        warmup_steps=100,
    )
    _add_snac_options(command)
