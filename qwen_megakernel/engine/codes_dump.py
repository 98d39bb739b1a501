"""Writes the codes of finished utterances to a file that an environment variable names."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from qwen_megakernel.engine import codes_file
from qwen_megakernel.engine.stream_state import StreamState
from qwen_megakernel.errors import OutputError
from qwen_megakernel.printable import get_logger

logger = get_logger(__name__)

# The variable that names a file for the codes of every utterance, one row for each frame.
DUMP_CODES_VARIABLE = "TTS_DUMP_CODES"


class CodesDump:
    """The dump of an engine: its first utterance replaces the file, later ones go to its end."""

    def __init__(self) -> None:
        self._begun: str | None = None  # the file that this engine has written to
        self._is_paused = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Write nothing during the block, such as a warm-up, which no caller requested."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def __call__(self, state: StreamState) -> None:
        path = os.environ.get(DUMP_CODES_VARIABLE)
        if not path or not state.codes or self._is_paused:
            return
        try:
            codes_file.write(Path(path), np.array(state.codes), append=path == self._begun)
            self._begun = path
        except OutputError as error:  # a debugging aid must not end the speech
            logger.error("%s", error)
