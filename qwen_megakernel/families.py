"""Loads the engine of the family that a model belongs to."""

import os
from typing import Any

from qwen_megakernel.choices import DEFAULT_MODEL
from qwen_megakernel.engine.speech_engine import SpeechEngine
from qwen_megakernel.errors import check_type


def load_engine(model: str | None = None, **options: Any) -> SpeechEngine:
    """Load a model and start its engine.

    Args:
        model: a model that `TTSEngine.from_pretrained` loads, or the folder of a trained voice
            (docs/sheen.md); None: the default of `TTSEngine`.
    Raises:
        QwenTTSError: `from_pretrained` failed.
    """
    check_type("model", model, str | os.PathLike | None, "a hub id, a folder, or a built-in name")
    if model is not None and os.path.isdir(os.path.expanduser(model)):
        # Imported for a folder alone: it costs other models a twentieth of a second.
        from qwen_megakernel.sheen import model_folder

        if model_folder.is_sheen(model):
            from qwen_megakernel.sheen.engine import SheenEngine

            return SheenEngine.from_pretrained(model, **options)
    from qwen_megakernel.tts_engine import TTSEngine

    return TTSEngine.from_pretrained(DEFAULT_MODEL if model is None else model, **options)
