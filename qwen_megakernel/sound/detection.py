"""Looks for every mark in a recording: watermark, the file's signature, and its metadata."""

import io
import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from qwen_megakernel.content_credentials import Credentials, read_credentials
from qwen_megakernel.errors import MissingPackageError
from qwen_megakernel.marking import MarkKey
from qwen_megakernel.printable import printable
from qwen_megakernel.sound.mark_detector import Mark, find_marks

NO_MARK = "no mark found"  # which does not mean that a recording is no synthetic speech

# IPTC's terms for what a trained model generated, all of it or a part; or words of a comment.
_SAYS_SYNTHETIC = re.compile(
    r"(?<![A-Za-z])(?:trainedAlgorithmicMedia|compositeWithTrainedAlgorithmicMedia"
    r"|compositeSynthetic)\b|(?<!not )(?<!non-)\bAI[- ]generated\b",
    re.IGNORECASE,
)
_XMP_BEGIN, _XMP_END = b"<x:xmpmeta", b"</x:xmpmeta>"  # around where IPTC puts its terms


@dataclass(frozen=True, slots=True)
class Detection:
    """The marks of a recording.

    Attributes:
        marks: where the watermark of the key was found.
        credentials: what the signature of the file says; None: it has none.
        metadata: what the comments and the XMP of the file say of synthetic speech; None: nothing.
    """

    marks: list[Mark]
    credentials: Credentials | None
    metadata: str | None

    @property
    def is_marked(self) -> bool:
        """Whether a watermark, a valid signature or metadata says that the file is synthetic."""
        signed = self.credentials is not None and self.credentials.says_synthetic
        return bool(self.marks) or signed or self.metadata is not None

    def facts(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "result": "marked as synthetic" if self.is_marked else NO_MARK,
            "marks": [mark.facts() for mark in self.marks],
            "c2pa": self.credentials and asdict(self.credentials),
            "metadata": self.metadata,
        }


def detect(
    recording: bytes, samples: np.ndarray, rate: int, key: MarkKey | None, *, search_speeds: bool
) -> Detection:
    """Look for all marks.

    Args:
        recording: the whole file.
        samples, rate, search_speeds: see `find_marks`.
        key: the key of the watermark; None: it is not looked for.
    """
    import soundfile

    marks = find_marks(samples, rate, key.secret, search_speeds=search_speeds) if key else []
    with soundfile.SoundFile(io.BytesIO(recording)) as file:
        name, said = file.format.lower(), list(file.copy_metadata().values())
    found = [printable(each) for each in said if _SAYS_SYNTHETIC.search(each)]
    for before_end in recording.split(_XMP_END)[:-1]:
        packet = before_end.partition(_XMP_BEGIN)[2].decode(errors="replace")
        if match := _SAYS_SYNTHETIC.search(packet):
            found.append(match[0])
    try:
        credentials = read_credentials(recording, "wav" if name == "wavex" else name)
    except MissingPackageError as error:
        credentials = Credentials("not checked", "", False, str(error))
    return Detection(marks, credentials, found[0] if found else None)
