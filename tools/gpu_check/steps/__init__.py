"""The steps of run.py, each a process of its own.

    python tools/gpu_check/steps STEP --json FILE [--emulation | --toy]

A step is a function of a `Context`. It prints its log, returns its result and exits with 1 if
something is wrong; `registry.STEPS` has the steps by name. A step imports only packages that a bare
machine has: no audio library, no Pipecat, and pytest only if it is installed.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# kernel_models has the toy models of the kernel's tests.
sys.path.insert(0, str(ROOT / "tests" / "support"))
