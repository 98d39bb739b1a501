"""The vendors' own packages, unmodified, against a server on loopback.

They need other versions of this package's requirements, so `.ci/run` installs them into a separate
environment.
"""

import asyncio
import contextlib
import json
import os
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import ROOT, captured
from live_server import LiveServer, serving
from tolerances import ROUNDED_S

from qwen_megakernel import TTSEngine

PYTHON = ROOT / ".venv-dialects" / "bin" / "python"
CLIENTS = ROOT / "tests" / "support" / "sdk_clients.py"
TEXT = "Your table is ready. Please follow me."

pytestmark = [
    pytest.mark.ci,  # speaks a dozen texts with three vendors' packages
    pytest.mark.skipif(not PYTHON.exists(), reason=".ci/run makes .venv-dialects; there is none"),
]


@contextlib.contextmanager
def behind_tls(live: LiveServer, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield an address of the server behind TLS, as a proxy adds it, and the certificate."""
    pytest.importorskip("cryptography")
    from certificates import new_certificate
    from cryptography.x509.oid import ExtendedKeyUsageOID

    made = new_certificate(usage=ExtendedKeyUsageOID.SERVER_AUTH, host="localhost")
    files = folder / "certificate.pem", folder / "key.pem"
    for file, data in zip(files, made, strict=True):
        file.write_bytes(data)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(*live.address)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(forward, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}", files[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def test_the_vendors_packages_speak_with_this_server(tmp_path: Path):
    engine = TTSEngine.from_pretrained("demo-voice", num_slots=2)
    voice = engine.voices[0] if engine.voices else "anna"
    settings = {"api_key": "s3cret", "voice_aliases": {"anna": voice}}
    with engine, serving(engine, **settings) as live, behind_tls(live, tmp_path) as (secure, trust):
        done = captured(
            [PYTHON, CLIENTS, live.url, secure],
            timeout=240,
            env=os.environ | {"SSL_CERT_FILE": str(trust)},
        )
        live.settle()
        refused = live.client.get("/metrics", headers={"Authorization": "Bearer s3cret"}).text
    assert done.returncode == 0, done.stderr
    # No package calls a path that this server lacks; three errors are asked for.
    found = [line for line in refused.splitlines() if "refused_total{" in line]
    assert [line.split("{")[1] for line in found] == ['status="400"} 3.0']
    lines = {line.pop("name"): line for line in map(json.loads, done.stdout.splitlines())}
    errors = {name: lines.pop(name) for name in list(lines) if name.endswith(" error")}
    lists = lines.pop("elevenlabs lists")
    assert len(lines) == 12
    for name, line in lines.items():
        assert line["seconds"] > 1, name
        assert line.get("text", TEXT) == TEXT, name
        assert line["seconds"] / 2 < line.get("end", line["seconds"]) <= line["seconds"] + ROUNDED_S
    assert lines["cartesia websocket"]["kinds"] == ["chunk", "done", "timestamps"]
    assert lines["deepgram websocket"]["kinds"] == ["Metadata", "Flushed"]
    assert "anna" in lists["voices"] and lists["voices"] == lists["found"] and lists["models"]
    assert "--voice-alias" in errors["elevenlabs error"]["body"]["detail"]["message"]
    assert "It makes: raw" in errors["cartesia error"]["body"]["message"]
    assert "It makes: linear16" in errors["deepgram error"]["body"]["err_msg"]
    assert [line["status"] for line in errors.values()] == [400, 400, 400]
