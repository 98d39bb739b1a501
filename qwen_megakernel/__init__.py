"""Qwen3-TTS speech, streamed, decoded by one persistent CUDA kernel.

    from qwen_megakernel import TTSEngine

    with TTSEngine.from_pretrained("demo-voice") as tts:
        tts.synthesize("Hello.").save("hello.wav")

Importing the package loads neither torch nor numpy; the first use of one of its names does.
"""

import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:  # what `__getattr__` returns, for type checkers and editors
    from pathlib import Path

    from qwen_megakernel.engine.speech import Speech as Speech
    from qwen_megakernel.engine.stream import SpeechStream as SpeechStream
    from qwen_megakernel.errors import QwenTTSError as QwenTTSError
    from qwen_megakernel.records import AudioChunk as AudioChunk
    from qwen_megakernel.sheen.engine import SheenEngine as SheenEngine
    from qwen_megakernel.speech_options import Sampling as Sampling
    from qwen_megakernel.tts_engine import TTSEngine as TTSEngine
    from qwen_megakernel.voice import Voice as Voice

    PACKAGE_FOLDER: Path
else:

    def __getattr__(name: str):
        if name in _HOMES:
            if name.endswith("Engine") and "torch" not in sys.modules:
                torch_import = import_module(f"{__name__}.torch_import")
                torch_import.begin()
                import_module(f"{__name__}.text.markup.marked_text")  # while a thread loads PyTorch
                torch_import.import_torch()
            return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        # typing and pathlib take 20 ms, in which a Ctrl-C would print a traceback
        if name == "PACKAGE_FOLDER":
            return import_module("pathlib").Path(__file__).parent
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = "0.1.0"

_HOMES = {
    "TTSEngine": "tts_engine",
    "SheenEngine": "sheen.engine",
    "SpeechStream": "engine.stream",
    "Speech": "engine.speech",
    "Voice": "voice",
    "Sampling": "speech_options",
    "AudioChunk": "records",
    "QwenTTSError": "errors",
}

__all__ = ["__version__", *_HOMES]
