"""The middleware in front of every route: request ids, hosts, the API key, limits on bodies.

HEAD is GET without the body, on every path. The key is checked before a byte of the body is read.
The middleware reads the whole body within a size and a time, so no handler waits for a slow client,
and it limits how much of all bodies is in memory. It reads no body where no route takes one. When a
response ends, it logs a line to `qwen_megakernel.access` at level INFO.

A client that reads nothing for a while is cut off, over HTTP and over WebSockets.
"""

import asyncio
import contextlib
import hmac
import io
import ipaddress
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast
from urllib.parse import quote

from fastapi.params import Body
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qwen_megakernel.printable import get_logger
from qwen_megakernel.server.dialects.dialect import Dialect, keys_of
from qwen_megakernel.server.error_responses import CLOSE, DIALECT, ApiError, error_response
from qwen_megakernel.server.responses import ABORT, sent, steer
from qwen_megakernel.server.schemas import check_json_values
from qwen_megakernel.server.service import Service
from qwen_megakernel.server.settings import host_name

logger = get_logger(__name__)
access_logger = get_logger("qwen_megakernel.access")

_PROBES = ("/health", "/ready")  # monitors poll these, so their errors do not count as refusals
_PROTECTED = ("/v1", "/metrics")
_REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
_LEGAL_VALUE = re.compile(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?")
_CHANGING = ("POST", "PUT", "PATCH", "DELETE")
_BODILESS = ("GET", "DELETE", "OPTIONS")  # methods of routes that take no body
SMALL_BODY = 64 * 1024  # bytes that a client may always send, so that texts are spoken
_MULTIPART_SLACK = 64 * 1024  # bytes of an upload besides the recording: fields and boundaries
_MAX_PATH_CHARS = 200  # in a line of the access log
_PIECE_BYTES = 1 << 17  # of a long body, each of which has the time of `stall_timeout_s`
_LINGER_S, _LINGER_BYTES = 1.0, 1 << 20  # limits on reading from a refused client


class RequestGuard:
    """The ASGI middleware.

    Args:
        service: has the settings, and counts buffered bytes and refusals.
        takers: the routes that take a body; requests to others have none.
        dialects: what else is served, with keys and errors of its own.
    """

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        takers: Sequence[APIRoute],
        dialects: Sequence[Dialect] = (),
    ):
        self._app, self._metrics, self._takers = app, service.metrics, takers
        self._settings, self._admission = service.settings, service.admission
        self._dialects, settings = dialects, service.settings
        hosts = (origin.partition("://")[2] for origin in settings.allow_origins)
        self._hosts = {"localhost", *filter(None, map(host_name, (*settings.allow_hosts, *hosts)))}
        self._num_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection (ASGI)."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if not scope["path"].startswith("/"):  # a whole URL, as clients send it to a proxy
            scope["path"] = "/" + scope["path"].partition("://")[2].partition("/")[2]
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        scope.setdefault("state", {})["request_id"] = request_id
        found = (each for each in self._dialects if each.has(scope["path"], headers))
        dialect = scope["state"][DIALECT] = next(found, None)

        arrived, method = time.perf_counter(), scope.get("method", "WEBSOCKET")
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        if is_head:
            scope = {**scope, "method": "GET"}
        started = is_unread = False
        status: int | None = None  # the response's; None: there was no response
        num_buffered = 0  # bytes of this request's body

        async def counted() -> Message:
            nonlocal num_buffered
            message = await receive()
            num_new = len(message.get("body", b""))
            num_buffered += num_new
            self._admission.buffered_bytes += num_new
            return message

        async def stamped(message: Message) -> None:
            nonlocal started, status
            if message["type"] == "websocket.accept":
                status = 101
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                answer, status = MutableHeaders(scope=message), message["status"]
                answer["x-request-id"] = request_id
                if message["status"] == 405 and "GET" in answer.get("allow", "").split(", "):
                    answer["allow"] += ", HEAD"
                check_headers(answer.raw)
                if message["status"] >= 400 and scope["path"] not in _PROBES:
                    self._metrics.refused.labels(message["status"]).inc()
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            started = True
            body: bytes = message.get("body", b"") if scope["type"] == "http" else b""
            if len(body) > _PIECE_BYTES:
                for begin in range(0, len(body), _PIECE_BYTES):
                    piece = body[begin : begin + _PIECE_BYTES]
                    await self._sent(send, {**message, "body": piece, "more_body": True}, scope)
                message = {**message, "body": b""}  # sent when the client has read most
            await self._sent(send, message, scope)

        self._num_open += 1
        try:
            self._check_room()
            is_unread = scope["type"] == "http"
            self._check_host(scope, headers)
            self._check_origin(scope, headers)
            self._check_key(scope, headers, dialect)
            if scope["type"] == "http":
                body = await self._read_body(scope, headers, counted)
                if body is None:
                    return
                is_unread = False
                receive = _replay(body, receive)
                del body  # Starlette keeps a copy of its own
            await self._app(scope, receive, stamped)
        except ApiError as error:
            answer = _lingering(receive, stamped) if is_unread else stamped
            await error_response(error, scope)(scope, receive, answer)
        except ConnectionAbortedError as error:  # of `sent`
            logger.info("The client of request %s was cut: %s", request_id, error)
        except Exception as error:
            if started:
                raise
            logger.exception("Request %s failed.", request_id)
            await error_response(error, scope)(scope, receive, stamped)
        finally:
            self._num_open -= 1
            self._admission.buffered_bytes -= num_buffered
            # Without query and headers, which may hold keys, and with an escaped path.
            (host, port), seconds = scope.get("client") or ("-", 0), time.perf_counter() - arrived
            path = quote(scope["path"], errors="replace")[:_MAX_PATH_CHARS]
            facts = (host, port, method, path, status or "-", seconds, request_id)
            access_logger.info('%s:%s "%s %s" %s %.3f s %s', *facts)

    async def _sent(self, send: Send, message: Message, scope: Scope) -> None:
        await sent(send(message), self._settings.stall_timeout_s, lambda: steer(scope, ABORT))

    def _check_room(self) -> None:
        limit = self._settings.max_connections
        if self._num_open > limit:
            what = f"{limit} requests and WebSockets are open (limit {limit})."
            raise ApiError(503, what, "too_many_connections", headers=CLOSE)

    def _check_host(self, scope: Scope, headers: Headers) -> None:
        """Refuse names that are not this server's, which a web page may have pointed at it.

        To a browser such a page (DNS rebinding) is one of this server, so its Origin is allowed.
        """
        allowed = self._settings.allow_hosts
        address, _ = scope.get("server") or ("", None)
        if "*" in allowed or not (allowed or is_loopback(address)):
            return
        for host in headers.getlist("host"):
            name = host_name(host)
            if name is None or not (name in self._hosts or is_loopback(name)):
                what = f"Host is {host[:200] or 'empty'}, which is no name of this server. Use "
                what += "localhost, or start the server with --allow-host NAME to add a name."
                raise ApiError(421, what, "host_not_allowed")

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """Refuse web pages of other hosts, since a browser that shows one may reach this server."""
        origin = headers.get("origin")
        if origin is None or (scope["type"] == "http" and scope["method"] not in _CHANGING):
            return
        is_own = origin.partition("://")[2] == headers.get("host")
        if not is_own and origin not in self._settings.allow_origins:
            what = f"Web pages of {origin[:200]} may not call this server."
            what += " Start it with --allow-origin to let them."
            raise ApiError(403, what, "origin_not_allowed")

    def _check_key(self, scope: Scope, headers: Headers, dialect: Dialect | None) -> None:
        wanted = self._settings.api_key
        if wanted is None or not (dialect or scope["path"].startswith(_PROTECTED)):
            return
        found = [key.strip().encode() for key in keys_of(scope, headers, dialect)]
        if not any(hmac.compare_digest(key, wanted.strip().encode()) for key in found):
            what = "Missing or wrong API key. Send it as: Authorization: Bearer KEY."
            challenge = {"WWW-Authenticate": "Bearer"}
            raise ApiError(401, what, "invalid_api_key", headers=challenge | CLOSE)

    async def _read_body(self, scope: Scope, headers: Headers, receive: Receive) -> bytes | None:
        """Return the whole body; None: the client disconnected before its end."""
        fields = (each.body_field for each in self._takers if each.matches(scope)[0] is Match.FULL)
        field = next(fields, None)
        media_type = cast("Body", field.field_info).media_type if field else None
        if media_type is None and scope["method"] not in _BODILESS:
            return b""  # no route takes it: the app refuses the request, whatever the body
        sent = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type is not None and sent != media_type:
            what = f"Content-Type is {sent[:80] or 'absent'}; it must be {media_type}."
            raise ApiError(415, what, "unsupported_media_type", headers=CLOSE)
        if encoding := headers.get("content-encoding", ""):
            what = f"Content-Encoding is {encoding[:80]}; this server reads only plain bodies."
            raise ApiError(415, what, "unsupported_media_type", headers=CLOSE)
        limit = SMALL_BODY if media_type is None else self._settings.max_body_bytes
        if media_type == "multipart/form-data":
            limit = self._settings.max_upload_bytes + _MULTIPART_SLACK
        what = f"The body is larger than {limit} bytes."
        what += "" if media_type else f" A {scope['method']} request needs none here."
        too_large = ApiError(413, what, "too_large", headers=CLOSE)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > limit:
            raise too_large
        body, num_values = io.BytesIO(), 0  # `getvalue` makes no copy
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    piece = message.get("body", b"")
                    body.write(piece)
                    if body.tell() > limit:
                        raise too_large
                    if media_type == "application/json":
                        num_values = check_json_values(piece, num_values)
                    self._check_memory(body.tell())
                    if not message.get("more_body", False):
                        break
        except TimeoutError as error:
            what = f"The body did not arrive within {self._settings.body_timeout_s:.0f} s."
            raise ApiError(408, what, "body_timeout", headers=CLOSE) from error
        return body.getvalue()

    def _check_memory(self, num_bytes: int) -> None:
        """Refuse to read more of a large body while the bodies of all requests fill the memory."""
        limit = self._settings.max_buffered_bytes
        if num_bytes > SMALL_BODY and self._admission.buffered_bytes > limit:
            what = f"The bodies of all requests together are larger than {limit} bytes."
            what += " Try again when other requests have ended."
            raise ApiError(503, what, "bodies_too_large", headers=CLOSE)


def check_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise a ValueError that names and shows the first header that HTTP does not allow.

    A server refuses to send one with control characters or outer spaces in its value, and the
    client then gets no response at all.
    """
    for name, value in headers:
        if not _LEGAL_VALUE.fullmatch(value):
            what = f"The response header {name.decode()} has the value {value[:200]!r}"
            raise ValueError(f"{what}, which HTTP does not allow.")


def is_loopback(address: str) -> bool:
    """Return whether an address can be reached from this machine only; a name is no address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body as one message, then the server's messages."""
    messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


def _lingering(receive: Receive, send: Send) -> Send:
    """Return a `send` that reads what the client still sends before the response ends.

    Closing a connection with unread bytes resets it, and the client may lose the response.
    """

    async def lingering(message: Message) -> None:
        if message["type"] != "http.response.body" or message.get("more_body", False):
            await send(message)
            return
        await send({**message, "more_body": True})  # sends the rest without ending the response
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                left = _LINGER_BYTES
                while left > 0:
                    got = await receive()
                    left -= len(got.get("body", b""))
                    if not got.get("more_body", False):
                        break
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return lingering
