"""Compare servers on one machine: this project's, and any other that streams PCM over HTTP.

A file says how each is started and asked: benchmarks/servers.json, or another. The servers take
turns. Each is started, asked twice, and ended; the figures are those of the second answer.

servers.json expects in build/peers what each engine makes beforehand: folders of `convert
random-0.6b --weights int8` (and int4), the C engine's program (`make blas`), an environment with
vox-tts, and its files (`vox build --dtype bf16 --quant q8 --no-hash`, and q4).
"""

import argparse
import http.client
import json
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import common
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.errors import QwenTTSError, UsageError
from qwen_megakernel.native import cpu_threads

SERVERS = Path(__file__).parents[1] / "servers.json"
BYTES_PER_SECOND = 2 * 24000
FRAME_S = 0.08
LEAST_SHARE = (
    0.9  # of the frames: what costs the same for every speech counts for more in a short one
)
POLL_S = 0.02
FIGURES = ("ready_s", "first_sound_ms", "rtf", "audio_s", "peak_mb")


@dataclass(frozen=True, slots=True)
class Server:
    """A server of the file.

    In the command and in the strings of the body, {port}, {model} (the checkpoint's folder),
    {threads}, {frames} and {text} stand for the measurement's own.
    """

    engine: str  # its name and version
    weights: str  # form of its weights
    command: str
    ready: str  # path that is answered with 200 once the model is loaded
    path: str  # path that takes the request
    body: dict[str, Any]  # asks for raw 16-bit samples at 24 kHz
    page: str = ""  # where the engine is found, without https://

    @staticmethod
    def read_all(file: Path) -> list["Server"]:
        """Read the file.

        Raises:
            UsageError: it is not a JSON list of servers.
        """
        try:
            return [Server(**each) for each in json.loads(file.read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{file} is no list of servers: {error}.") from error


@common.takes(
    common.option("--servers", "file of servers to compare", Path, SERVERS),
    common.option("--model", "checkpoint that all of them speak", str, "random-0.6b"),
    common.count("--frames", 40, "length of every speech in frames of 80 ms"),
    common.count("--runs", 3, "number of times that each server is started"),
    common.count("--patience", 300, "longest wait for a server to load, in seconds"),
    common.add_plain_options,
)
def servers(args: argparse.Namespace) -> int:
    """Measure all servers by turns, and report."""
    files, compared = loading.resolve(args.model), Server.read_all(args.servers)
    settings = {"text": common.TEXT, "frames": args.frames, "runs": args.runs}
    settings["threads"] = cpu_threads.available_cores()
    words = settings | {"model": files.folder}
    runs = [[measured(each, words, args.patience) for each in compared] for _ in range(args.runs)]
    rows: list[dict[str, Any]] = []
    for server, *of_server in zip(compared, *runs, strict=True):
        row = {name: common.spread([run[name] for run in of_server]) for name in FIGURES}
        rows.append({name: getattr(server, name) for name in ("engine", "page", "weights")} | row)
        shown = ", ".join(f"{name} {row[name]['p50']:.4g}" for name in FIGURES)
        print(f"{server.engine}, {server.weights}: {shown}", flush=True)
    header = common.model_header(files, backend="cpu", settings=settings)
    common.write_json(args.json, header | common.native_set("cpu") | {"rows": rows})
    return 0


def measured(server: Server, words: dict[str, Any], patience: float) -> dict[str, float]:
    """Start a server, ask it twice, end it, and return the figures."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = words | {"port": port}
    started = time.perf_counter()
    with running(filled(server.command, words)) as process:
        while not is_ready(server, port):
            if process.poll() is not None or time.perf_counter() - started > patience:
                raise QwenTTSError(f"{server.engine} did not answer: {process.args}")
            time.sleep(POLL_S)
        figures = {"ready_s": time.perf_counter() - started}
        body = {name: filled(value, words) for name, value in server.body.items()}
        for _ in range(2):
            try:
                figures |= ask(port, server, body)
            except (OSError, http.client.HTTPException) as error:
                raise QwenTTSError(f"{server.engine} did not finish its answer: {error}") from error
        if figures["audio_s"] < LEAST_SHARE * words["frames"] * FRAME_S:
            raise QwenTTSError(
                f"{server.engine} ended its speech after {figures['audio_s']:.2f} s.",
                hint="Ask it with another seed.",
            )
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return figures | {"peak_mb": int(peak.split()[1]) * 1.024e-3}


def filled(value: Any, words: dict[str, Any]) -> Any:
    """Replace the placeholders of a string; one that is a placeholder alone takes its type."""
    if not isinstance(value, str):
        return value
    for name, word in words.items():
        if value == f"{{{name}}}":
            return word
        value = value.replace(f"{{{name}}}", str(word))
    return value


@contextmanager
def running(command: str) -> Iterator[subprocess.Popen]:
    """Run a server in the background, and end it."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(shlex.split(command), env=common.with_bytecode(), **quiet)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(server: Server, port: int) -> bool:
    """Tell whether a server answers that its model is loaded."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", server.ready)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False


def ask(port: int, server: Server, body: dict[str, Any]) -> dict[str, float]:
    """Ask for a speech, and return the figures of its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    asked = time.perf_counter()
    connection.request("POST", server.path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    size, first_s = 0, None
    while samples := answer.read1(1 << 16):
        first_s = first_s or time.perf_counter() - asked
        size += len(samples)
    whole_s, audio_s = time.perf_counter() - asked, size / BYTES_PER_SECOND
    if answer.status != http.HTTPStatus.OK or first_s is None:
        raise QwenTTSError(f"{server.engine} answered {answer.status} with {size} bytes.")
    return {"first_sound_ms": 1000 * first_s, "rtf": whole_s / audio_s, "audio_s": audio_s}
