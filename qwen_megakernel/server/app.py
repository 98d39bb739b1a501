"""The HTTP server: OpenAI's speech endpoint, its events, a WebSocket, voices, health, metrics.

    app = create_app(engine, ServerSettings())
    uvicorn.run(app)                    # or `serve`, which also drains and limits slow clients

docs/serving.md and the server's /openapi.json describe the endpoints.
"""

import asyncio
import contextlib
import functools
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, File, Form, Request, Response, UploadFile, WebSocket
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from prometheus_client import generate_latest
from starlette.routing import WebSocketRoute

from qwen_megakernel import PACKAGE_FOLDER, __version__
from qwen_megakernel.errors import NotReady, RecordingError
from qwen_megakernel.server import responses
from qwen_megakernel.server.dialects.cartesia import Cartesia
from qwen_megakernel.server.dialects.deepgram import Deepgram
from qwen_megakernel.server.dialects.elevenlabs import ElevenLabs
from qwen_megakernel.server.error_responses import (
    DIALECT,
    ApiError,
    ErrorBody,
    add_handlers,
    naming,
)
from qwen_megakernel.server.middleware import RequestGuard
from qwen_megakernel.server.responses import EVENT_STREAM, SpeechResponse
from qwen_megakernel.server.schemas import MODEL_ALIASES, SpeechBody, check_length, check_model
from qwen_megakernel.server.service import Service
from qwen_megakernel.server.settings import MEDIA_TYPES, ServerSettings
from qwen_megakernel.server.websocket import Session

SPEECH, VOICES, DETECT = "/v1/audio/speech", "/v1/audio/voices", "/v1/audio/detect"
PAGE = PACKAGE_FOLDER / "assets" / "web" / "index.html"

_EXPOSED = (
    *("X-Request-Id", "X-Seed", "X-Sample-Rate", "X-Parts", "X-Finish-Reason", "X-Warning"),
    *("X-Spoken-Text", "X-AI-Generated", "Retry-After"),
)
_DESCRIPTION = f"""Qwen3-TTS speech, streamed. OpenAI's clients for speech work with this server.

- **WebSocket `{SPEECH}/stream`** speaks text that arrives in pieces: send the JSON message
  `{{"type": "session.config", "voice": ...}}`, then for each piece
  `{{"type": "input.text", "text": ...}}`, and last `{{"type": "input.done"}}`. Audio arrives in
  binary messages, between messages of the types `audio.start` and `audio.done`.
- [The web page](.) speaks a text in the browser.
"""
_ERRORS: dict[int | str, dict[str, Any]] = {
    key: {"model": ErrorBody, "description": "Error"} for key in ("4XX", "5XX")
}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
_SPEECH_CONTENT = dict.fromkeys(MEDIA_TYPES.values(), _BINARY) | {
    EVENT_STREAM: {"schema": _EVENT},
    "application/json": {"schema": {"type": "object"}},  # with times of words
}


