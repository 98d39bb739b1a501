"""The dialects that a server can speak, by the names of `settings.DIALECTS`."""

from qwen_megakernel.server.dialects import cartesia, deepgram, elevenlabs

DIALECTS = {each.name: each for each in (elevenlabs.DIALECT, cartesia.DIALECT, deepgram.DIALECT)}
