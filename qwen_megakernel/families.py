"""From a model's name to the engine of its family."""

from typing import Any

from qwen_megakernel.engine.speech_engine import SpeechEngine
from qwen_megakernel.errors import UsageError
from qwen_megakernel.sheen import model_folder


def load_engine(model: str | None = None, **options: Any) -> SpeechEngine:
    """Load a model and start its engine.

    Args:
        model: whatever `TTSEngine.from_pretrained` takes, or the folder of a trained voice
            (docs/sheen.md); None: the default of the former.
        options: of that engine's `from_pretrained`.
    Raises:
        QwenTTSError: as there.
    """
    if model is not None and model_folder.is_sheen(model):
        from qwen_megakernel.sheen.engine import SheenEngine

        if weights := options.pop("weights", None):
            raise UsageError(f"A trained voice has no {weights} weights.", hint="Leave it out.")
        return SheenEngine.from_pretrained(model, **options)
    from qwen_megakernel.tts_engine import TTSEngine

    return TTSEngine.from_pretrained(**({} if model is None else {"model": model}), **options)
