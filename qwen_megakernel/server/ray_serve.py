"""The server on Ray Serve: replicas of the app behind one address, each with an engine.

Ray Serve's proxy takes the connections and gives each request, HTTP or WebSocket, to the replica
that has fewer requests. Replicas share only the folder of voices. When a replica dies, its streams
break off and Ray Serve starts another replica.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
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
from qwen_megakernel.server.service import shorten_pauses
from qwen_megakernel.server.serving import listen, settings_for
from qwen_megakernel.server.settings import ServerSettings

NAME = "qwen_megakernel"  # the application's and its deployment's

# Requests that a replica takes beyond those it can speak or queue, so that the replica itself
# refuses further ones (429), as a server without Ray does, and health checks get through.
_SPARE_REQUESTS = 64

# Ray Serve kills a proxy that has not started within 5 s, which is too short on a busy machine.
# The variable must be set before Ray starts; Ray Serve itself gives up after 60 s.
PROXY_PATIENCE = ("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")

# How the threads of a replica wait; `torch_import.wait_passively` sets it for commands.
WAITING = ("OMP_WAIT_POLICY", "PASSIVE")


@dataclass(frozen=True, slots=True)
class Scale:
    """The number of replicas, and the resources of the cluster that each of them needs."""

    min_replicas: int = 1
    max_replicas: int = 1  # if above `min_replicas`, the number follows the running requests
    num_gpus: float = 0.0  # for each replica
    num_cpus: float = 1.0
    upscale_delay_s: float = 10.0  # seconds with too many requests before another replica starts
    downscale_delay_s: float = 300.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            what = f"min_replicas is {self.min_replicas} and max_replicas {self.max_replicas};"
            raise UsageError(f"{what} they must be 1 <= min <= max.")


class Replica:
    """One engine and the app in front of it.

    Args:
        make_engine: makes the engine, in the replica's own process and before its first request.
    """

    def __init__(self, make_engine: Callable[[], Any], settings: ServerSettings):
        self._app = create_app(make_engine(), settings)
        shorten_pauses()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return _without_request_id(self._app)


def _without_request_id(app: ASGIApp) -> ASGIApp:
    """Return `app` without the X-Request-Id in its responses, since Ray's proxy adds the same."""

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
    """Return the application for Ray's `serve.run`.

    Args:
        make_engine: makes a replica's engine; must be picklable.
        settings: see `create_app`; all replicas must see its folder of voices.
        num_slots: streams that one engine speaks at the same time, the autoscaler's target.
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
            # Ray sets this variable on any machine of the cluster, before a replica imports torch.
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
    """Serve until SIGTERM or Ctrl-C, whose number is returned; running streams are finished first.

    The replicas run on the cluster of RAY_ADDRESS, or on one that runs on this machine; without
    either, this function starts a cluster and ends it. A second signal ends serving at once.

    Args:
        host, port: the address that Ray Serve's proxy listens on; port 0 takes a free one.
        say: prints a line: the address, once every replica has its engine, and the end.
    Raises:
        UsageError: the address is in use or wrong.
        ResourceError: the cluster has no room for that many replicas.
        SetupError: the proxy or the replicas could not be started.
    """
    with listen(host, port) as listener:  # Ray Serve itself reports a port in use late, in its log
        port = listener.getsockname()[1]
        settings = settings_for(listener, settings)
    came = SimpleQueue[int]()  # signals
    os.environ.setdefault(*PROXY_PATIENCE)
    ray.init(include_dashboard=False, log_to_driver=False)
    try:
        _check_room(scale)
        try:
            serve.start(http_options={"host": host, "port": port})
        except (RayError, TimeoutError) as error:
            why = str(error).partition("\n")[0]
            hint = "Is the machine too busy? Ray's logs are under logs/serve of its session."
            raise SetupError("Ray Serve's proxy did not start.", why, hint) from error
        try:
            serve.run(application(make_engine, settings, scale, num_slots=num_slots), name=NAME)
        except RuntimeError as error:
            hint = "Their logs are under logs/serve of Ray's session."
            raise SetupError("The replicas could not be started.", _why_not(), hint) from error
        signals = (signal.SIGTERM, signal.SIGINT)
        handlers = {each: signal.signal(each, lambda sig, _: came.put(sig)) for each in signals}
        say(f"listening on http://{host}:{port}")
        number = came.get()
        say("finishing the running speeches; Ctrl-C again ends at once")
        for each, handler in handlers.items():
            signal.signal(each, handler)
        serve.delete(NAME)
    finally:
        ray.shutdown()
    say(f"ended by {signal.Signals(number).name}")
    return number


def _check_room(scale: Scale) -> None:
    """Raise an error for replicas that do not fit, for which Ray would wait forever."""
    if "RAY_ADDRESS" in os.environ:  # such a cluster may grow
        return
    there_is = ray.cluster_resources()
    for name, each in (("CPU", scale.num_cpus), ("GPU", scale.num_gpus)):
        if scale.min_replicas * each > there_is.get(name, 0):
            need = f"{scale.min_replicas} replicas need {scale.min_replicas * each:g} {name}s"
            what = f"{need}; Ray has {there_is.get(name, 0):g}."
            raise ResourceError(what, hint="Use fewer, with --replicas.")


def _why_not() -> str:
    """Return the last line of the last traceback of a replica."""
    deployments = serve.status().applications[NAME].deployments
    lines = [line for line in deployments[NAME].message.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
