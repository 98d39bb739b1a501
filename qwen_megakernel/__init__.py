"""Qwen3-TTS speech, streamed, decoded by one persistent CUDA kernel."""

__version__ = "0.1.0"
