"""The command `serve`: the HTTP server."""

import argparse
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_megakernel.choices import API_KEY_VARIABLE, DIALECTS
from qwen_megakernel.cli import options, parsing
from qwen_megakernel.content_credentials import SIGNED_FORMATS
from qwen_megakernel.errors import UsageError
from qwen_megakernel.installing import require
from qwen_megakernel.speech_options import SoundOptions

if TYPE_CHECKING:
    from qwen_megakernel.server.settings import ServerSettings

MAX_SLOTS = 1024  # each has a cache of 230 MB (0.6B, 1000 frames): 240 GB, surely a mistake


def add_commands(commands: Any) -> None:
    command = parsing.new_command(commands, "serve", serve, "speak over HTTP and WebSocket")
    command.hints = {
        "--ssl": "a reverse proxy does TLS; docs/operations.md",
        "--workers": "--slots sets how many requests are spoken at a time",
        "--reload": "start the command again instead",
    }
    add = parsing.adder(command, "address and access")
    add("--host", "address to listen on", str, "127.0.0.1")
    add("--port", "TCP port to listen on; 0: any free one", int, 8090)
    add(
        "--wyoming-port PORT",
        "port for Wyoming clients such as Home Assistant, usually 10200; they send no API key",
        int,
    )
    add("--wyoming-host HOST", "address to listen on for Wyoming clients (default: that of --host)")
    add(
        "--api-key K",
        f"key that clients must send (default: ${API_KEY_VARIABLE}, which other users of the "
        "machine cannot read)",
    )
    add(
        "--allow-origin URL",
        "origin of web pages that may call this server (may be repeated)",
        list,
    )
    add(
        "--allow-host NAME",
        "host name by which clients may call this server, besides localhost and the hosts of "
        "--allow-origin (may be repeated; '*': any name; default: any name, but none on "
        "loopback)",
        list,
    )
    add = parsing.adder(command, "requests")
    add("--slots", "number of requests to speak at a time", parsing.POSITIVE, 1)
    add(
        "--max-frames",
        "most frames of 80 ms for each part (some sentences) of a text (default: 1000)",
        parsing.POSITIVE,
    )
    add("--max-queue", "most requests that may wait for a slot", int, 8)
    add("--max-chars", "most characters of a request's text, up to 20000", int, 4096)
    add(
        "--default-format",
        "format for requests that name none: wav, pcm, flac, mp3, opus, aac, ulaw or alaw",
        default="wav",
    )
    options.add_options(command, SoundOptions.options())
    add("--opus-bitrate KBITS", "bit rate of opus in kbit/s, 6 to 256", int, 32)
    add(
        "--dialects NAMES",
        "hosted voices whose clients are answered on their own paths: a list of elevenlabs, "
        "cartesia and deepgram; none: no other than OpenAI's",
        default=",".join(DIALECTS),
    )
    add("--access-log", "write a line to stderr for every answer", bool)
    add("--deadline", "most seconds that a request may take", float, 600.0)
    add("--drain", "seconds that running speeches get to finish after SIGTERM", float, 120.0)
    add = parsing.adder(command, options.VOICE)
    add(
        "--voice-fallback NAME",
        'voice to use for OpenAI\'s names, such as "alloy", and for unknown ids of --dialects',
    )
    add(
        "--voice-alias ID=NAME",
        "voice to use for another name, such as a hosted voice's id (may be repeated)",
        list,
    )
    add(
        "--allow-upload",
        "let clients add voices to --voices DIR, and delete those that clients added",
        bool,
    )
    add("--max-uploads N", "most voices that clients may have added", parsing.POSITIVE, 1000)
    add = parsing.adder(command, "several engines")
    add("--ray", "run several engines behind one address on Ray Serve", bool)
    add("--replicas", "with --ray: number of engines (default: 1)", int)
    add(
        "--max-replicas",
        "with --ray: most engines to start while requests wait (default: as --replicas)",
        int,
    )
    add(
        "--replica-gpus", "with --ray: GPUs of each engine (default: 1 where there are GPUs)", float
    )
    options.add_model_options(command)
    command.epilog = "Example: qwen-megakernel serve --model demo-voice --voice-fallback demo"


def serve(args: argparse.Namespace) -> int:
    """Serve speech over HTTP, with OpenAI's endpoints; see docs/serving.md."""
    with require("server", by="serve"):
        from qwen_megakernel.server import serving
    if args.wyoming_port is not None:
        with require("wyoming", by="--wyoming-port", package="the package wyoming"):
            import wyoming  # noqa: F401
    if args.wyoming_host is not None and args.wyoming_port is None:
        raise UsageError("--wyoming-host needs --wyoming-port.")

    say = partial(options.say, args)
    if args.ray:
        with require("ray", by="serve"):
            from qwen_megakernel.server import ray_serve
        return 128 + ray_serve.run(**ray_options(args), host=args.host, port=args.port, say=say)
    for name in ("replicas", "max_replicas", "replica_gpus"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} needs --ray.")
    settings = _settings(args)
    if args.access_log:
        _log_accesses()
    number, is_loading = serving.serve(
        _engine_maker(args, settings),
        settings,
        host=args.host,
        port=args.port,
        wyoming_port=args.wyoming_port,
        wyoming_host=args.wyoming_host,
        say=say,
    )
    code = 0 if number is None else 128 + number
    if is_loading:
        # Python's exit would stop the thread inside PyTorch, which then aborts the process.
        sys.stderr.flush()
        os._exit(code)
    return code


