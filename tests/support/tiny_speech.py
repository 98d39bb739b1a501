"""The smallest engines, and the speech that tests request from them."""

from typing import Any

import numpy as np
import torch

from qwen_megakernel import TTSEngine
from qwen_megakernel.engine.speech import Speech
from qwen_megakernel.engine.stream import SpeechStream
from qwen_megakernel.records import TextIds
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.intake import TextIntake
from qwen_megakernel.text.parts import TextEncoding, TextPart
from qwen_megakernel.text.request_text import RequestText

# The backend of tests about other things; `pytest --backend torch` sets another.
default_backend = "cpu"

TEXT = "Hello there, how are you today?"
VOICE = "vivian"


def tiny_engine(
    model: str = "tiny-random", *, backend: str | None = None, **options: Any
) -> TTSEngine:
    """Return an engine without a warm-up; `options` as for `TTSEngine.from_pretrained`."""
    options = {"backend": backend or default_backend, "warmup": False} | options
    return TTSEngine.from_pretrained(model, **options)


def speak(tts: TTSEngine, **options: Any) -> Speech:
    """Speak 24 frames of `TEXT`, unless `options` say otherwise."""
    return tts.synthesize(TEXT, **({"voice": VOICE, "max_frames": 24} | options))


def demo_speech(text: str) -> np.ndarray:
    """Return a text in the demonstration voice: [num_samples] float32."""
    with tiny_engine("demo-voice", backend="cpu") as tts:
        return tts.synthesize(text, seed=1).audio


def fed(tts: TTSEngine, *pieces: str, **options: Any) -> SpeechStream:
    """Return a stream whose text came in these pieces; nothing of it has been read."""
    return feed_at_once(tts.stream(text_open=True, **options), *pieces)


def feed_and_end(stream: SpeechStream, *pieces: str) -> SpeechStream:
    """Feed the stream the rest of its text, read it to its end, and return it."""
    list(feed_at_once(stream, *pieces))
    return stream


def feed_at_once(stream: SpeechStream, *pieces: str) -> SpeechStream:
    """Feed and end in the engine's thread, which cannot speak meanwhile. A random model may draw
    its end token while it waits for a piece, and what comes later is then one more part.
    """
    stream._engine._loop.run(lambda: [*map(stream.feed, pieces), stream.end_text()])
    return stream


def closed_text(request: SpeechOptions, *parts: TextPart) -> TextIntake:
    """Return a complete text that consists of these parts."""
    nothing = torch.empty(0, dtype=torch.int64)
    encoding = TextEncoding(request, TextIds(nothing, nothing), lambda _: nothing, None)
    text = TextIntake(RequestText(), encoding, is_whole=True)
    text.parts.extend(parts)
    text.is_closed = True
    return text
