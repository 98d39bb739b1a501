"""Every refusal and failure in one form: {"error": {"message", "type", "param", "code"}}.

Clients show `error.message` and nothing else, so it says everything.
"""

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from qwen_megakernel.errors import (
    EmptyText,
    EngineBusy,
    MissingPackageError,
    QwenTTSError,
    RecordingError,
    TextTooLong,
    UnknownLanguage,
    UnknownVoice,
    VoiceMismatch,
)

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1  # where nothing tells when there will be room

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_PARAMS = {
    EmptyText: "input",
    TextTooLong: "input",
    UnknownVoice: "voice",
    VoiceMismatch: "voice",
    UnknownLanguage: "language",
    RecordingError: "ref_audio",
}
_CURES = {("temperature", "greater_than_equal"): "For greedy decoding set do_sample to false."}
_WORD_START = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MAX_ECHO_CHARS = 200  # of what a client sent, in a message


class ErrorFacts(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every answer that is no success."""

    error: ErrorFacts


class ApiError(Exception):
    """A refusal that only HTTP knows.

    Args:
        status: of HTTP.
        message: what is wrong, why, what to do.
        code: a word for programs.
        param: the field at fault.
        headers: added to the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = dict(headers or {})

    @classmethod
    def about(cls, param: str, error: QwenTTSError) -> "ApiError":
        """One of our errors, with the field at fault, where its type does not tell."""
        code = snake(type(error).__name__)
        return cls(error.http_status, str(error), code=code, param=param)


def error_facts(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """HTTP status, the object under "error", and headers for any exception."""
    param, headers = None, {}
    if isinstance(error, ApiError):
        status, message, code, param = error.status, error.message, error.code, error.param
        headers = error.headers
    elif isinstance(error, QwenTTSError):
        status, message = error.http_status, str(error)
        code, param = snake(type(error).__name__), _PARAMS.get(type(error))
        if isinstance(error, MissingPackageError):
            status = 400  # a format this server was installed without; no use in trying again
        if isinstance(error, EngineBusy):
            headers = {"Retry-After": str(error.retry_after_s)}
    elif isinstance(error, RequestValidationError | ValidationError):
        status, code = 400, "invalid_value"
        message, param = _validation_message(error)
    elif isinstance(error, HTTPException):
        status, message = error.status_code, f"{error.detail}."
        code = {404: "not_found", 405: "method_not_allowed"}.get(status, "http_error")
        headers = dict(error.headers or {})
    else:
        status, code = 500, "internal_error"
        message = "Internal error; the server's log has it under this request's X-Request-Id."
    if status in (429, 503):
        headers.setdefault("Retry-After", str(RETRY_AFTER_S))
    # Half a surrogate pair, which JSON can spell, is no character that an answer could repeat.
    message = message.encode(errors="backslashreplace").decode()
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return status, {"message": message, "type": kind, "param": param, "code": code}, headers


def error_response(error: Exception) -> JSONResponse:
    """The answer for any exception."""
    status, facts, headers = error_facts(error)
    return JSONResponse({"error": facts}, status, headers)


def add_handlers(app: FastAPI) -> None:
    """Have the refusals of `app` answered in our form; what else fails, `middleware` answers."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        response = error_response(error)
        if response.status_code == 405:  # Starlette names the methods of the path's first route
            found = (each for each in app.routes if each.matches(request.scope)[0] != Match.NONE)
            methods = {method for route in found for method in route.methods}
            response.headers["Allow"] = ", ".join(sorted(methods - {"HEAD"}))  # the guard adds it
        return response

    for kind in (ApiError, QwenTTSError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)


def _validation_message(error: RequestValidationError | ValidationError) -> tuple[str, str | None]:
    """All complaints of pydantic, and the field of the first."""
    lines, first = [], None
    for fault in error.errors():
        if fault["type"] == "json_invalid":
            return f"The body is not JSON: {fault['ctx']['error']}.", None
        name = ".".join(str(part) for part in fault["loc"] if part != "body")
        if not name:
            return "The body must be a JSON object.", None
        first = first or name
        line = f"{name}: {fault['msg']}"
        if isinstance(fault.get("input"), str | int | float | bool):
            line += f" (got {json.dumps(fault['input'])[:_MAX_ECHO_CHARS]})"
        cure = _CURES.get((name, fault["type"]))
        lines += [line, cure] if cure else [line]
    return "\n".join(lines), first


def snake(name: str) -> str:
    """NoGPUError -> no_gpu_error."""
    return _WORD_START.sub("_", name).strip("_").lower()
