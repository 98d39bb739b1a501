"""The command `serve`: the HTTP server."""

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_megakernel.cli import options
from qwen_megakernel.errors import MissingPackageError, UsageError
from qwen_megakernel.installing import install_command

if TYPE_CHECKING:
    from qwen_megakernel.server.settings import ServerSettings

API_KEY_VARIABLE = "QWEN_MEGAKERNEL_API_KEY"
MAX_SLOTS = 1024  # a cache of 230 MB each (0.6B, 1000 frames): 240 GB, and nobody means more


def add_command(commands: Any) -> None:
    """Add `serve` to the subparsers `commands`."""
    command = commands.add_parser(
        "serve", help="speak for others, over HTTP", description=serve.__doc__
    )
    command.add_argument("--host", default="127.0.0.1", help="where to listen (default: loopback)")
    command.add_argument("--port", type=int, default=8090, help="default 8090; 0: any free one")
    command.add_argument(
        "--wyoming-port",
        type=int,
        metavar="PORT",
        help="speak Wyoming there too, for Home Assistant (10200 is usual); it asks for no key",
    )
    command.add_argument(
        "--api-key", metavar="K", help=f"ask clients for it (default: ${API_KEY_VARIABLE})"
    )
    command.add_argument(
        "--slots",
        type=options.at_least(1),
        default=1,
        help="streams spoken at the same time (default: %(default)s)",
    )
    command.add_argument(
        "--max-frames", type=options.at_least(1), help="for each part of a text (default: 1000)"
    )
    command.add_argument(
        "--max-queue", type=int, default=8, help="requests that may wait (default: %(default)s)"
    )
    command.add_argument(
        "--max-chars",
        type=int,
        default=4096,
        help="of a request's text (default: %(default)s, at most 20000)",
    )
    command.add_argument(
        "--default-format",
        default="wav",
        help="when a request names none: wav, pcm, flac, mp3, opus, aac, ulaw or alaw "
        "(default: %(default)s)",
    )
    options.add_sound_options(command)
    command.add_argument(
        "--opus-bitrate",
        type=int,
        default=32,
        metavar="KBITS",
        help="thousands of bits a second of opus, 6 to 256 (default: %(default)s)",
    )
    command.add_argument(
        "--voice-fallback", metavar="NAME", help='who speaks for OpenAI\'s voices ("alloy", ...)'
    )
    command.add_argument(
        "--allow-upload", action="store_true", help="let clients add voices to --voices DIR"
    )
    command.add_argument(
        "--allow-origin", metavar="URL", action="append", default=[], help="web pages that may call"
    )
    command.add_argument(
        "--access-log",
        action="store_true",
        help="a line on stderr for each answer, when it is over",
    )
    command.add_argument(
        "--deadline", type=float, default=600.0, help="seconds for a request (default: %(default)g)"
    )
    command.add_argument(
        "--drain",
        type=float,
        default=120.0,
        help="seconds running streams get after SIGTERM (default: %(default)g)",
    )
    command.add_argument(
        "--ray", action="store_true", help="several engines behind one address, on Ray Serve"
    )
    command.add_argument("--replicas", type=int, help="engines, with --ray (default: 1)")
    command.add_argument(
        "--max-replicas", type=int, help="with --ray: more of them when requests wait, up to this"
    )
    command.add_argument(
        "--replica-gpus", type=float, help="with --ray: GPUs for each (default: 1 if there are any)"
    )
    options.add_model_options(command)
    command.set_defaults(run=serve)


def serve(args: argparse.Namespace) -> int:
    """Serve speech over HTTP, with OpenAI's endpoints; see docs/serving.md."""
    with _packages_of("server"):
        from qwen_megakernel.server import serving
    if args.wyoming_port is not None and find_spec("wyoming") is None:
        raise MissingPackageError("--wyoming-port needs wyoming.", hint=install_command("wyoming"))

    def say(line: str) -> None:
        if not args.quiet:
            print(line, file=sys.stderr, flush=True)

    if args.ray:
        with _packages_of("ray"):
            from qwen_megakernel.server import ray_serve
        number = ray_serve.run(**ray_options(args), host=args.host, port=args.port, say=say)
        return 128 + number
    for name in ("replicas", "max_replicas", "replica_gpus"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} needs --ray: this is one engine.")
    settings = _settings(args)
    if args.access_log:
        _log_accesses()
    end = serving.serve(
        _engine_maker(args, settings),
        settings,
        host=args.host,
        port=args.port,
        wyoming_port=args.wyoming_port,
        say=say,
    )
    code = 0 if end.signal is None else 128 + end.signal
    if end.is_loading:
        # Python's own end would take the thread down inside PyTorch, which aborts the process.
        sys.stderr.flush()
        os._exit(code)
    return code


