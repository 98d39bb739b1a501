#!/usr/bin/env python3
"""Compile the kernel's libraries for a GPU elsewhere, into a folder to copy with the checkout.

    python tools/gpu_check/carry.py --arch sm_90a

`gpu_check.sh` unpacks build/carried first, which saves the GPU machine a minute or two of
compiling. The key of a library depends on its sources, its options and the version of nvcc, whose
release must be the same on both machines. This needs nvcc and no GPU.
"""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs as a script from anywhere

from qwen_megakernel.cli import parsing
from qwen_megakernel.decoders.kernel import build as kernel_build
from qwen_megakernel.errors import QwenTTSError
from qwen_megakernel.native import compiling
from tools.gpu_check import carried
from tools.gpu_check.steps import libraries
from tools.gpu_check.steps.context import BIG, SMALL

# With the checkout (some 28 MB), this stays below 64 MiB, the most that may be copied.
MOST_MB = 36


def main() -> int:
    """Compile the libraries, pack them and print their sizes."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add("--arch", "architecture of the GPU to compile for", str, "sm_90a")
    add("--out", "folder for the packed libraries (default: build/carried)", Path, carried.CARRIED)
    add("--only", "compile only libraries that have this in their names", str, "")
    add(
        "--jobs",
        "number of libraries to compile at the same time (default: one per core)",
        int,
        os.cpu_count(),
    )
    args = parser.parse_args()
    if not kernel_build.is_known_arch(args.arch):
        parser.error(f"{args.arch} is not known; known: {', '.join(kernel_build.ARCHITECTURES)}")
    wanted = SimpleNamespace(
        arch=args.arch, models=(SMALL, BIG), dtypes=("float32", "bfloat16"), toy=False
    )
    jobs = {n: job for n, job in libraries.all_jobs(wanted).items() if args.only in n}
    if not jobs:
        parser.error(f"no library has {args.only!r} in its name")
    started = time.monotonic()
    try:
        for name, found in libraries.compile_all(jobs, args.jobs).items():
            print(f"{name:44}{found['seconds']:7.1f} s", flush=True)
        # By now all are in the cache; any whose sources have changed since are compiled again.
        built = [kernel_build.build(*job) for job in jobs.values()]
        version = compiling.version_of(kernel_build.find_nvcc())
        megabytes = carried.pack(built, args.out, version)
    except QwenTTSError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    seconds = time.monotonic() - started
    print(f"{args.out}: {len(jobs)} libraries, {megabytes:.1f} MB, {seconds:.0f} s")
    if megabytes > MOST_MB:
        print(f"That is more than {MOST_MB} MB. Leave some out with --only.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
