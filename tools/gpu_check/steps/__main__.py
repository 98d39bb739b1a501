"""Run `registry.main` with the repository on the path."""

import os
import sys
from pathlib import Path

# Python puts this folder first if it is run as a folder; `tools`, `benchmarks` and
# `validate_kernel` are in the repository.
if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[3])

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

from tools.gpu_check.steps.registry import main

if __name__ == "__main__":
    main()
