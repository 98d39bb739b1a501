"""Content credentials: files are signed as synthetic, and a change makes them invalid."""

import http.server
import io
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures import module_value

pytest.importorskip("c2pa")
import c2pa
import soundfile
from certificates import new_certificate
from commands import ROOT, blocks
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519
from cryptography.x509.oid import ExtendedKeyUsageOID

from qwen_megakernel import content_credentials
from qwen_megakernel.audio import WavWriter, write_wav
from qwen_megakernel.content_credentials import SIGNED_FORMATS, Signer, read_credentials
from qwen_megakernel.errors import MissingPackageError, OutputError, UsageError
from qwen_megakernel.marking import Marking, MarkKey

NOISE = np.random.default_rng(1).integers(-5000, 5000, 24000).astype(np.int16)
PRIVATE_KEYS = {
    "es256": ec.generate_private_key(ec.SECP256R1()),
    "es384": ec.generate_private_key(ec.SECP384R1()),
    "es512": ec.generate_private_key(ec.SECP521R1()),
    "ed25519": ed25519.Ed25519PrivateKey.generate(),
    "ps256": rsa.generate_private_key(65537, 2048),
}
CANNOT = "cannot sign for C2PA|signs for C2PA is not valid"

signer = module_value(lambda: Signer.of(*new_certificate()))


@pytest.mark.parametrize("name", SIGNED_FORMATS)
def test_a_signed_file_has_the_same_samples_and_says_who_made_it_and_how(tmp_path, signer, name):
    plain, path = tmp_path / f"plain.{name}", tmp_path / f"signed.{name}"
    write_wav(plain, NOISE, 24000, mark=Marking())
    write_wav(path, NOISE, 24000, mark=Marking(signer=signer))
    (before, _), (after, _) = soundfile.read(plain), soundfile.read(path)
    assert np.array_equal(before, after)
    with soundfile.SoundFile(path) as file:
        assert file.comment == Marking().comment
    found = read_credentials(path.read_bytes(), name)
    assert (found.state, found.signed_by) == ("valid", "Operator, Voice")
    assert found.is_synthetic and found.says_synthetic and not found.reason
    assert read_credentials(plain.read_bytes(), name) is None
    assert not list(tmp_path.glob(".*"))


def test_the_name_of_a_signer_cannot_write_to_a_terminal(tmp_path):
    path = tmp_path / "signed.wav"
    signer = Signer.of(*new_certificate(common_name="\x1b[2JVoice"))
    write_wav(path, NOISE, 24000, mark=Marking(signer=signer))
    assert read_credentials(path.read_bytes(), "wav").signed_by == r"Operator, \x1b[2JVoice"


@pytest.mark.parametrize("name", SIGNED_FORMATS)
def test_a_file_that_was_changed_is_invalid(tmp_path, signer, name):
    path = tmp_path / f"signed.{name}"
    write_wav(path, NOISE, 24000, mark=Marking(signer=signer))
    data = bytearray(path.read_bytes())
    data[5000 if name == "wav" else -20] ^= 1  # among the samples
    found = read_credentials(bytes(data), name)
    assert found.state == "invalid" and not found.says_synthetic
    assert "hash" in found.reason and "untrusted" not in found.reason


@pytest.mark.parametrize("algorithm", PRIVATE_KEYS)
def test_every_kind_of_key_that_c2pa_allows_signs(algorithm):
    signer = Signer.of(*new_certificate(PRIVATE_KEYS[algorithm]))
    assert signer.algorithm == algorithm
    assert "PRIVATE" not in repr(Marking(signer=signer))


def _locked_key() -> tuple[bytes, bytes]:
    lock = serialization.BestAvailableEncryption(b"secret")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock
    return new_certificate()[0], PRIVATE_KEYS["es256"].private_bytes(*form)


