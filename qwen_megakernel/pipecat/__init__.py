"""The Pipecat service: text frames in, 24 kHz 16-bit PCM frames out, of an engine in this process.

Read `service` first, then `contexts` (one context of Pipecat is one stream), `base` (what an
in-process service needs that Pipecat's network services do not), `settings`, and `word_timestamps`.

Users import `MegakernelTTSService` and `MegakernelTTSSettings` from `qwen_megakernel.pipecat_tts`.
"""
