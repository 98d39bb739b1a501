"""The Pipecat service: turns text frames into 24 kHz 16-bit PCM frames with an engine in-process.

Read `service` first, then `contexts` (one context of Pipecat is one stream), `base` (what an
in-process service needs that Pipecat's network services do not), `settings`, and `word_timestamps`.

Users import `MegakernelTTSService` and `MegakernelTTSSettings` from `qwen_megakernel.pipecat_tts`.
"""
