"""Measure decoding speed in frames and codes per second; the same as `measure.py tok-s`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs as a script from anywhere

from benchmarks import measure

if __name__ == "__main__":
    sys.exit(measure.script("tok-s"))
