"""The server on Ray Serve: the same app in several replicas, an engine each, behind one address.

Serve's proxy takes the connections and gives each request, HTTP or WebSocket, to the replica with
fewer of them. Replicas share nothing but the folder of voices. When one dies, its streams break off
and Serve starts another.
"""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve import Application
from ray.serve.config import AutoscalingConfig
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qwen_megakernel.errors import ResourceError, SetupError, UsageError
from qwen_megakernel.server.app import create_app
from qwen_megakernel.server.serving import listen
from qwen_megakernel.server.settings import ServerSettings

NAME = "qwen_megakernel"  # of the application and of its deployment

# Requests a replica is given beyond those it can speak or queue, so that it is the replica that
# refuses one too many, as a server by itself would (429), and health checks get through.
_SPARE_REQUESTS = 64

# A busy machine does not start Serve's proxy within the 5 s after which Serve kills it. To be set
# before Ray starts; Serve itself gives up after 60 s.
PROXY_PATIENCE = ("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")

# How the threads of a replica wait for each other; the commands' own is `options.wait_passively`.
WAITING = ("OMP_WAIT_POLICY", "PASSIVE")


@dataclass(frozen=True, slots=True)
class Scale:
    """How many replicas, and what each of them takes of the cluster."""

    min_replicas: int = 1
    max_replicas: int = 1  # more than `min_replicas`: as many as the requests under way need
    num_gpus: float = 0.0  # for each replica
    num_cpus: float = 1.0
    upscale_delay_s: float = 10.0  # how long there must be too many requests for one more replica
    downscale_delay_s: float = 300.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise UsageError(
                f"min_replicas is {self.min_replicas} and max_replicas {self.max_replicas}; need "
                "1 <= min <= max."
            )


class Replica:
    """One engine and the app in front of it.

    Args:
        make_engine: makes the engine; called in the replica's own process, which gets no request
            before it is done.
        settings: see `create_app`.
    """

    def __init__(self, make_engine: Callable[[], Any], settings: ServerSettings):
        self._app = create_app(make_engine(), settings)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return _without_request_id(self._app)


def _without_request_id(app: ASGIApp) -> ASGIApp:
    """`app` without its X-Request-Id: Serve's proxy, which gave it to us, adds the same."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        async def stripped(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)["x-request-id"]
            await send(message)

        await app(scope, receive, stripped)

    return called


def application(
    make_engine: Callable[[], Any], settings: ServerSettings, scale: Scale, *, num_slots: int
) -> Application:
    """What `serve.run` runs.

    Args:
        make_engine: makes one replica's engine. It travels to the replicas by pickle.
        settings: see `create_app`; its folder of voices must be one that all replicas see.
        scale: how many replicas.
        num_slots: streams that one engine speaks at the same time; the autoscaler aims at that.
    """
    name, policy = WAITING
    deployment = serve.deployment(
        name=NAME,
        max_ongoing_requests=num_slots + settings.max_queue + _SPARE_REQUESTS,
        autoscaling_config=AutoscalingConfig(
            min_replicas=scale.min_replicas,
            max_replicas=scale.max_replicas,
            target_ongoing_requests=num_slots,
            upscale_delay_s=scale.upscale_delay_s,
            downscale_delay_s=scale.downscale_delay_s,
        ),
        graceful_shutdown_timeout_s=settings.drain_timeout_s,
        ray_actor_options={
            "num_cpus": scale.num_cpus,
            "num_gpus": scale.num_gpus,
            # Of the process in which a replica imports torch, on any machine of the cluster.
            "runtime_env": {"env_vars": {name: os.environ.get(name, policy)}},
        },
    )
    return deployment(serve.ingress()(Replica)).bind(make_engine, settings)


def run(
    make_engine: Callable[[], Any],
    settings: ServerSettings,
    scale: Scale,
    *,
    num_slots: int,
    host: str = "127.0.0.1",
    port: int = 8090,
    say: Callable[[str], None] = lambda line: None,
) -> int:
    """Serve until SIGTERM or Ctrl-C, when running streams are finished first.

    The replicas go to the cluster of RAY_ADDRESS, or to one that runs on this machine; where there
    is none, one is started and ends with us. A second signal ends it at once.

    Args:
        make_engine, settings, scale, num_slots: see `application`.
        host, port: where Serve's proxy listens; port 0 takes any that is free.
        say: shows the user a line: the address, once every replica has its engine, and the end.
    Returns:
        The signal that ended it.
    Raises:
        UsageError: the address cannot be had.
        ResourceError: there is no room for that many replicas.
        SetupError: the proxy or the replicas could not be started.
    """
    with listen(host, port) as listener:  # Serve says later, and elsewhere, that a port is taken
        port = listener.getsockname()[1]
    came: list[int] = []
    over = threading.Event()

    def end(number: int, _: Any) -> None:
        came.append(number)
        over.set()

    os.environ.setdefault(*PROXY_PATIENCE)
    ray.init(include_dashboard=False, log_to_driver=False)
    try:
        _check_room(scale)
        try:
            serve.start(http_options={"host": host, "port": port})
        except (RayError, TimeoutError) as error:
            raise SetupError(
                "Serve's proxy did not start.",
                str(error).partition("\n")[0],
                "Is the machine too busy? Ray keeps its logs under its session's logs/serve.",
            ) from error
        try:
            serve.run(application(make_engine, settings, scale, num_slots=num_slots), name=NAME)
        except RuntimeError as error:
            raise SetupError(
                "The replicas could not be started.",
                _why_not(),
                "Ray keeps their logs under its session's logs/serve.",
            ) from error
        signals = (signal.SIGTERM, signal.SIGINT)
        handlers = {each: signal.signal(each, end) for each in signals}
        say(f"listening on http://{host}:{port}")
        over.wait()
        say("finishing the speeches that run; Ctrl-C again ends at once")
        for each, handler in handlers.items():
            signal.signal(each, handler)
        serve.delete(NAME)
    finally:
        ray.shutdown()
    say(f"ended by {signal.Signals(came[0]).name}")
    return came[0]


def _check_room(scale: Scale) -> None:
    """Refuse what Ray would wait for without an end; a cluster elsewhere may grow."""
    if "RAY_ADDRESS" in os.environ:
        return
    there_is = ray.cluster_resources()
    for name, each in (("CPU", scale.num_cpus), ("GPU", scale.num_gpus)):
        if scale.min_replicas * each > there_is.get(name, 0):
            raise ResourceError(
                f"{scale.min_replicas} replicas need {scale.min_replicas * each:g} {name}s; Ray "
                f"has {there_is.get(name, 0):g}.",
                hint="Ask for fewer with --replicas.",
            )


def _why_not() -> str:
    """The last line of the last traceback of a replica."""
    deployments = serve.status().applications[NAME].deployments
    lines = [line for line in deployments[NAME].message.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
