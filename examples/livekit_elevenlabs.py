"""Speak with LiveKit's ElevenLabs plugin and this server: python examples/livekit_elevenlabs.py

Only the `base_url` differs from a program that uses the hosted voice; an AgentSession takes the
same `tts`. The example prints each word with its time, and writes elevenlabs.wav. Start the
server first; LiveKit's packages need an environment of their own:

    python -m qwen_megakernel serve --model demo-voice --voice-fallback demo
    python -m venv .venv-livekit
    .venv-livekit/bin/pip install livekit-agents==1.8.9 livekit-plugins-elevenlabs==1.8.9
    .venv-livekit/bin/python examples/livekit_elevenlabs.py "Your table is ready."
"""

import argparse
import asyncio
import sys
from pathlib import Path

try:
    from livekit import rtc
    from livekit.agents import utils
    from livekit.plugins import elevenlabs
except ImportError as error:  # this package need not be installed here, so its own helper is not
    print(f"error: livekit_elevenlabs.py needs {error.name} ({error}).", file=sys.stderr)
    print("pip install livekit-agents==1.8.9 livekit-plugins-elevenlabs==1.8.9", file=sys.stderr)
    sys.exit(3)


async def speak(url: str, text: str) -> bytes:
    """Return the speech as a wav file."""
    async with utils.http_context.open():
        how = {"voice_id": "21m00Tcm4TlvDq8ikWAM", "encoding": "pcm_24000"}
        tts = elevenlabs.TTS(base_url=f"{url}/v1", api_key="any", **how)
        speech, frames = tts.stream(), []
        for word in text.split():  # as the words of a language model come
            speech.push_text(f"{word} ")
        speech.end_input()
        async for event in speech:
            frames.append(event.frame)
            for word in event.frame.userdata.get("lk.timed_transcripts", []):
                print(f"{word.start_time:.2f} s: {word.strip()}")
        await speech.aclose()
        await tts.aclose()
    return rtc.combine_audio_frames(frames).to_wav_bytes()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="?", default="Your table is ready.")
    parser.add_argument("--url", default="http://127.0.0.1:8090", help="address of the server")
    args = parser.parse_args()
    Path("elevenlabs.wav").write_bytes(asyncio.run(speak(args.url, args.text)))
