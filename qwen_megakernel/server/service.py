"""What the routes share: the engine once it is there, and how a request gets into it."""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from qwen_megakernel.errors import NotReady, QwenTTSError
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.admission import Admission, FinishedRequests
from qwen_megakernel.server.metrics import Metrics, SpeechRecord
from qwen_megakernel.server.schemas import SpeechSettings, engine_options
from qwen_megakernel.server.settings import ServerSettings
from qwen_megakernel.server.voices import VoiceStore

logger = logging.getLogger(__name__)


class Service:
    """One engine, its clients' requests and their figures.

    Args:
        engine: a `TTSEngine`, which its owner closes; or a function that makes one. That is called
            in a thread when the server starts, and what it made is closed with the server.
        settings: limits.
    """

    def __init__(self, engine: Any, settings: ServerSettings):
        self.settings = settings
        self.admission = Admission(num_slots=0, max_queue=settings.max_queue)
        self.finished = FinishedRequests()
        self.metrics = Metrics(self.admission, self._cache_hits)
        self.failure: Exception | None = None  # why there is no engine and will not be
        self._engine: Any = None
        self._voices: VoiceStore | None = None
        self._closed = False
        self._loader: threading.Thread | None = None
        self._make: Callable[[], Any] | None = engine if callable(engine) else None
        if self._make is None:
            self._adopt(engine)

    @property
    def engine(self) -> Any:
        """The engine.

        Raises:
            NotReady: it is not loaded yet, or could not be.
        """
        if self._engine is None:
            raise NotReady("The model is not loaded yet.", str(self.failure or ""))
        return self._engine

    @property
    def voices(self) -> VoiceStore:
        """The engine's voices.

        Raises:
            NotReady: it is not loaded yet, or could not be.
        """
        self.engine  # noqa: B018 - raises
        return self._voices

    @property
    def ready(self) -> bool:
        """Requests are taken."""
        return self._engine is not None and not self.admission.draining and not self.broken

    @property
    def broken(self) -> QwenTTSError | None:
        """Why the engine will take no request until the process is started again; None: it will."""
        return self._engine.failure if self._engine is not None else None

    @property
    def is_loading(self) -> bool:
        """The engine is being made; also after `close`, which does not wait for that."""
        return self._loader is not None and self._loader.is_alive()

    async def configure(self, body: SpeechSettings) -> tuple[dict[str, Any], list[str]]:
        """Options for `speak`, and warnings; see `engine_options`."""
        engine = self.engine
        options, warnings = await engine_options(
            body,
            self.voices,
            self.settings,
            model_name=engine.files.name,
            sample_rate=engine.sample_rate,
        )
        if options["instruct"] and self.engine.ignores_instruct:
            warnings.append("instructions are ignored: this model follows none")
        return options, warnings

    def speak(
        self,
        text: str | None,
        options: dict[str, Any],
        *,
        request_id: str,
        arrived: float | None = None,
    ) -> ActiveSpeech:
        """Let a request in and start it.

        Args:
            text: None: it will be fed to the stream.
            options: from `configure`.
            request_id: under which its end is remembered.
            arrived: perf_counter() of the request; None: now.
        Raises:
            EngineBusy, Draining: nobody is let in.
            UsageError: the engine refuses it; nothing was started.
        """
        engine, ticket = self.engine, self.admission.admit()
        try:
            stream = engine.stream(text, text_open=text is None, **options)
        except BaseException:
            ticket.release()
            raise
        record = SpeechRecord(
            self.metrics, stream.sample_rate, time.perf_counter() if arrived is None else arrived
        )
        return ActiveSpeech(
            stream,
            ticket,
            record,
            request_id=request_id,
            finished=self.finished,
            buffer_s=self.settings.buffer_s,
        )

    # ---- coming and going ------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load the engine; to be called on the event loop."""
        if self._make is not None:
            loop = asyncio.get_running_loop()
            # A daemon: Ctrl-C in the middle of a download must not wait for its end.
            self._loader = threading.Thread(
                target=self._load, args=(loop,), name="load", daemon=True
            )
            self._loader.start()

    def close(self) -> None:
        """Close what was loaded; waits for the engine's thread."""
        self._closed = True
        if self._make is not None and self._engine is not None:
            self._engine.close()

    def _load(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            engine = self._make()
        except Exception as error:  # reported by whoever started the server
            logger.debug("The engine could not be made.", exc_info=True)
            self.failure = error
            self.admission.draining = True
            return
        if self._closed or loop.is_closed():
            engine.close()
        else:
            loop.call_soon_threadsafe(self._adopt, engine)

    def _adopt(self, engine: Any) -> None:
        if self._closed:
            engine.close()
            return
        self.admission.num_slots = engine.num_slots
        self._voices = VoiceStore(engine, self.settings)
        self._engine = engine

    def _cache_hits(self) -> int:
        return 0 if self._engine is None else self._engine.reference_cache_hits


def freeze_garbage_collector() -> None:
    """Take everything there is now out of the garbage collector's sight.

    For a process that serves, once its model is loaded: a full collection looks at every object of
    the libraries again, and nothing is sent meanwhile, for a tenth of a second.
    """
    gc.collect()
    gc.freeze()
