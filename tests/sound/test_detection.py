"""What the metadata of a file says, also of one that was made to keep a server busy."""

import io
from time import process_time

import numpy as np
import soundfile

from qwen_megakernel.sound.detection import Detection, detect

SILENCE = np.zeros(2400, np.float32)
TERM = b"http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"


def detected(behind: bytes) -> Detection:
    """Look for marks in a WAV file with more bytes behind its end."""
    file = io.BytesIO()
    soundfile.write(file, SILENCE, 24000, format="WAV")
    return detect(file.getvalue() + behind, SILENCE, 24000, None, search_speeds=False)


def test_a_term_counts_inside_xmp_alone():
    inside = b"<x:xmpmeta xmlns:x='adobe:ns:meta/'>%s</x:xmpmeta>" % TERM
    for said in (inside, b"</x:xmpmeta><x:xmpmeta><x:xmpmeta" + inside, inside + b"<x:xmpmeta "):
        assert detected(said).metadata == "trainedAlgorithmicMedia"
    for silent in (TERM, b"<x:xmpmeta>" + TERM, b"<x:xmpmeta></x:xmpmeta>" + TERM):
        assert detected(silent).metadata is None


def test_xmp_that_never_ends_is_searched_once():
    begin = process_time()
    assert not detected(b"<x:xmpmeta " * 20_000).is_marked
    assert process_time() - begin < 2
