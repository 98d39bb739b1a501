"""Fetches model files from the Hugging Face hub (or the mirror that HF_ENDPOINT names).

huggingface_hub handles the cache, resuming, progress bars and authentication. This module adds
three things: it uses cached files without a request, it notices an unreachable hub within two
seconds instead of a minute, and its errors have a hint.
"""

import errno
import http.client
import os
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from urllib.parse import urlsplit

from qwen_megakernel.checkpoint.codec_config import parse_codec_config
from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config, speech_tokenizer_config
from qwen_megakernel.checkpoint.tensor_shapes import codec_tensors, model_tensors
from qwen_megakernel.errors import ModelFilesError, OutputError, UsageError
from qwen_megakernel.printable import get_logger

logger = get_logger(__name__)

REACHABLE_SECONDS = 2.0
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)

# The 12 Hz models -> the built-in random checkpoint that has the same shapes, and so the same size.
RELEASED = {
    "Qwen/Qwen3-TTS-12Hz-0.6B-Base": "random-0.6b-base",
    "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice": "random-0.6b",
    "Qwen/Qwen3-TTS-12Hz-1.7B-Base": "random-1.7b-base",
    "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice": "random-1.7b",
    "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign": "random-1.7b-design",
}


def is_repo_id(name: str) -> bool:
    """Return whether a name has the form of a hub id, "owner/name"."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return "/" in name and name.isascii()


def fetch(
    repo: str,
    names: tuple[str, ...],
    *,
    accept: Callable[[Path], object],
    local_files_only: bool,
    progress: bool,
    option: str = "--model",
) -> Path:
    """Return the folder with the files `names` of a hub repository; downloads missing ones.

    Args:
        repo: "owner/name".
        names: paths in the repository; no other files are downloaded.
        accept: called with the folder once names[0] is there; raises to stop before the others.
        local_files_only: use only cached files, without network access.
        progress: show a bar with sizes for each file, on stderr.
        option: the command line's option that takes a folder instead, for hints.
    Raises:
        ModelFilesError: the hub cannot be reached, does not have the repository or a file, or the
            download broke off.
        OutputError: the files cannot be written.
        UsageError: HF_ENDPOINT is not an http or https address.
    """
    # A quarter of a second, which built-in models and folders need not wait for.
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    # huggingface_hub has changed its HTTP library twice; its own error is derived from the base
    # class of that library's errors.
    transport_errors: tuple[type[Exception], ...] = (OSError, *HfHubHTTPError.__bases__)
    if cached := _cached(repo, names):
        return cached
    endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    if urlsplit(endpoint).scheme not in ("http", "https"):
        raise UsageError(f"HF_ENDPOINT is {endpoint!r}; it must begin with https:// or http://.")
    host = urlsplit(endpoint).netloc
    if local_files_only or constants.HF_HUB_OFFLINE:
        raise _offline(repo, names, option, f"{host} was not contacted (local files only)")
    reason = _why_unreachable(f"{endpoint}/api/models/{repo}")
    if reason:
        raise _offline(repo, names, option, f"Cannot reach {host} ({reason})")
    logger.info("Fetching %s from %s. %s", repo, host, _needed(repo, names))
    try:
        with _progress_bars(progress):
            first = hf_hub_download(repo, names[0], endpoint=endpoint)
            folder = Path(first.removesuffix(names[0]))
            accept(folder)
            for name in names[1:]:
                # The folder's name is its commit, so all files are from that commit.
                hf_hub_download(repo, name, revision=folder.name, endpoint=endpoint)
            return folder
    except transport_errors as error:
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            raise OutputError(
                f"Cannot write {repo} to {_home(constants.HF_HUB_CACHE)}: {error.strerror}.",
                _needed(repo, names),
                "Free some space there, or set HF_HUB_CACHE to another folder.",
            ) from error
        raise _failed(repo, names, option, host, error) from error


def _cached(repo: str, names: tuple[str, ...]) -> Path | None:
    """Return the snapshot that holds all of `names`, if there is one."""
    from huggingface_hub import constants, try_to_load_from_cache

    find = partial(try_to_load_from_cache, repo, cache_dir=constants.HF_HUB_CACHE)
    paths = [path for name in names if isinstance(path := find(name), str)]
    return Path(paths[0].removesuffix(names[0])) if len(paths) == len(names) else None


def _why_unreachable(url: str) -> str | None:
    """Return why a server does not answer within `REACHABLE_SECONDS`; None if it does.

    The request runs in a thread, because looking up a host name can block far longer than any
    timeout of a request.
    """
    reasons: list[str | None] = []

    def ask() -> None:
        request, reason = urllib.request.Request(url, method="HEAD"), None
        try:
            urllib.request.urlopen(request, timeout=2 * REACHABLE_SECONDS).close()
        except (urllib.error.HTTPError, http.client.HTTPException):
            pass  # an HTTP error is an answer, and so is a malformed response
        except OSError as error:
            # A certificate may be bad here, and good for the download, which may have another
            # bundle.
            if not isinstance(getattr(error, "reason", None), ssl.SSLError):
                reason = _reason(error)
        reasons.append(reason)

    thread = threading.Thread(target=ask, name="hub-reachable", daemon=True)
    thread.start()
    thread.join(REACHABLE_SECONDS)
    return reasons[0] if reasons else f"no answer within {REACHABLE_SECONDS:g} s"


def _reason(error: BaseException | None) -> str:
    """Return the cause of a failed request in a few words."""
    outermost = type(error).__name__
    while error:
        if isinstance(error, socket.gaierror):
            return "name not resolved"
        if isinstance(error, ConnectionRefusedError):
            return "connection refused"
        if isinstance(error, TimeoutError):
            return "timed out"
        error = error.__cause__ or error.__context__
    return outermost


def _offline(repo: str, names: tuple[str, ...], option: str, what: str) -> ModelFilesError:
    from huggingface_hub import constants

    instead = (
        ", or try the pipeline with demo-voice (--model demo-voice)" if option == "--model" else ""
    )
    return ModelFilesError(
        f"{what}, and {repo} is not in {_home(constants.HF_HUB_CACHE)}.",
        _needed(repo, names),
        f"Download the folder on a machine that reaches the hub, copy it to any PATH on this one, "
        f"and give PATH as the model ({option} PATH); or set HF_ENDPOINT to a mirror{instead}.",
    )


def _failed(
    repo: str, names: tuple[str, ...], option: str, host: str, error: Exception
) -> ModelFilesError:
    """Return the error for a download that the hub refused or that broke off."""
    from huggingface_hub.errors import EntryNotFoundError

    status = _status(error)
    models = f"The 12 Hz models are {', '.join(RELEASED)}." if option == "--model" else ""
    if status == 404 and isinstance(error, EntryNotFoundError):
        missing = next(name for name in names if not _cached(repo, (name,)))
        return ModelFilesError(f"{repo} on {host} has no {missing}.", models)
    if status in (401, 403, 404):
        return ModelFilesError(
            f"{host} has no model {repo}, or you have no access to it (HTTP {status}).",
            models,
            "If it is private, log in first: hf auth login",
        )
    reason = f"HTTP {status}" if status else _reason(error)
    return ModelFilesError(
        f"The download of {repo} from {host} broke off ({reason}).",
        hint="Run the same command again; the download continues where it stopped.",
    )


def _status(error: BaseException | None) -> int | None:
    """Return the HTTP status that caused an error; None if the hub did not answer."""
    while error:
        response = getattr(error, "response", None)
        if response is not None:
            return response.status_code
        error = error.__cause__
    return None


def _needed(repo: str, names: tuple[str, ...]) -> str:
    """Return the files of a model in one line, with sizes if it is a released one."""
    sizes = {}
    if repo in RELEASED:
        shapes = RELEASED[repo]
        model = model_tensors(parse_model_config(model_config(shapes)))
        codec = codec_tensors(parse_codec_config(speech_tokenizer_config(shapes)))
        sizes["model.safetensors"] = 2e-9 * sum(map(prod, model.values()))
        sizes["speech_tokenizer/"] = 4e-9 * sum(map(prod, codec.values()))
    parts = dict.fromkeys(f"{n.split('/')[0]}/" if "/" in n else n for n in names)
    lines = (f"{part} {sizes[part]:.1f} GB" if part in sizes else part for part in parts)
    return f"Needed: {', '.join(lines)}."


def _home(path: str) -> str:
    return path.replace(os.path.expanduser("~"), "~", 1)


@contextmanager
def without_advice() -> Iterator[None]:
    """Silence transformers' warnings in the block; they are about settings that no user made."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


@contextmanager
def _progress_bars(shown: bool) -> Iterator[None]:
    """Set huggingface_hub's global switch for the block."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
