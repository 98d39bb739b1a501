"""What tests have the smallest engine say."""

from typing import Any

from qwen_megakernel import TTSEngine
from qwen_megakernel.engine.stream import Speech

TEXT = "Hello there, how are you today?"
VOICE = "vivian"


def speak(tts: TTSEngine, **options: Any) -> Speech:
    """24 frames of `TEXT`, unless `options` say otherwise."""
    return tts.synthesize(TEXT, **({"voice": VOICE, "max_frames": 24} | options))
