"""Wyoming server: the voice of Home Assistant, or of any other Wyoming client.

It shares the HTTP server's engine, queue, limits and metrics (`serve --wyoming-port`). The protocol
knows no authentication, so bind it to loopback or to a network you trust.
"""

import asyncio
import logging
import socket

from wyoming.info import Attribution, Info, TtsProgram, TtsVoice

from qwen_megakernel import __version__
from qwen_megakernel.errors import EngineBusy
from qwen_megakernel.server.service import Service
from qwen_megakernel.server.wyoming_session import DEFAULT_VOICE, Session
from qwen_megakernel.text.languages import code_of_language

logger = logging.getLogger(__name__)

MAX_CLIENTS = 64


class WyomingServer:
    """Accepts Wyoming clients.

    Args:
        service: the engine, its door and its limits; not closed here.
        listener: a listening socket, which is closed with us.
    """

    def __init__(self, service: Service, listener: socket.socket):
        self._service, self._listener = service, listener
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to accept; returns at once."""
        self._server = await asyncio.start_server(self._accept, sock=self._listener)

    async def close(self) -> None:
        """Accept nobody any more and hang up on everybody."""
        if self._server:
            self._server.close()
        clients = list(self._clients)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    def info(self) -> Info:
        """Who we are and whom clients can choose; made anew for each `describe`.

        Raises:
            NotReady: the model is not loaded yet.
        """
        engine = self._service.engine
        languages = [code_of_language(name) or name for name in engine.languages[1:]]
        source = Attribution("Qwen team", "https://github.com/QwenLM/Qwen3-TTS")
        voices = [
            TtsVoice(
                name=name,
                attribution=source,
                installed=True,
                description=name,
                version=None,
                languages=languages,
            )
            for name in engine.voices or [DEFAULT_VOICE]
        ]
        program = TtsProgram(
            name="qwen_megakernel",
            attribution=source,
            installed=True,
            description=engine.files.name,
            version=__version__,
            voices=voices,
            supports_synthesize_streaming=True,
        )
        return Info(tts=[program])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = Session(self._service, self.info, reader, writer)
        if len(self._clients) < MAX_CLIENTS:
            client = asyncio.create_task(session.run())
        else:
            error = EngineBusy(f"{MAX_CLIENTS} clients are connected already.")
            client = asyncio.create_task(session.refuse(error))
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)