def _key_agreement() -> tuple[bytes, bytes]:
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    key = x25519.X25519PrivateKey.generate()
    return new_certificate()[0], key.private_bytes(*form, serialization.NoEncryption())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: (new_certificate()[0], new_certificate()[1]), CANNOT),
        (_locked_key, "is no PEM key without a password"),
        (_key_agreement, "does not sign with a X25519PrivateKey"),
        (lambda: (b"", new_certificate()[1]), CANNOT),
        (lambda: (new_certificate()[0], b"no key"), "is no PEM key"),
        (lambda: new_certificate(days=-1), CANNOT),
        (lambda: new_certificate(usage=ExtendedKeyUsageOID.SERVER_AUTH), CANNOT),
    ],
)
def test_a_certificate_that_cannot_sign_is_refused_at_once(make, message):
    with pytest.raises(UsageError, match=message):
        Signer.of(*make())


def test_a_signature_that_fails_leaves_no_unsigned_file(tmp_path, signer, monkeypatch):
    def fail(*_):
        raise OutputError("planted")

    writer = WavWriter(tmp_path / "a.wav", 24000, mark=Marking(signer=signer))
    writer.write(NOISE)
    monkeypatch.setattr(Signer, "_sign", fail)
    with pytest.raises(OutputError, match="planted"):
        writer.close()
    assert not list(tmp_path.iterdir())


def test_a_format_without_a_place_for_it_is_refused(tmp_path, signer):
    with pytest.raises(UsageError, match="ogg has no place for it"):
        WavWriter(tmp_path / "a.ogg", 24000, mark=Marking(signer=signer))
    assert not list(tmp_path.iterdir())


def test_a_manifest_elsewhere_is_not_fetched(signer):
    """A client's file must not make a server call an address of the client's choice."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

    file, signed = io.BytesIO(), io.BytesIO()
    soundfile.write(file, NOISE, 24000, format="WAV")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        builder = c2pa.Builder(content_credentials._MANIFEST)
        builder.set_no_embed()
        builder.set_remote_url(f"http://127.0.0.1:{server.server_port}/manifest.c2pa")
        how = signer.algorithm.encode(), signer.certificates, signer.private_key, None
        own = c2pa.Signer.from_info(c2pa.C2paSignerInfo(*how))
        builder.sign(own, "audio/wav", file, signed)
        assert b"manifest.c2pa" in signed.getvalue()
        found = read_credentials(signed.getvalue(), "wav")
        assert found is None or not found.says_synthetic
        assert not asked
        with pytest.raises(c2pa.C2paError):
            c2pa.Reader("audio/wav", signed)
        assert asked  # the library's default would fetch it
        server.shutdown()


def test_the_snippets_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    certificates, private_key = new_certificate()
    Path("chain.pem").write_bytes(certificates)
    Path("signer.pem").write_bytes(private_key)
    Path("signer.pem").chmod(0o600)
    MarkKey.create(Path("mark.key"), 7)
    (snippet,) = blocks((ROOT / "docs" / "marking.md").read_text("utf-8"), "python")
    names: dict[str, Any] = {}
    exec(compile(snippet, "marking.md", "exec"), names)
    with names["tts"] as tts:
        tts.synthesize("Hello.", seed=1).save("a.mp3")
    assert tts.mark.key.operator == 7 and tts.mark.metadata
    assert read_credentials(Path("a.mp3").read_bytes(), "mp3").says_synthetic


@pytest.mark.parametrize("name", SIGNED_FORMATS)
def test_broken_files_end_in_an_answer(tmp_path, signer, name):
    path = tmp_path / f"signed.{name}"
    write_wav(path, NOISE[:2400], 24000, mark=Marking(signer=signer))
    data, rng = path.read_bytes(), np.random.default_rng(7)
    states = set()
    for _ in range(150):
        broken = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 8)):
            broken[place] = rng.integers(256)
        found = read_credentials(bytes(broken[: rng.integers(1, len(data) + 1)]), name)
        states.add(found and found.state)
    assert "invalid" in states and not states - {None, "invalid", "valid"}


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "c2pa", None)
    with pytest.raises(MissingPackageError, match="c2pa-python"):
        read_credentials(b"", "wav")
