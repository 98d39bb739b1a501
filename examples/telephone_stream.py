"""Answer a telephone call: python examples/telephone_stream.py --text "Your table is ready."

A telephone provider that streams a call's media opens a WebSocket to this program, and each caller
hears TEXT. Messages are JSON in the form that Twilio introduced and others adopted: `start` names
the stream; `media` carries 20 ms of the telephone's audio (8000 Hz, 8-bit mu-law) in base64, in
both directions; `mark` comes back when the caller has heard all media before it; `stop` ends the
call. The program ignores what the caller says. To react to an interruption, it would send `clear`
and the next speech.

    pip install -e ".[server]"
    python examples/telephone_stream.py --port 8765    # providers need wss: put TLS in front
"""

import argparse
import asyncio
import base64
import json
import sys
from typing import TYPE_CHECKING, Any

from qwen_megakernel.audio import to_g711
from qwen_megakernel.choices import TELEPHONE_RATE
from qwen_megakernel.cli import options, parsing, running
from qwen_megakernel.errors import QwenTTSError, UsageError
from qwen_megakernel.text.cleaning import validate

with running.needed("server", by="telephone_stream.py"):
    from websockets.asyncio.server import ServerConnection, serve
    from websockets.exceptions import ConnectionClosed

if TYPE_CHECKING:
    from qwen_megakernel.engine.speech_engine import SpeechEngine

ENCODING = "ulaw"
FRAME_BYTES = TELEPHONE_RATE * 20 // 1000  # a sample is a byte
SILENCE = b"\xff"  # a silent sample in mu-law
MARK = "heard"
WRONG_DATA, INTERNAL_ERROR = 1007, 1011  # close codes of RFC 6455


class Call:
    """One call: its WebSocket, and the speech that is sent there.

    Args:
        socket: the provider's connection.
        engine: the engine, which all calls share.
        text: the text to speak.
        how: the options of `engine.stream`.
    """

    def __init__(self, socket: ServerConnection, engine: "SpeechEngine", text: str, how: Any):
        self._socket, self._engine, self._text, self._how = socket, engine, text, how
        self._speaking: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve the call until the caller has heard all of it, or has gone."""
        try:
            async for message in self._socket:
                if await self._take(json.loads(message)):
                    break
        except ConnectionClosed:
            return
        except (ValueError, KeyError, TypeError) as error:
            await self._socket.close(WRONG_DATA, f"Not a media stream's message: {error!r}"[:100])
        finally:
            if self._speaking:
                self._speaking.cancel()  # closes its stream, too, which ends the engine's work
                await asyncio.gather(self._speaking, return_exceptions=True)

    async def _take(self, message: dict[str, Any]) -> bool:
        """Handle a message, and return whether the call is over."""
        event = message["event"]
        if event == "start" and self._speaking is None:
            if message["start"].get("mediaFormat", {}).get("sampleRate") not in (None, 8000):
                raise ValueError(f"mediaFormat {message['start']['mediaFormat']}")
            self._speaking = asyncio.create_task(self._speak(message["start"]["streamSid"]))
        return event == "stop" or (event == "mark" and message["mark"]["name"] == MARK)

    async def _speak(self, stream_id: str) -> None:
        try:
            await self._send_speech(stream_id)
        except QwenTTSError as error:
            print(f"error: {error}", file=sys.stderr)
            await self._socket.close(INTERNAL_ERROR, "The speech failed.")

    async def _send_speech(self, stream_id: str) -> None:
        held = b""

        async def send_frames() -> None:
            nonlocal held
            while len(held) >= FRAME_BYTES:
                frame, held = held[:FRAME_BYTES], held[FRAME_BYTES:]
                payload = base64.b64encode(frame).decode("ascii")
                await self._send("media", stream_id, {"payload": payload})

        async with self._engine.stream(
            self._text, sample_rate=TELEPHONE_RATE, **self._how
        ) as stream:
            async for chunk in stream:
                held += to_g711(chunk.samples, ENCODING)
                await send_frames()
        held += SILENCE * (-len(held) % FRAME_BYTES)
        await send_frames()
        await self._send("mark", stream_id, {"name": MARK})

    async def _send(self, event: str, stream_id: str, facts: dict[str, str]) -> None:
        await self._socket.send(json.dumps({"event": event, "streamSid": stream_id, event: facts}))


async def answer_calls(engine: "SpeechEngine", text: str, host: str, port: int, **how: Any) -> None:
    """Print the server's address on stderr, and answer every call until the task is cancelled."""

    async def answer(socket: ServerConnection) -> None:
        await Call(socket, engine, text, how).run()

    async with serve(answer, host, port) as server:
        address = server.sockets[0].getsockname()
        print(f"ws://{address[0]}:{address[1]}", file=sys.stderr, flush=True)
        await server.serve_forever()


def main(args: argparse.Namespace) -> int:
    """Load the model, then answer calls until Ctrl-C."""
    validate(args.text)
    if not 0 <= args.port < 2**16:
        raise UsageError(f"--port is {args.port}; it must be 0 .. {2**16 - 1}.")
    with options.engine_from_args(args, num_slots=args.slots) as engine:
        how = {"voice": args.voice, "seed": args.seed}
        asyncio.run(answer_calls(engine, args.text, args.host, args.port, **how))
    return 0


def parse_args() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = parsing.Parser(description=__doc__.splitlines()[0])
    add = parsing.adder(parser)
    add("--text", "text to say to every caller", str, "Your table for two is ready.")
    add("--host", "address to listen on", str, "127.0.0.1")
    add("--port", "TCP port; 0: any free one", int, 8765)
    add("--slots", "number of calls at once", parsing.at_least(1), 4)
    add("--voice", "speaker of the model, or path of a voice file")
    add("--seed", "number that makes speech repeatable (default: drawn)", int)
    options.add_model_options(parser, default="demo-voice")
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    sys.exit(running.run(main, args))
