"""Time to first codec frame, to first samples, and to first audible sample."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

from benchmarks import common

if __name__ == "__main__":
    sys.exit(
        common.script(
            __doc__, ["first_frame_ms", "first_chunk_ms", "first_audible_ms", "leading_silence_ms"]
        )
    )
