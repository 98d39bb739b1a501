"""The steps of run.py, each a process of its own.

    python tools/gpu_check/steps STEP --json FILE [--emulation | --toy]

A step is a function of a `Context`. It prints its log, returns what it found and exits with 1 when
something is wrong; `registry.STEPS` has the steps by name. A step imports only what a bare machine
has: no audio library, no Pipecat, pytest only where it is installed.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# kernel_models has the toy models of the kernel's tests.
sys.path.insert(0, str(ROOT / "tests" / "support"))
