"""How speech says that it is synthetic: metadata, a watermark, and the signature of whole files."""

import os
import re
import reprlib
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qwen_megakernel.content_credentials import SIGNED_FORMATS, SYNTHETIC, Signer
from qwen_megakernel.errors import OutputError, UsageError, check_choice, plain_number
from qwen_megakernel.output_files import writing

KINDS = ("metadata", "watermark", "c2pa")
COMMENT = f"AI-generated speech. Digital source type: {SYNTHETIC}"  # of audio files
KEY_BYTES = 32
MAX_OPERATOR = 2**16 - 1


@dataclass(frozen=True, slots=True)
class MarkKey:
    """The secret with which speech is marked, and the number of the operator who marks.

    Args:
        secret: `KEY_BYTES` random bytes.
        operator: 0 .. `MAX_OPERATOR`; one key can serve many operators.
    """

    secret: bytes = field(repr=False)
    operator: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) != KEY_BYTES:
            is_bytes = isinstance(self.secret, bytes)
            found = _shown(self.secret) if is_bytes else f"a {type(self.secret).__name__}"
            raise UsageError(f"The secret is {found}; it must be {KEY_BYTES} bytes.")
        object.__setattr__(self, "operator", plain_number(int, "The operator", self.operator))
        if not 0 <= self.operator <= MAX_OPERATOR:
            raise UsageError(f"The operator is {self.operator}; it must be in 0 .. {MAX_OPERATOR}.")

    @staticmethod
    def create(path: Path, operator: int = 0) -> "MarkKey":
        """Make a new key, and write it to a new file that only the user may read.

        Raises:
            UsageError: the operator is outside the limits.
            OutputError: the file exists, or cannot be written.
        """
        key = MarkKey(secrets.token_bytes(KEY_BYTES), operator)
        if os.path.lexists(path):
            raise OutputError(
                f"Cannot write a key to {path}: File exists.",
                hint="Name a new file: the watermark of this key is found with this key alone.",
            )
        with writing(f"a key to {path}", new=path):
            file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")
            try:
                with file:
                    file.write(f"{key.secret.hex()} {operator}\n")
            except BaseException:
                path.unlink()
                raise
        return key

    @staticmethod
    def read(path: Path) -> "MarkKey":
        """Read a file of `create`.

        Raises:
            UsageError: there is no such file, other users may read it, or it has no key.
        """
        hint = "Make a key with `qwen-megakernel mark new-key FILE`."
        text = _read_private(path, hint).decode("latin-1")
        if not (found := re.fullmatch(rf"([0-9a-f]{{{2 * KEY_BYTES}}}) ([0-9]{{1,9}})\s*", text)):
            raise UsageError(
                f"{path} is not the file of a key: it must have {2 * KEY_BYTES} hexadecimal digits "
                "and the number of the operator.",
                hint=hint,
            )
        return MarkKey(bytes.fromhex(found[1]), int(found[2]))


