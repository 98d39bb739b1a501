"""Speaks with the vendors' own packages, unmodified; run by the Python of `.venv-dialects`.

    sdk_clients.py URL SECURE_URL

prints a line of JSON for each way to speak: its name, and the length of its audio in seconds, or
the times that it reported. SECURE_URL is the same server behind TLS, which one client insists on.
"""

import asyncio
import base64
import json
import sys

from cartesia import AsyncCartesia, BadRequestError, Cartesia
from deepgram import DeepgramClient
from deepgram.core.api_error import ApiError as DeepgramError
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v1.types import SpeakV1Close, SpeakV1Flush, SpeakV1Text
from elevenlabs import AsyncElevenLabs, ElevenLabs, VoiceSettings
from elevenlabs.core.api_error import ApiError as ElevenLabsError

URL, SECURE_URL = sys.argv[1:]
WS_URL = URL.replace("http", "ws", 1)
TEXT = "Your table is ready. Please follow me."
PCM = "pcm_24000"
KEY = "s3cret"
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}


def show(name: str, audio: bytes, **facts: object) -> None:
    """Print a line about a speech of 16 bits and 24 kHz."""
    print(json.dumps({"name": name, "seconds": len(audio) / 48000} | facts), flush=True)


def elevenlabs() -> None:
    """Speak with the package elevenlabs: whole, streamed, with times, as text comes."""
    client = ElevenLabs(api_key=KEY, base_url=URL)
    speech = client.text_to_speech
    how = {"text": TEXT, "model_id": "eleven_flash_v2_5", "output_format": PCM, "seed": 1}
    how["voice_settings"] = VoiceSettings(stability=0.4, similarity_boost=0.7, speed=1.0)
    show("elevenlabs convert", b"".join(speech.convert("anna", **how)))
    show("elevenlabs stream", b"".join(speech.stream("anna", **how)))
    whole = speech.convert_with_timestamps("anna", **how)
    times = whole.alignment
    facts = {"text": "".join(times.characters), "end": times.character_end_times_seconds[-1]}
    show("elevenlabs convert_with_timestamps", base64.b64decode(whole.audio_base_64), **facts)
    audio, text, ends = b"", "", []
    for chunk in speech.stream_with_timestamps("anna", **how):
        audio += base64.b64decode(chunk.audio_base_64)
        if chunk.alignment:
            text += "".join(chunk.alignment.characters)
            ends += chunk.alignment.character_end_times_seconds
    show("elevenlabs stream_with_timestamps", audio, text=text, end=ends[-1])
    voices = [each.voice_id for each in client.voices.get_all().voices]
    found = [each.voice_id for each in client.voices.search().voices]
    models = [each.model_id for each in client.models.list()]
    show("elevenlabs lists", b"", voices=voices, found=found, models=models)
    try:
        list(speech.convert("nobody-of-this-name", text=TEXT))
    except ElevenLabsError as error:
        show("elevenlabs error", b"", status=error.status_code, body=error.body)
    secure = ElevenLabs(api_key=KEY, base_url=SECURE_URL)
    words = (f"{word} " for word in TEXT.split())
    how = {"model_id": "eleven_flash_v2_5", "output_format": PCM}
    pieces = secure.text_to_speech.convert_realtime("anna", text=words, **how)
    show("elevenlabs convert_realtime", b"".join(pieces))


async def elevenlabs_async() -> None:
    speech = AsyncElevenLabs(api_key=KEY, base_url=URL).text_to_speech
    pieces = [piece async for piece in speech.stream("anna", text=TEXT, output_format=PCM)]
    show("elevenlabs async stream", b"".join(pieces))


def cartesia() -> None:
    """Speak with the package cartesia: whole, as events, over a WebSocket with times."""
    client = Cartesia(api_key=KEY, base_url=URL, websocket_base_url=WS_URL)
    how = {"model_id": "sonic-3", "voice": {"id": "anna"}, "output_format": RAW}
    show("cartesia generate", client.tts.generate(transcript=TEXT, **how).read())
    audio, words = b"", []
    for event in client.tts.generate_sse(transcript=TEXT, add_timestamps=True, **how):
        audio += (event.type == "chunk" and event.audio) or b""
        words += event.word_timestamps.words if event.type == "timestamps" else []
    show("cartesia generate_sse", audio, text=" ".join(words))
    with client.tts.websocket_connect() as connection:
        context = connection.context(add_timestamps=True, **how)
        for word in TEXT.split():
            context.push(f"{word} ")
        context.no_more_inputs()
        audio, words, ends, kinds = b"", [], [], set()
        for event in context.receive():
            kinds.add(event.type)
            audio += (event.type == "chunk" and event.audio) or b""
            if event.type == "timestamps":
                words += event.word_timestamps.words
                ends += event.word_timestamps.end
    show("cartesia websocket", audio, text=" ".join(words), end=ends[-1], kinds=sorted(kinds))
    try:
        client.tts.generate(transcript=TEXT, **how | {"output_format": {"container": "ogg"}})
    except BadRequestError as error:
        show("cartesia error", b"", status=error.status_code, body=error.body)


async def cartesia_async() -> None:
    """Speak two contexts of one WebSocket, of which one is cancelled."""
    client = AsyncCartesia(api_key=KEY, base_url=URL, websocket_base_url=WS_URL)
    how = {"model_id": "sonic-3", "voice": {"id": "anna"}, "output_format": RAW}
    async with client.tts.websocket_connect() as connection:
        other = connection.context(**how)
        await other.push(TEXT * 20)
        context = connection.context(**how)
        await context.push(TEXT)
        await context.no_more_inputs()
        await other.cancel()
        events = [event async for event in context.receive()]
    audio = b"".join(event.audio or b"" for event in events if event.type == "chunk")
    show("cartesia async websocket", audio)


def deepgram() -> None:
    """Speak with the package deepgram-sdk: whole, and over a WebSocket."""
    urls = dict.fromkeys(("base", "agent_rest"), URL) | dict.fromkeys(
        ("production", "agent"), WS_URL
    )
    client = DeepgramClient(api_key=KEY, environment=DeepgramClientEnvironment(**urls))
    how = {"model": "anna", "encoding": "linear16", "sample_rate": 24000}
    pieces = client.speak.v1.audio.generate(text=TEXT, container="none", **how)
    show("deepgram generate", b"".join(pieces))
    audio, kinds = b"", []
    with client.speak.v1.connect(**how | {"sample_rate": "24000"}) as connection:
        for word in TEXT.split():
            connection.send_text(SpeakV1Text(text=f"{word} "))
        connection.send_flush(SpeakV1Flush(type="Flush"))
        while kinds[-1:] != ["Flushed"]:
            message = connection.recv()
            if isinstance(message, bytes):
                audio += message
            else:
                kinds.append(message.type)
        connection.send_close(SpeakV1Close(type="Close"))
    show("deepgram websocket", audio, kinds=kinds)
    try:
        list(client.speak.v1.audio.generate(text=TEXT, model="anna", encoding="amr"))
    except DeepgramError as error:
        show("deepgram error", b"", status=error.status_code, body=error.body)


elevenlabs()
asyncio.run(elevenlabs_async())
cartesia()
asyncio.run(cartesia_async())
deepgram()
