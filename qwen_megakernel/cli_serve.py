"""The command `serve`: the HTTP server."""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qwen_megakernel import options
from qwen_megakernel.errors import MissingPackageError, UsageError

API_KEY_VARIABLE = "QWEN_MEGAKERNEL_API_KEY"


def add_command(commands: Any) -> None:
    """Add `serve` to the subparsers `commands`."""
    command = commands.add_parser(
        "serve", help="speak for others, over HTTP", description=serve.__doc__
    )
    command.add_argument("--host", default="127.0.0.1", help="where to listen (default: loopback)")
    command.add_argument("--port", type=int, default=8090, help="0: any free one")
    command.add_argument(
        "--wyoming-port",
        type=int,
        metavar="PORT",
        help="speak Wyoming there too, for Home Assistant (10200 is usual); it asks for no key",
    )
    command.add_argument(
        "--api-key", metavar="K", help=f"ask clients for it (default: ${API_KEY_VARIABLE})"
    )
    command.add_argument("--slots", type=int, default=1, help="streams spoken at the same time")
    command.add_argument("--max-frames", type=int, help="for each part of a text (default 1000)")
    command.add_argument("--max-queue", type=int, default=8, help="requests that may wait")
    command.add_argument("--max-chars", type=int, default=4096, help="of a request's text")
    command.add_argument("--default-format", default="wav", help="when a request names none")
    command.add_argument(
        "--voice-fallback", metavar="NAME", help='who speaks for OpenAI\'s voices ("alloy", ...)'
    )
    command.add_argument(
        "--allow-upload", action="store_true", help="let clients add voices to --voices DIR"
    )
    command.add_argument(
        "--allow-origin", metavar="URL", action="append", default=[], help="web pages that may call"
    )
    command.add_argument("--deadline", type=float, default=600.0, help="seconds for a request")
    command.add_argument(
        "--drain", type=float, default=120.0, help="seconds running streams get after SIGTERM"
    )
    options.add_model_options(command)
    command.set_defaults(run=serve)


def serve(args: argparse.Namespace) -> int:
    """Serve speech over HTTP, with OpenAI's endpoints; see docs/serving.md."""
    try:
        from qwen_megakernel import server
        from qwen_megakernel.server_settings import ServerSettings
    except ImportError as error:
        raise MissingPackageError(
            f"serve needs {error.name}.", cure='pip install "qwen_megakernel[server]"'
        ) from error
    if args.wyoming_port is not None and find_spec("wyoming") is None:
        raise MissingPackageError(
            "--wyoming-port needs wyoming.", cure='pip install "qwen_megakernel[wyoming]"'
        )
    from qwen_megakernel.text import MAX_CHARS

    if args.max_chars > MAX_CHARS:
        raise UsageError(f"--max-chars is {args.max_chars}; the engine takes {MAX_CHARS} at most.")
    settings = ServerSettings(
        api_key=args.api_key or os.environ.get(API_KEY_VARIABLE) or None,
        max_queue=args.max_queue,
        max_chars=args.max_chars,
        default_format=args.default_format,
        voice_fallback=args.voice_fallback,
        voices=None if args.voices is None else Path(args.voices),
        allow_upload=args.allow_upload,
        allow_origins=tuple(args.allow_origin),
        deadline_s=args.deadline,
        drain_timeout_s=args.drain,
    )

    def make() -> Any:
        limits = {} if args.max_frames is None else {"max_frames": args.max_frames}
        engine = options.load_engine(args, num_slots=args.slots, **limits)
        if settings.voice_fallback is not None:
            engine.find_voice(settings.voice_fallback)  # refuses an unknown one now
        if not args.quiet:
            print("ready", file=sys.stderr)
        return engine

    def tell(address: str) -> None:
        if not args.quiet:
            print(f"listening on {address}", file=sys.stderr)

    server.serve(
        make,
        settings,
        host=args.host,
        port=args.port,
        wyoming_port=args.wyoming_port,
        on_listening=tell,
    )
    return 0
