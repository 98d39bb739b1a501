"""The command `convert`: a checkpoint in the form in which the native CPU decoder reads it."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from qwen_megakernel.choices import VOCODER_WEIGHTS, WEIGHTS, WEIGHTS_HELP
from qwen_megakernel.cli import options, parsing


def convert(args: argparse.Namespace) -> int:
    """Write a model whose weights are packed; processes that speak with it share one copy."""
    from qwen_megakernel.checkpoint import loading
    from qwen_megakernel.decoders.cpu import conversion

    output = Path(args.output)
    loading.check_new(output)
    loaded = loading.load(options.model_files(args))
    conversion.convert(loaded, args.weights, output, args.vocoder_weights)
    if not args.quiet:
        size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
        print(f"{output}: {size / 1e9:.2f} GB; --model {shlex.quote(args.output)} speaks with it")
    return 0


def add_commands(commands: Any) -> None:
    command = parsing.new_command(
        commands,
        "convert",
        convert,
        "write a model as the native CPU decoder reads it, to start faster and share memory",
    )
    add = parsing.adder(command)
    add("model MODEL", "model to convert: hub id, folder or built-in name")
    add("-o --output FOLDER", "new folder for the model", parsing.file_name, required=True)
    add("--weights FORM", WEIGHTS_HELP, WEIGHTS)
    add(
        "--vocoder-weights",
        "number format in which to store the vocoder's weights; float16 takes half the memory "
        "(default: float32; docs/precision.md compares them)",
        VOCODER_WEIGHTS,
        "float32",
    )
    add(*options.LOCAL_FILES)
