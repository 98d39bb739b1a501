"""Looks for every mark in a recording: the watermark in its samples, the signature of its file."""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from qwen_megakernel.content_credentials import Credentials, read_credentials
from qwen_megakernel.errors import MissingPackageError
from qwen_megakernel.marking import MarkKey
from qwen_megakernel.sound.mark_detector import Mark, find_marks

NO_MARK = "no mark found"  # which does not mean that a recording is no synthetic speech


@dataclass(frozen=True, slots=True)
class Detection:
    """The marks of a recording.

    Attributes:
        marks: where the watermark of the key was found.
        credentials: what the signature of the file says; None: it has none.
    """

    marks: list[Mark]
    credentials: Credentials | None

    @property
    def is_marked(self) -> bool:
        """Whether a watermark was found, or a valid signature says that the file is synthetic."""
        return bool(self.marks) or (
            self.credentials is not None and self.credentials.says_synthetic
        )

    def facts(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "result": "marked as synthetic" if self.is_marked else NO_MARK,
            "marks": [mark.facts() for mark in self.marks],
            "c2pa": self.credentials and self.credentials.facts(),
        }


def detect(
    recording: bytes, samples: np.ndarray, rate: int, key: MarkKey | None, *, search_speeds: bool
) -> Detection:
    """Look for all marks.

    Args:
        recording: the whole file.
        samples, rate, search_speeds: see `find_marks`.
        key: the key of the watermark; None: it is not looked for.
    Raises:
        MissingPackageError: c2pa-python is not installed, and there is no key.
    """
    import soundfile

    marks = find_marks(samples, rate, key.secret, search_speeds=search_speeds) if key else []
    name = soundfile.info(io.BytesIO(recording)).format.lower()
    try:
        credentials = read_credentials(recording, "wav" if name == "wavex" else name)
    except MissingPackageError as error:
        if key is None:
            raise MissingPackageError(
                "Without --mark-key FILE, only a file's signature is looked for.", str(error)
            ) from error
        credentials = Credentials("not checked", "", False, str(error))
    return Detection(marks, credentials)
