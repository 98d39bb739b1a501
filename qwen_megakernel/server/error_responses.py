"""The one form of every error: {"error": {"message", "type", "param", "code"}}.

Clients show only `error.message`, so it must be complete.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_snake
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from qwen_megakernel.errors import (
    EmptyText,
    EngineBusy,
    MarkupError,
    QwenTTSError,
    RecordingError,
    TextTooLong,
    UnknownLanguage,
    UnknownVoice,
    UsageError,
    VoiceMismatch,
)

DIALECT = "dialect"  # key of scope["state"]: the `dialects.dialect.Dialect` of the request

POLICY = 1008  # the close code for a fault of a WebSocket's client (RFC 6455)
RETRY_AFTER_S = 1  # used if there is no better estimate

CLOSE = {"Connection": "close"}  # headers of errors after which the server reads no more

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_PARAMS: dict[type[Exception], str] = {
    **dict.fromkeys((EmptyText, TextTooLong, MarkupError), "input"),
    **dict.fromkeys((UnknownVoice, VoiceMismatch, RecordingError), "voice"),
    UnknownLanguage: "language",
}
_HINTS = {("temperature", "greater_than_equal"): "For greedy decoding set do_sample to false."}
# What a field must be, by pydantic's type of error.
_WANTED = {
    "string_type": "a string",
    "string_unicode": "Unicode text, without half a surrogate pair",
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "an object"),
    "list_type": "a list",
    "literal_error": "one of {expected}",
    "greater_than": "above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "below {lt}",
    "less_than_equal": "{le} or less",
    "finite_number": "a finite number",
    "voice_type": "a voice's id, or an object with its `id`",
}
_NAMES_OF_TEXT = ("input", "text", "transcript", "prompt", "content")  # of all speech servers
_MAX_FAULTS = 10  # faults of a body that one message reports
_MAX_ECHO_CHARS = 200  # the longest part of a client's text that a message repeats


class ErrorFacts(BaseModel):
    """The facts of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every response that reports an error."""

    error: ErrorFacts


class ApiError(Exception):
    """An error with which the server answers a client.

    Args:
        message: what is wrong, why, and what to do.
        code: a word for programs.
        param: the field at fault.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        # JSON can contain half a surrogate pair, which UTF-8 cannot encode.
        self.message = message.encode(errors="backslashreplace").decode()
        self.status, self.code, self.param = status, code, param
        self.headers = dict(headers or {})
        if status in (429, 503):
            self.headers.setdefault("Retry-After", str(RETRY_AFTER_S))

    @classmethod
    def of(cls, error: Exception, param: str | None = None) -> "ApiError":
        """Return the `ApiError` for any exception, and the field at fault if it is known."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, QwenTTSError):
            param, code = param or _PARAMS.get(type(error)), to_snake(type(error).__name__)
            new = cls(error.http_status, str(error), code, param)
            if isinstance(error, EngineBusy):
                new.headers["Retry-After"] = str(error.retry_after_s)
            return new
        if isinstance(error, RequestValidationError | ValidationError):
            message, param = _validation_message(error)
            return cls(400, message, "invalid_value", param)
        if isinstance(error, HTTPException):
            status, message = error.status_code, f"{error.detail.rstrip('.')}."
            cause = error.__cause__  # FastAPI names none
            if isinstance(cause, UnicodeDecodeError):
                message = f"The body is not UTF-8 text: {cause}."
            elif isinstance(cause, ValueError | RecursionError):  # a number of 5000 digits
                message = f"The body is not JSON: {cause}."
            return cls(status, message, "http_error", headers=error.headers)
        message = "Internal error; the server's log reports it under the request's X-Request-Id."
        return cls(500, message, "internal_error")

    @classmethod
    def about(cls, param: str, what: str, why: str = "", hint: str = "") -> "ApiError":
        """Return the error about a field, in three lines as a `UsageError` has them."""
        return cls.of(UsageError(what, why, hint), param)

    @property
    def facts(self) -> dict[str, Any]:
        """The object under "error"."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _TYPES.get(self.status, kind)
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}


@contextlib.contextmanager
def naming(
    param: str, *, only: type[QwenTTSError] | tuple[type[QwenTTSError], ...] = QwenTTSError
) -> Iterator[None]:
    """Turn an error into the `ApiError` that names the client's field."""
    try:
        yield
    except only as error:
        raise ApiError.of(error, param) from error


