"""The command `sheen`: prepare | train | infer | verify."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_megakernel.cli import options, speak

if TYPE_CHECKING:
    from qwen_megakernel.sheen.training.job import Job
    from qwen_megakernel.sheen.training.prepare import Row
    from qwen_megakernel.sheen.training.trainer import StepRecord, Trainer, TrainOptions
    from qwen_megakernel.sheen.training.verify import Check

# As sheen.codec and sheen.model_folder have them, without importing torch.
DEFAULT_SNAC = "hubertsiuzdak/snac_24khz"
DEFAULT_BASE_MODEL = "Qwen/Qwen2.5-0.5B"

BACKENDS = ("auto", "kernel", "torch", "emulation")
FAILED = 1  # the exit code of a check that failed


def add_commands(commands: Any) -> None:
    """Add `sheen prepare | train | infer | verify` to the subparsers `commands`."""
    sheen = commands.add_parser("sheen", help="train a voice, speak with it").add_subparsers(
        required=True
    )
    _add_prepare(sheen)
    _add_train(sheen)
    _add_infer(sheen)
    _add_verify(sheen)


def prepare(args: argparse.Namespace) -> int:
    """Turn recordings into codes: metadata.csv and wav/ in, a JSONL file out."""
    from tqdm import tqdm

    from qwen_megakernel.gpu.driver import find_device
    from qwen_megakernel.sheen.codec import SnacCodec, find_snac
    from qwen_megakernel.sheen.training.prepare import METADATA, prepare, read_metadata

    def bar(rows: "list[Row]") -> "Iterator[Row]":
        yield from tqdm(rows, unit="recording", disable=args.quiet, file=sys.stderr)

    # It is there, or nothing is downloaded.
    read_metadata(Path(args.dataset) / METADATA, is_text=args.espeak is not None)
    device = find_device(args.device)
    folder = find_snac(args.snac, local_files_only=args.local_files_only, progress=not args.quiet)
    report = prepare(
        Path(args.dataset),
        Path(args.output),
        SnacCodec(folder, device),
        espeak=args.espeak,
        progress=bar,
    )
    print(
        f"{args.output}: {report.num_added} recordings added ({report.seconds:.1f} s), "
        f"{report.num_present} were there, {len(report.faults)} left out"
    )
    return 0


def train(args: argparse.Namespace) -> int:
    """Train a voice on a dataset."""
    from tqdm import tqdm

    from qwen_megakernel.sheen.training.job import train_voice

    bars: list[tqdm] = []  # none before the models are there: it would stand before an error

    with ExitStack() as stack:

        def start(trainer: "Trainer") -> None:
            bar = tqdm(
                unit="step",
                disable=args.quiet,
                file=sys.stderr,
                total=trainer.num_steps,
                initial=trainer.step,
            )
            bars.append(stack.enter_context(bar))

        def after(record: "StepRecord") -> None:
            bars[0].set_postfix_str(f"loss {record.loss:.3f}", refresh=False)
            bars[0].update()

        trainer = train_voice(_job(args), _train_options(args), on_start=start, on_step=after)
    loss = f"loss {trainer.records[-1].loss:.3f}" if trainer.records else "nothing to do"
    print(f"{args.output}: {trainer.step} steps, {loss}")
    return 0


def infer(args: argparse.Namespace) -> int:
    """Say something with a trained voice."""
    from qwen_megakernel.sheen.engine import SheenEngine

    text = speak.read_text(args)
    options.check_sampling(args)
    engine = SheenEngine.from_pretrained(
        args.model,
        backend=args.backend,
        device=args.device,
        dtype=args.dtype,
        phonemes=args.phonemes,
        order=args.order,
        warmup=False,
    )
    with engine as tts:
        options.tell_engine(args, tts)
        how = options.sampling_options(args) | options.sound_options(args)
        stream = tts.stream(text, **how)
        speak.write_speech(args, tts, stream, text)
    return 0


def verify_dataset(args: argparse.Namespace) -> int:
    """Check a dataset: every line, and the whole."""
    from qwen_megakernel.sheen.training.verify import check_dataset

    return _tell(check_dataset(Path(args.data), args.codebook_size, args.max_length))


def verify_tokenizer(args: argparse.Namespace) -> int:
    """Check the tokenizer and the embeddings of a trained voice."""
    from qwen_megakernel.sheen import model_folder
    from qwen_megakernel.sheen.training.verify import check_tokenizer

    return _tell(check_tokenizer(model_folder.find(args.model).folder))


def verify_snac(args: argparse.Namespace) -> int:
    """Check a SNAC: it hears, speaks, and streams."""
    from qwen_megakernel.sheen.codec import find_snac
    from qwen_megakernel.sheen.training.verify import check_snac

    folder = find_snac(args.snac, local_files_only=args.local_files_only, progress=not args.quiet)
    return _tell(check_snac(folder))


def verify_training(args: argparse.Namespace) -> int:
    """Check training on two samples; nothing is kept."""
    from qwen_megakernel.sheen.training.verify import check_training

    return _tell(check_training(_job(args), _train_options(args)))


def _tell(checks: "Iterable[Check]") -> int:
    """Print each check as it is done; the exit code."""
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
    from dataclasses import fields

    from qwen_megakernel.sheen.training.trainer import TrainOptions

    given = {field.name: getattr(args, field.name) for field in fields(TrainOptions)}
    return TrainOptions(**{name: value for name, value in given.items() if value is not None})


def _add_prepare(sheen: Any) -> None:
    command = sheen.add_parser(
        "prepare", help="turn recordings into codes", description=prepare.__doc__
    )
    command.add_argument("dataset", metavar="DIR", help="metadata.csv (id|phonemes) and wav/")
    command.add_argument(
        "-o", "--output", default="dataset.jsonl", help="what is there already stays"
    )
    command.add_argument(
        "--espeak",
        metavar="VOICE",
        help="metadata.csv is id|text; phonemise it with this espeak-ng voice, as en-us",
    )
    _add_snac_options(command)
    command.set_defaults(run=prepare)


def _add_train(sheen: Any) -> None:
    command = sheen.add_parser("train", help="train a voice on them", description=train.__doc__)
    _add_training_options(command)
    command.add_argument("-o", "--output", required=True, metavar="DIR", help="the voice's folder")
    command.add_argument(
        "--save-steps", type=int, default=500, help="write the voice after so many (default 500)"
    )
    command.add_argument("--resume", action="store_true", help="go on where --output stopped")
    command.set_defaults(run=train)


def _add_infer(sheen: Any) -> None:
    command = sheen.add_parser("infer", help="say something with it", description=infer.__doc__)
    command.add_argument("text", help="what to say; - reads standard input")
    command.add_argument("--model", required=True, metavar="DIR", help="a trained voice")
    command.add_argument(
        "--phonemes", action="store_true", help="the text is phonemes, espeak-ng is not asked"
    )
    command.add_argument(
        "--order",
        default="repair",
        choices=("repair", "refuse"),
        help="offer the model only tokens in their place, or fail at one out of place",
    )
    command.add_argument("--backend", default="auto", choices=BACKENDS, help=options.BACKEND_HELP)
    command.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU where there is one)")
    command.add_argument("--dtype", choices=("float32", "bfloat16"), help=options.DTYPE_HELP)
    speak.add_output_options(command)
    options.add_sampling_options(command)
    options.add_sound_options(command)
    options.add_verbosity(command)
    command.set_defaults(run=infer)


def _add_verify(sheen: Any) -> None:
    verify = sheen.add_parser("verify", help="check each stage by itself").add_subparsers(
        required=True
    )
    command = verify.add_parser(
        "dataset", help="every line of a dataset, and the whole", description=verify_dataset.__doc__
    )
    command.add_argument("data", metavar="JSONL", help="from sheen prepare")
    command.add_argument("--codebook-size", type=int, default=4096, help="of the SNAC")
    command.add_argument("--max-length", type=int, default=1024, help="tokens of a sequence")
    options.add_verbosity(command)
    command.set_defaults(run=verify_dataset)

    command = verify.add_parser(
        "tokenizer",
        help="of a trained voice, with its embeddings",
        description=verify_tokenizer.__doc__,
    )
    command.add_argument("model", metavar="DIR", help="a trained voice")
    options.add_verbosity(command)
    command.set_defaults(run=verify_tokenizer)

    command = verify.add_parser(
        "snac", help="it hears, speaks, and streams", description=verify_snac.__doc__
    )
    _add_snac_options(command)
    command.set_defaults(run=verify_snac)

    command = verify.add_parser(
        "training", help="on two samples; nothing is kept", description=verify_training.__doc__
    )
    _add_training_options(command)
    command.set_defaults(run=verify_training, output="", save_steps=1, resume=False)


def _add_snac_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--snac",
        default=DEFAULT_SNAC,
        help="codec: hub id, folder, or tiny-random-snac, which needs no download "
        f"(default: {DEFAULT_SNAC})",
    )
    command.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU where there is one)")
    command.add_argument("--local-files-only", action="store_true", help="never use the network")
    options.add_verbosity(command)


def _add_training_options(command: argparse.ArgumentParser) -> None:
    """Options of `train` and `verify training`; None is the default of `TrainOptions`."""
    command.add_argument("data", metavar="JSONL", help="from sheen prepare")
    command.add_argument(
        "--model",
        default=DEFAULT_BASE_MODEL,
        help="language model to begin with: hub id or folder of a Qwen2.5, or "
        f"tiny-random-qwen2.5, which needs no download (default: {DEFAULT_BASE_MODEL})",
    )
    command.add_argument("--learning-rate", type=float, help="default 2e-5")
    command.add_argument("--batch-size", type=int, help="rows of a pass (default 4)")
    command.add_argument("--gradient-accumulation", type=int, help="passes of a step (default 4)")
    command.add_argument("--max-length", type=int, help="tokens of a row (default 1024)")
    command.add_argument("--precision", choices=("fp16", "bf16", "fp32"), help="default fp16")
    command.add_argument("--epochs", type=int, help="default 20")
    command.add_argument("--max-steps", type=int, help="stop here, whatever the epochs")
    command.add_argument("--warmup-steps", type=int, help="default 100")
    command.add_argument("--weight-decay", type=float, help="default 0.01")
    command.add_argument("--max-grad-norm", type=float, help="default 1.0")
    command.add_argument("--seed", type=int, help="of new embeddings and the order (default 0)")
    _add_snac_options(command)
