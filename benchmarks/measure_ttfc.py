"""Measure the time to the first codec frame and first samples; the same as `measure.py ttfc`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs as a script from anywhere

from benchmarks import measure

if __name__ == "__main__":
    sys.exit(measure.script("ttfc"))