def error_response(exception: Exception, scope: Scope) -> ASGIApp:
    """Return the response for any exception, in the form of the request's dialect, if any.

    Some ASGI servers send no response to a refused WebSocket; they close it, with status 403.
    """
    has_response = "websocket.http.response" in scope.get("extensions", {})
    if scope["type"] == "websocket" and not has_response:
        return WebSocketClose(POLICY)
    error, state = ApiError.of(exception), scope.get("state", {})
    if dialect := state.get(DIALECT):
        body = dialect.error_body(error, state["request_id"])
    else:
        body = {"error": error.facts}
    return JSONResponse(body, error.status, error.headers)


def add_handlers(app: FastAPI) -> None:
    """Answer the errors of `app` in that form; `middleware` answers all other exceptions."""

    async def answer(request: Request, error: Exception) -> Any:
        path = request.scope["path"][:_MAX_ECHO_CHARS]
        if isinstance(error, HTTPException) and error.status_code == 404:
            socket = "WebSocket " if request.scope["type"] == "websocket" else ""
            what = f"This server has no {socket}{path}. GET /docs lists its endpoints."
            error = ApiError(404, what, "not_found")
        elif isinstance(error, HTTPException) and error.status_code == 405:
            # Starlette names the methods of the path's first route.
            routes = (route for route in app.routes if isinstance(route, Route))
            found = (each for each in routes if each.matches(request.scope)[0] != Match.NONE)
            methods = sorted({name for each in found for name in each.methods or ()} - {"HEAD"})
            what = f"{path} does not accept {request.method}. Use {' or '.join(methods)}."
            allow = {"Allow": ", ".join(methods)}  # `RequestGuard` adds HEAD
            error = ApiError(405, what, "method_not_allowed", headers=allow)
        return error_response(error, request.scope)

    async def missing(scope: Scope, receive: Receive, send: Send) -> None:
        raise HTTPException(404)  # Starlette itself would close a WebSocket with status 403

    app.router.default = missing
    for kind in (ApiError, QwenTTSError, RequestValidationError, ValidationError, HTTPException):
        app.add_exception_handler(kind, answer)


def _validation_message(error: RequestValidationError | ValidationError) -> tuple[str, str | None]:
    """Return the first of pydantic's errors in words, and the field of the first."""
    lines, first = [], None
    faults, body = error.errors(), getattr(error, "body", None)
    for fault in faults[:_MAX_FAULTS]:
        if fault["type"] == "json_invalid":
            return f"The body is not JSON: {fault['ctx']['error']}.", None
        parts = (str(part)[:_MAX_ECHO_CHARS] for part in fault["loc"] if part != "body")
        name = ".".join(parts)
        if not name:
            return "The body must be a JSON object.", None
        first = first or name
        lines.append(_complaint(name, fault))
        if fault["type"] == "missing" and name in _NAMES_OF_TEXT and isinstance(body, dict):
            meant = [each for each in _NAMES_OF_TEXT if each in body]
            lines[-1] += f" Did you mean `{name}` by `{meant[0]}`?" if meant else ""
        if hint := _HINTS.get((name, fault["type"])):
            lines.append(hint)
    if len(faults) > _MAX_FAULTS:
        lines.append(f"The body has {len(faults) - _MAX_FAULTS} more faults.")
    return "\n".join(lines), first


def _complaint(name: str, fault: Mapping[str, Any]) -> str:
    """Return what is wrong with a field, in words that do not need pydantic's documentation."""
    kind, value, context = fault["type"], fault.get("input"), fault.get("ctx", {})
    if kind == "missing":
        return f"{name} is missing."
    if kind == "value_error" and "UploadFile" in fault["msg"]:  # FastAPI's check of a file
        return f"{name} is text; it must be a file, in curl -F {name}=@FILE."
    if kind.endswith(("too_long", "too_short")):
        limit = context.get("max_length") or context.get("min_length")
        bound = "at most" if kind.endswith("long") else "at least"
        found = "too many entries" if kind == "too_long" else "too few entries"
        found = f"{len(str(value))} characters" if kind.startswith("string") else found
        return f"{name} has {found}; it must have {bound} {limit}."
    limits = {key: f"{v:g}" if isinstance(v, float) else v for key, v in context.items()}
    wanted = _WANTED.get(kind, "").format(**limits) or fault["msg"]
    return f"{name} is {shown(value)}; it must be {wanted}."


def shown(value: object, max_chars: int = _MAX_ECHO_CHARS) -> str:
    """Return a client's value as JSON, but a file, and what may be long, by its kind."""
    for kind, name in {dict: "an object", list: "a list", UploadFile: "a file"}.items():
        if isinstance(value, kind):
            return name
    return json.dumps(value[:max_chars] if isinstance(value, str) else value)[:max_chars]
