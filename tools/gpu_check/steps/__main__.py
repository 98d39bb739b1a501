"""The program: `registry.main` with the repository on the path."""

import sys
from pathlib import Path

# Python puts this folder first; `tools`, `benchmarks` and `validate_kernel` lie in the repository.
sys.path[0] = str(Path(__file__).resolve().parents[3])

from tools.gpu_check.steps.registry import main  # noqa: E402

if __name__ == "__main__":
    main()
