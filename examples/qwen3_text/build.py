"""Compile the kernel for a Qwen3 text model: python build.py Qwen/Qwen3-0.6B [--arch sm_90a]

The script reads only config.json. Without --arch it compiles the emulation.
"""

import argparse
import json
import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # runs from a checkout

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads it when it is imported

from model import find  # the file beside this one

from qwen_megakernel.choices import DTYPES
from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.decoders.kernel.text_model import text_sizes


def main() -> int:
    """Compile the kernel and print the library's path."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("model", help="folder or hub id of a Qwen3 text model")
    add("--arch", help="GPU architecture such as sm_90a (default: the emulation on this CPU)")
    add("--dtype", default="bfloat16", choices=DTYPES, help="number format (default: %(default)s)")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    values = json.loads((find(args.model) / "config.json").read_text())
    print(build.build(text_sizes(values), build.Target(args.arch, args.dtype)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
