"""The Wyoming server, which speaks for Home Assistant and other Wyoming clients.

It shares the HTTP server's engine, queue, limits and metrics (`serve --wyoming-port`). The protocol
has no authentication, so bind it to loopback or to a network you trust.
"""

import asyncio
import socket

from wyoming.info import Attribution, Info, TtsProgram, TtsVoice

from qwen_megakernel import __version__
from qwen_megakernel.errors import EngineBusy
from qwen_megakernel.server.service import Service
from qwen_megakernel.server.settings import ACCEPTS
from qwen_megakernel.server.wyoming_session import DEFAULT_VOICE, Session
from qwen_megakernel.text.languages import code_of_language

MAX_CLIENTS = 64


class WyomingServer:
    """Accepts Wyoming clients.

    Args:
        listener: a listening socket, which `close` closes.
    """

    def __init__(self, service: Service, listener: socket.socket):
        self._service, self._listener = service, listener
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to accept clients; returns at once."""
        self._server = await asyncio.start_server(
            self._accept, sock=self._listener, backlog=ACCEPTS
        )

    async def close(self) -> None:
        """Stop accepting clients and close every connection."""
        if self._server:
            self._server.close()
        clients = list(self._clients)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    def info(self) -> Info:
        """Return the program and its current voices, which answer a `describe`.

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
            error = EngineBusy(
                f"{MAX_CLIENTS} Wyoming clients are connected (limit {MAX_CLIENTS})."
            )
            client = asyncio.create_task(session.refuse(error))
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)
