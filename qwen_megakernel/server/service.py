"""The service that all routes use: it loads the engine and passes requests to it."""

import asyncio
import functools
import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from qwen_megakernel.engine.conversation import Conversation
from qwen_megakernel.errors import NotReady, QwenTTSError, RecordingError, VoiceMismatch
from qwen_megakernel.printable import get_logger
from qwen_megakernel.server.active_speech import MAX_CHARS_AT_ONCE, ActiveSpeech
from qwen_megakernel.server.admission import Admission, Newest
from qwen_megakernel.server.error_responses import naming
from qwen_megakernel.server.metrics import Metrics, SpeechRecord
from qwen_megakernel.server.schemas import SpeechPlan, SpeechSettings, plan_speech
from qwen_megakernel.server.settings import ServerSettings
from qwen_megakernel.server.voices import VoiceStore
from qwen_megakernel.text.cleaning import CHARS_PER_SECOND

logger = get_logger(__name__)

MAX_FINISHED = 1000  # finished requests that are remembered
MAX_SESSIONS = 1000  # conversations that are remembered, each a few kilobytes
_SWITCH_INTERVAL_S = 0.0001  # after which Python interrupts a thread for another one


class Service:
    """One engine, its clients' requests and their figures.

    Args:
        engine: a `TTSEngine`, which its owner closes; or a function that makes one, which `start`
            calls in a thread. `close` closes the engine that the function made.
    """

    def __init__(self, engine: Any, settings: ServerSettings):
        self.settings = settings
        self.admission = Admission(num_slots=0, max_queue=settings.max_queue)
        # The ends of requests by id, which a streamed response's headers cannot report.
        self.finished = Newest(MAX_FINISHED)
        # The conversation of a client's session; the oldest of too many is forgotten.
        self.conversation = functools.lru_cache(MAX_SESSIONS)(lambda session: Conversation())
        self.metrics = Metrics(self.admission, self._cache_hits)
        self.failure: BaseException | None = None  # why the engine could not be made
        self._engine: Any = None
        self._voices: VoiceStore | None = None
        self._closed = False
        self._loader: threading.Thread | None = None
        self._make: Callable[[], Any] | None = engine if callable(engine) else None
        if self._make is None:
            self._adopt(engine)

    @property
    def engine(self) -> Any:
        """The engine; raises `NotReady` if it is not loaded yet, or could not be."""
        if self._engine is None:
            raise NotReady("The model is not loaded yet.", str(self.failure or ""))
        return self._engine

    @property
    def voices(self) -> VoiceStore:
        """The engine's voices; raises as `engine` does."""
        self.engine  # noqa: B018 - raises
        assert self._voices is not None  # made with the engine
        return self._voices

    @property
    def broken(self) -> QwenTTSError | None:
        """Why only a restart of the process helps the engine; None: nothing is wrong."""
        return self._engine.failure if self._engine is not None else None

    @property
    def is_loading(self) -> bool:
        """Whether the engine is being made; `close` does not wait for that."""
        return self._loader is not None and self._loader.is_alive()

    async def configure(self, body: SpeechSettings) -> SpeechPlan:
        """Return the plan for `speak`; see `plan_speech`."""
        return await plan_speech(body, self.engine, self.voices, self.settings)

    async def speak(
        self, text: str | None, plan: SpeechPlan, request_id: str, *, arrived: float | None = None
    ) -> ActiveSpeech:
        """Admit a request and start its speech.

        Args:
            text: the text; None: the caller will feed it to the stream.
            request_id: the id under which `finished` reports the end of the speech.
            arrived: perf_counter() at the request's arrival; None: now.
        Raises:
            EngineBusy, Draining: no request is admitted.
            UsageError: the engine refuses the request; nothing was started.
            MissingPackageError: the audio cannot be encoded.
        """
        engine, encoder = self.engine, plan.audio.encoder(self.engine.mark.comment)
        speech_s = len(text or "") / CHARS_PER_SECOND
        ticket = self.admission.admit(speech_s * (engine.real_time_factor or 0.0))
        try:
            with naming(plan.voice_field, only=(RecordingError, VoiceMismatch)):
                stream = await _begin(engine, text, plan.options)
        except BaseException:
            ticket.release()
            raise
        arrived = time.perf_counter() if arrived is None else arrived
        record = SpeechRecord(self.metrics, stream.sample_rate, arrived)
        own = {"settings": self.settings, "mark": engine.mark, "finished": self.finished}
        return ActiveSpeech(stream, plan, ticket, record, encoder, request_id, **own)

    # ---- coming and going ------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load the engine; must be called on the event loop."""
        if self._make is not None:
            args = (self._make, asyncio.get_running_loop())
            # A daemon: Ctrl-C in the middle of a download must not wait for its end.
            self._loader = threading.Thread(target=self._load, args=args, name="load", daemon=True)
            self._loader.start()

    def close(self) -> None:
        """Close the engine that was loaded; waits for its thread."""
        self._closed = True
        if self._make is not None and self._engine is not None:
            self._engine.close()

    def _load(self, make: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        try:
            engine = make()
        except (Exception, KeyboardInterrupt) as error:  # `serving.serve` raises it
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


async def _begin(engine: Any, text: str | None, options: dict[str, Any]) -> Any:
    """Return a stream of the engine; a long text is read and divided in a thread."""
    begin = functools.partial(engine.stream, text, text_open=text is None, **options)
    is_short = text is None or len(text) <= MAX_CHARS_AT_ONCE
    # If this is cancelled, the thread goes on, and its stream, which nothing holds, ends itself.
    return begin() if is_short else await asyncio.to_thread(begin)


def shorten_pauses() -> None:
    """Shorten what delays all audio; the process of a server calls this with its model loaded.

    A full garbage collection would visit every object of the libraries again, for a tenth of a
    second, so all present objects are excluded. A thread that reads a long text would keep Python's
    lock for 5 ms, and the engine's thread takes it back up to a hundred times to begin a speech.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
