"""Decoding speed: frames and codes a second, milliseconds a frame."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

from benchmarks import common

if __name__ == "__main__":
    sys.exit(
        common.script(
            __doc__,
            [
                "frames_per_s",
                "codes_per_s",
                "decode_ms_per_frame",
                "vocoder_ms_per_frame",
                "overhead_ms_per_frame",
            ],
        )
    )