def _shown(value: object) -> str:
    """Return a value as an error quotes it, but not bytes, which may be a secret."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else reprlib.repr(value)


def _read(path: Path, what: str, hint: str = "") -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a ValueError: the path has a null byte
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"Cannot read the {what} {path}: {reason}.", hint=hint) from error


def _read_private(path: Path, hint: str = "") -> bytes:
    """Return a file that must be secret; raise UsageError if other users may read it."""
    data = _read(path, "key", hint)
    mode = path.stat().st_mode
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(
            f"The key {path} has mode {stat.S_IMODE(mode):o}; other users may read it.",
            hint=f"Allow only yourself: chmod 600 {path}",
        )
    return data


@dataclass(frozen=True, slots=True)
class Marking:
    """What marks the speech of an engine, on every way out of it.

    Args:
        metadata: whether files, headers, events and frames say that their speech is synthetic.
        key: the key of the watermark in the samples; None: no watermark.
        signer: signs whole files in one of `SIGNED_FORMATS` with C2PA's content credentials; None:
            no file is signed.
    """

    metadata: bool = True
    key: MarkKey | None = None
    signer: Signer | None = None

    def __post_init__(self) -> None:
        for name, kind in (("key", MarkKey), ("signer", Signer)):
            if not isinstance(value := getattr(self, name), kind | None):
                raise UsageError(f"{name} is {_shown(value)}; it must be a {kind.__name__}.")

    @staticmethod
    def of(value: "Marking | MarkKey | str | Path | None") -> "Marking":
        """Return the marking of a `mark=` of the engines: a key, or its file, adds a watermark.

        Raises:
            UsageError: `value` is something else, or the file of a key is refused.
        """
        if isinstance(value, str | Path):
            value = MarkKey.read(Path(value))
        if not isinstance(value, Marking | MarkKey | None):
            raise UsageError(
                f"mark is {_shown(value)}; it must be a Marking, a MarkKey or its file."
            )
        return value if isinstance(value, Marking) else Marking(key=value)

    @staticmethod
    def read(
        kinds: str | None = None,
        *,
        key: str | Path | None = None,
        certificate: str | Path | None = None,
        private_key: str | Path | None = None,
    ) -> "Marking":
        """Read the files of a marking, and check them.

        Args:
            kinds: some of `KINDS`, with commas between them, or "none"; None: metadata, and every
                kind whose files are given.
            key: the file of the watermark's key.
            certificate: a PEM file of the certificate for C2PA, and of those that lead to its root.
            private_key: the PEM file of the certificate's private key.
        Raises:
            UsageError: a kind is unknown or lacks its files, a file is given for a kind that is
                not chosen, or a file is wrong.
            MissingPackageError: c2pa is chosen, and its package is not installed.
        """
        given = {
            "watermark": {"--mark-key": key},
            "c2pa": {"--c2pa-cert": certificate, "--c2pa-key": private_key},
        }
        if kinds is None:
            chosen = {"metadata"} | {kind for kind in given if any(given[kind].values())}
        else:
            chosen = set() if kinds == "none" else {kind.strip() for kind in kinds.split(",")}
        if unknown := sorted(chosen.difference(KINDS)):
            if "none" in unknown:
                raise UsageError(f"--mark is {kinds}; none stands alone.")
            check_choice("mark", unknown[0], (*KINDS, "none"))
        for kind, files in given.items():
            for option, file in files.items():
                if kind in chosen and not file:
                    raise UsageError(f"The mark {kind} needs {option} FILE.")
                if file and kind not in chosen:
                    raise UsageError(
                        f"{option} is given, but --mark is {kinds}, which leaves {kind} out."
                    )
        signer = None
        if certificate and private_key:
            signer = Signer.of(
                _read(Path(certificate), "certificate"), _read_private(Path(private_key))
            )
        return Marking("metadata" in chosen, MarkKey.read(Path(key)) if key else None, signer)

    @property
    def comment(self) -> str:
        """What audio files say of their audio; empty: nothing."""
        return COMMENT if self.metadata else ""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that events and frames get."""
        return {"ai_generated": True} if self.metadata else {}

    @property
    def headers(self) -> dict[str, str]:
        """The headers that HTTP responses get, also those that open a WebSocket."""
        return {"X-AI-Generated": "true"} if self.metadata else {}

    def check_file(self, path: Path) -> None:
        """Raise UsageError if files are signed and the format of this one takes no signature."""
        self.check_format(path.suffix.lower().removeprefix("."))

    def check_format(self, name: str) -> None:
        """Raise UsageError if files are signed and a format, such as "ogg", takes no signature."""
        if self.signer and name not in SIGNED_FORMATS:
            raise UsageError(
                f"The mark c2pa is on, and {name} has no place for it.",
                hint=f"Formats that have: {', '.join(SIGNED_FORMATS)}. Or choose other marks with "
                "--mark.",
            )


UNMARKED = Marking(metadata=False)