def ray_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `ray_serve.application` for the options of `serve`."""
    with require("ray", by="serve"):
        from qwen_megakernel.server import ray_serve
    if args.wyoming_port is not None:
        raise UsageError(
            "--wyoming-port and --ray cannot be combined: Ray Serve's proxy has only HTTP.",
            hint="Run a server without --ray for Wyoming.",
        )
    if args.access_log:
        raise UsageError(
            "--access-log and --ray cannot be combined: Ray Serve has a log of its own.",
            hint="Look under logs/serve of Ray's session.",
        )
    # Replicas have working folders of their own.
    args.model, args.voices = (place and _absolute(place) for place in (args.model, args.voices))
    args.adapter = [_absolute(place) for place in args.adapter]
    settings = _settings(args)
    num_gpus = args.replica_gpus
    if num_gpus is None:
        import torch

        is_on_cpu = args.device == "cpu" or args.backend == "emulation"
        num_gpus = float(not is_on_cpu and torch.cuda.is_available())
    least = 1 if args.replicas is None else args.replicas
    most = least if args.max_replicas is None else args.max_replicas
    scale = ray_serve.Scale(min_replicas=least, max_replicas=most, num_gpus=num_gpus)
    return {
        "make_engine": _engine_maker(args, settings),
        "settings": settings,
        "scale": scale,
        "num_slots": args.slots,
    }


def _absolute(place: str) -> str:
    """Return the absolute path of a folder, also of NAME=FOLDER; names of models stay."""
    name, is_named, folder = place.partition("=")
    if place and Path(place).is_dir():
        return str(Path(place).resolve())
    return f"{name}={_absolute(folder)}" if is_named else place


def _log_accesses() -> None:
    from qwen_megakernel.server.middleware import access_logger

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    access_logger.addHandler(handler)
    access_logger.setLevel(logging.INFO)
    access_logger.propagate = False  # the root handler would print each line again


def _settings(args: argparse.Namespace) -> "ServerSettings":
    from qwen_megakernel.server.settings import ServerSettings
    from qwen_megakernel.text.cleaning import MAX_CHARS
    from qwen_megakernel.voice import check_voices

    if args.max_chars > MAX_CHARS:
        raise UsageError(f"--max-chars is {args.max_chars}; the engine takes {MAX_CHARS} at most.")
    if args.slots > MAX_SLOTS:
        raise UsageError(
            f"--slots is {args.slots}; it must be {MAX_SLOTS} or less.",
            "Each slot reserves the memory of a whole stream at the start.",
            "Requests beyond the slots wait; --max-queue limits how many.",
        )
    check_voices(args.voices)
    if args.default_format == "aac":
        with require("aac", by="--default-format aac", package="av"):
            import av  # noqa: F401
    same = ("max_queue", "max_chars", "default_format", "voice_fallback", "allow_upload")
    sound = {name: getattr(args, name) for name in SoundOptions.options()}
    # An empty variable counts as unset, an empty option is refused.
    key = (os.environ.get(API_KEY_VARIABLE) or None) if args.api_key is None else args.api_key
    return ServerSettings(
        **{name: getattr(args, name) for name in (*same, "max_uploads")},
        api_key=key,
        opus_kbits=args.opus_bitrate,
        sound=SoundOptions().override(**sound),
        dialects=() if args.dialects == "none" else tuple(map(str.strip, args.dialects.split(","))),
        voice_aliases=_voice_aliases(args),
        voices=None if args.voices is None else Path(args.voices),
        allow_origins=tuple(args.allow_origin),
        allow_hosts=tuple(args.allow_host),
        deadline_s=args.deadline,
        drain_timeout_s=args.drain,
    )


def _voice_aliases(args: argparse.Namespace) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for alias in args.voice_alias:
        voice_id, _, name = alias.partition("=")
        if not voice_id or not name:
            raise UsageError(f"--voice-alias is {alias!r}; it must be ID=NAME.")
        if aliases.setdefault(voice_id, name) != name:
            raise UsageError(f"--voice-alias gives {voice_id!r} two voices.")
    return aliases


def _engine_maker(args: argparse.Namespace, settings: "ServerSettings") -> Callable[[], Any]:
    from qwen_megakernel.server.service import shorten_pauses
    from qwen_megakernel.text.reading.lexicon import Lexicon

    # Read here, for Ray's replicas may not see the files.
    mark, args.lexicon = options.marking_from_args(args), Lexicon.of(args.lexicon)
    mark.check_format(settings.default_format)
    if mark.signer:
        options.say(args, f'{", ".join(SIGNED_FORMATS)} with "stream": false are signed')

    def make() -> Any:
        options.say(args, 'loading; requests get status 503 until "ready"')
        limits = {} if args.max_frames is None else {"max_frames": args.max_frames}
        fallback = settings.voice_fallback
        engine = options.engine_from_args(
            *(args, mark),
            num_slots=args.slots,
            needed_voices=[*filter(None, [fallback]), *settings.voice_aliases.values()],
            **limits,
        )
        if fallback is None and engine.default_voice:
            options.say(args, 'voices such as "alloy" need --voice-fallback NAME')
        shorten_pauses()
        options.say(args, "ready")
        return engine

    return make
