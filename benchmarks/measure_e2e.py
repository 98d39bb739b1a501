"""Everything between a text and its last sample: all figures of all runs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

from benchmarks import common

if __name__ == "__main__":
    sys.exit(common.script(__doc__, list(common.METRICS)))