def ray_options(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `server_ray.application` for the options of `serve`.

    Raises:
        UsageError: options that do not go together.
        MissingPackageError: Ray is not installed.
    """
    with _packages_of("ray"):
        from qwen_megakernel.server import ray_serve
    if args.wyoming_port is not None:
        raise UsageError(
            "--wyoming-port and --ray exclude each other: Serve's proxy speaks HTTP alone.",
            hint="Run a server without --ray beside it.",
        )
    if args.access_log:
        raise UsageError(
            "--access-log and --ray exclude each other: Serve has a log of its own.",
            hint="Look under logs/serve of Ray's session.",
        )
    for name in ("model", "voices"):  # replicas have working folders of their own
        path = getattr(args, name)
        if path is not None and Path(path).is_dir():
            setattr(args, name, str(Path(path).resolve()))
    settings = _settings(args)
    num_gpus = args.replica_gpus
    if num_gpus is None:
        num_gpus = float(args.device != "cpu" and args.backend != "emulation" and _has_gpu())
    num_replicas = 1 if args.replicas is None else args.replicas
    scale = ray_serve.Scale(
        min_replicas=num_replicas, max_replicas=args.max_replicas or num_replicas, num_gpus=num_gpus
    )
    return {
        "make_engine": _engine_maker(args, settings),
        "settings": settings,
        "scale": scale,
        "num_slots": args.slots,
    }


def _has_gpu() -> bool:
    """Of this machine; on a cluster of other ones say --replica-gpus."""
    import torch

    return torch.cuda.is_available()


@contextlib.contextmanager
def _packages_of(extra: str) -> Iterator[None]:
    """Name the extra of this package that brings what the block cannot import."""
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(
            f"serve needs {error.name}.", hint=install_command(extra)
        ) from error


def _log_accesses() -> None:
    from qwen_megakernel.server.middleware import access_logger

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    access_logger.addHandler(handler)
    access_logger.setLevel(logging.INFO)
    access_logger.propagate = False  # to the handler of everything else


def _api_key(args: argparse.Namespace) -> str | None:
    """The key; a variable that is empty is not set, an option that is empty is a mistake."""
    if args.api_key is not None:
        return args.api_key
    return os.environ.get(API_KEY_VARIABLE) or None


def _settings(args: argparse.Namespace) -> "ServerSettings":
    from qwen_megakernel.records import SoundOptions
    from qwen_megakernel.server.settings import ServerSettings
    from qwen_megakernel.text.cleaning import MAX_CHARS

    if args.max_chars > MAX_CHARS:
        raise UsageError(f"--max-chars is {args.max_chars}; the engine takes {MAX_CHARS} at most.")
    if args.slots > MAX_SLOTS:
        raise UsageError(
            f"--slots is {args.slots}; {MAX_SLOTS} at most.",
            "Each holds the memory of a whole stream from the start.",
            "Requests beyond the slots wait: --max-queue says how many may.",
        )
    return ServerSettings(
        api_key=_api_key(args),
        max_queue=args.max_queue,
        max_chars=args.max_chars,
        default_format=args.default_format,
        opus_kbits=args.opus_bitrate,
        sound=SoundOptions().override(**options.sound_options(args)),
        voice_fallback=args.voice_fallback,
        voices=None if args.voices is None else Path(args.voices),
        allow_upload=args.allow_upload,
        allow_origins=tuple(args.allow_origin),
        deadline_s=args.deadline,
        drain_timeout_s=args.drain,
    )


def _engine_maker(args: argparse.Namespace, settings: "ServerSettings") -> Callable[[], Any]:
    from qwen_megakernel.server.service import freeze_garbage_collector

    def make() -> Any:
        if not args.quiet:
            slots = f"{args.slots} slots" if args.slots > 1 else "1 slot"
            print(f"loading {args.model or 'the default model'}, {slots}", file=sys.stderr)
        limits = {} if args.max_frames is None else {"max_frames": args.max_frames}
        engine = options.engine_from_args(args, num_slots=args.slots, **limits)
        if settings.voice_fallback is not None:
            engine.find_voice(settings.voice_fallback)  # refuses an unknown one now
        freeze_garbage_collector()
        if not args.quiet:
            print("ready", file=sys.stderr)
        return engine

    return make
