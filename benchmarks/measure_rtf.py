"""Real-time factor of whole utterances, streamed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

from benchmarks import common

if __name__ == "__main__":
    sys.exit(
        common.script(
            __doc__, ["rtf", "total_ms", "audio_s", "max_gap_ms", "underruns", "underruns_100ms"]
        )
    )