def create_app(engine: Any, settings: ServerSettings | None = None) -> FastAPI:
    """Return an application with a queue and metrics of its own.

    Args:
        engine: a `TTSEngine`, or a function that makes one (see `Service`).
    Returns:
        The application; its `state.service` is the `Service`.
    """
    settings = settings or ServerSettings()
    service = Service(engine, settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.admission.draining = True
        await asyncio.to_thread(service.close)

    app = FastAPIOffline(  # FastAPI's own page of the endpoints loads scripts from other hosts
        title="qwen_megakernel",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        redoc_url=None,
        responses=_ERRORS,
    )
    app.state.service = service
    add_handlers(app)
    known = {each.name: each for each in (ElevenLabs, Cartesia, Deepgram)}
    dialects = [known[name](service) for name in settings.dialects]
    # The dialects come before our own routes, of which some share a path.
    foreign = {each.title: each.add_routes for each in dialects}
    own = {"Speech": _add_speech, "Voices": _add_voices, "Marks": _add_detection}
    own["Server"] = _add_facts
    groups = foreign | {tag: functools.partial(add, service=service) for tag, add in own.items()}
    about = {tag: _add_group(app, tag, add) for tag, add in groups.items()}
    app.openapi_tags = [{"name": tag, "description": about[tag]} for tag in (*own, *foreign)]
    if settings.api_key is not None:
        describe = app.openapi
        app.openapi = lambda: _with_key(describe())  # type: ignore[method-assign]
    takers = [each for each in app.routes if isinstance(each, APIRoute) and each.body_field]
    if not settings.allow_upload:  # refused whatever its body
        takers = [each for each in takers if each.path != VOICES]
    app.add_middleware(RequestGuard, service=service, takers=takers, dialects=dialects)
    if settings.allow_origins:
        every: dict[str, Any] = {"allow_methods": ["*"], "allow_headers": ["*"]}
        every |= {"allow_origins": settings.allow_origins, "expose_headers": _EXPOSED}
        app.add_middleware(CORSMiddleware, **every)
    return app


def _with_key(described: dict[str, Any]) -> dict[str, Any]:
    """Return a description that has the API key, so that the page of the endpoints asks for it."""
    described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return described | {"security": [{"key": []}]}


def _add_group(app: FastAPI, tag: str, add: Callable[[FastAPI], None]) -> str:
    """Add routes, described by the first sentence of their docstring; return their WebSockets."""
    num_before = len(app.routes)
    add(app)
    for route in app.routes[num_before:]:
        if isinstance(route, APIRoute):
            first, *rest = re.split(r"\.(?:\s+|$)", route.description, maxsplit=1)
            route.summary, route.tags = route.summary or first, [tag]
            route.description = "".join(rest)
    sockets = [each.path for each in app.routes[num_before:] if isinstance(each, WebSocketRoute)]
    return f"WebSocket: {', '.join(f'`{path}`' for path in sockets)}" if sockets else ""


def _add_speech(app: FastAPI, service: Service) -> None:
    @app.post(SPEECH, response_class=Response, responses={200: {"content": _SPEECH_CONTENT}})
    async def speech(request: Request, body: SpeechBody) -> Response:
        """Speak a text: audio while it is made, events, or one response (`stream` false)."""
        arrived = time.perf_counter()
        check_length(len(body.input), service.settings)
        plan = await service.configure(body)
        if body.session is not None:
            plan = plan.within(service.conversation(body.session))
        if body.event_format:  # a step is reported when its frame is drawn
            plan.options.update(first_chunk_frames=1, chunk_frames=1)
        request_id = request.state.request_id
        speaking = await service.speak(body.input, plan, request_id, arrived=arrived)
        granularities = frozenset(body.timestamp_granularities or ())
        media_type = plan.audio.media_type
        if body.is_whole:
            media_type = "application/json" if granularities else media_type
            file = responses.whole(speaking, body.loudness, granularities)
            return SpeechResponse(speaking, file, media_type, is_whole=True)
        if not body.has_events:
            return SpeechResponse(speaking, speaking.audio(), media_type)
        max_steps = plan.options["max_frames"]
        if max_steps is None:  # the limit of each part of the text
            max_steps = service.engine.max_frames * (speaking.stream.text.planned_parts or 1)
        if body.event_format:
            steps = responses.phases(speaking, max_steps)
            return SpeechResponse(speaking, steps, EVENT_STREAM, responses.error_event)
        most = None if body.stream_format else max_steps  # more than OpenAI's events
        found = responses.events(speaking, most, granularities, include_codes=body.include_codes)
        on_error = functools.partial(responses.error_event, type="speech.audio.error")
        return SpeechResponse(speaking, found, EVENT_STREAM, on_error)

    @app.get(SPEECH + "/{request_id}")
    async def finished(request_id: str) -> dict[str, Any]:
        """Report how a request ended, which a streamed response's headers cannot contain."""
        facts = service.finished.get(request_id)
        if facts is None:
            raise ApiError(404, "No finished request has this id.", "not_found")
        return {"id": request_id, "object": "speech"} | facts

    @app.websocket(SPEECH + "/stream")
    async def stream(websocket: WebSocket) -> None:
        await Session(websocket, service).run()


def _add_voices(app: FastAPI, service: Service) -> None:
    @app.get(VOICES)
    def voices() -> dict[str, Any]:  # in a thread, since it reads a file for each voice
        """List the voices."""
        return service.voices.listing()

    async def uploads_allowed() -> None:
        if not service.settings.allow_upload:
            what = "Clients may not change this server's voices."
            what += " Start it with --allow-upload --voices DIR."
            raise ApiError(403, what, "uploads_not_allowed")

    only_allowed = [Depends(uploads_allowed)]  # runs before the fields are checked

    about_consent = "who agreed, or a reference to the consent; kept in the voice's file"
    name_form = Form(min_length=1, max_length=80, description="id of the new voice")
    consent_form = Form(min_length=1, max_length=1000, description=about_consent)

    @app.post(VOICES, status_code=201, dependencies=only_allowed)
    async def upload(
        audio_sample: Annotated[
            UploadFile, File(description="recording of one speaker, 1 to 60 s")
        ],
        name: Annotated[str, name_form],
        consent: Annotated[str, consent_form],
        ref_text: Annotated[
            str | None, Form(description="exact transcript of the recording")
        ] = None,
    ) -> dict[str, Any]:
        """Clone a voice from a recording and store it."""
        recording = await audio_sample.read()
        with naming("audio_sample", only=RecordingError):  # as this route calls it
            voice = await service.voices.upload(recording, name, ref_text or None, consent)
        return {"success": True, "voice": voice}

    @app.delete(VOICES + "/{name}", dependencies=only_allowed)
    def delete(name: str) -> dict[str, Any]:  # in a thread, as `voices`
        """Delete an uploaded voice."""
        service.voices.delete(name)
        return {"success": True, "name": name}


def _add_detection(app: FastAPI, service: Service) -> None:
    @app.post(DETECT)
    async def detect(
        audio: Annotated[UploadFile, File(description="recording to search, up to 60 s")],
    ) -> dict[str, Any]:
        """Look for this server's watermark, C2PA's credentials and metadata in a recording."""
        recording = await audio.read()
        with naming("audio", only=RecordingError):
            return (await service.voices.detect(recording)).facts()


def _model(engine: Any, name: str) -> dict[str, Any]:
    """Return the entry of the engine's model under one of its names."""
    facts = ("can_clone", "normalizes", "weights", "vocoder_weights", "seconds_per_frame")
    common = {"object": "model", "created": 0, "owned_by": "qwen_megakernel"}
    return {"id": name, "name": name, **common} | {each: getattr(engine, each) for each in facts}


def _add_facts(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models/", include_in_schema=False)  # otherwise it would name an empty model
    @app.get("/v1/models")
    @app.get("/v1/audio/models")
    async def models(request: Request) -> Any:
        """List the loaded model under each of its names."""
        if dialect := request.scope["state"].get(DIALECT):
            return dialect.models()
        engine = service.engine
        listed = [_model(engine, name) for name in (engine.files.name, *MODEL_ALIASES)]
        return {"object": "list", "data": listed, "models": listed}

    @app.get("/v1/models/{model:path}")  # names of the hub have a slash
    async def model(model: str) -> dict[str, Any]:
        """Describe the loaded model, by any of its names."""
        check_model(model, service.engine.files.name)
        return _model(service.engine, model)

    failed: dict[int | str, Any] = {503: {"model": dict[str, str], "description": "GPU hangs"}}

    @app.get("/health", responses=failed, openapi_extra={"security": []})  # needs no key
    async def health(response: Response) -> dict[str, Any]:
        """Report that the process is alive; 503 if only a restart helps, because the GPU hangs."""
        if service.broken:
            response.status_code = service.broken.http_status
            return {"status": "failed", "why": str(service.broken)}
        return {"status": "draining" if service.admission.draining else "ok"}

    @app.get("/ready", openapi_extra={"security": []})
    async def ready() -> dict[str, Any]:
        """Report that requests are accepted: the model is loaded, and no shutdown has begun."""
        name = service.engine.files.name  # raises if it is not loaded
        if service.broken:
            raise service.broken
        if service.admission.draining:
            raise NotReady("The server is shutting down.")
        return {"status": "ready", "model": name}

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Return the metrics for Prometheus."""
        text = generate_latest(service.metrics.registry)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", include_in_schema=False)
    def page() -> Response:  # in a thread, as `voices`
        if not PAGE.is_file():
            raise ApiError(404, "This build has no web page.", "not_found")
        # Not a FileResponse, whose errors about the header `Range` are plain text.
        return HTMLResponse(PAGE.read_bytes(), headers={"Cache-Control": "no-cache"})
