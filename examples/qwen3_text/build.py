"""Compile the kernel for a Qwen3 text model: python build.py Qwen/Qwen3-0.6B [--arch sm_90a]

Only config.json is read. Without --arch the emulation is built.
"""

import argparse
import json
import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # runs from a checkout

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # which torch reads when it is imported

from model import find  # the file beside this one

from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.decoders.kernel.text_model import text_sizes


def main() -> int:
    """Build and print the library's path."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder or hub id")
    parser.add_argument("--arch", help="sm_90a, ... (default: the emulation)")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    values = json.loads((find(args.model) / "config.json").read_text())
    print(build.build(text_sizes(values), build.Target(args.arch, args.dtype)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
