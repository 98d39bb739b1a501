"""The build cache: sources become a shared library once, and later runs find it.

A hash of everything that a library is made of is its key. A library is written under a lock and
renamed into place, so that no run loads a broken or half-written one.

A library in the cache becomes code of this process, so the cache is refused if a user other than
this one and root could have written any of the files that are used.
"""

import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwen_megakernel import PACKAGE_FOLDER
from qwen_megakernel.errors import BuildError
from qwen_megakernel.output_files import cache_folder, held
from qwen_megakernel.printable import get_logger

logger = get_logger(__name__)

VERSION_SECONDS = 20.0  # zig takes a second if its cache is cold
SECONDS_BETWEEN_WORDS = 5  # between log lines while a compiler runs
CHECK_COMPILER = "Check whether the compiler works, or set CXX to another one."
SUFFIXES = (".cu", ".cuh", ".h", ".cpp", ".inc")  # the suffixes of a library's sources


# A compiler writes in the encoding of its locale, which may not be this process's.
_TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "replace"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """The sources of a library, and the compiler and flags that build it."""

    name: str  # for messages, such as "the kernel for sm_90a"
    library: str  # file name of the library, such as "libqwen_tts.so"
    compiler: str  # a command of one word or more
    flags: tuple[str, ...]  # flags of every unit; all but the -D's are also the linker's
    units: tuple[Path, ...]  # the files that the compiler compiles, the slowest first
    sources: tuple[Path, ...]  # all files, headers too, that change the library when they change
    source_root: Path  # folder of the sources
    link_flags: tuple[str, ...] = ()
    cu_language: str = ""  # flag with which the compiler reads a .cu file
    limit_seconds: float = 3600  # time after which the compiler is ended
    # True: the key leaves the compiler out, so the library is found even after that compiler was
    # removed or replaced.
    is_portable: bool = False

    @property
    def key(self) -> str:
        """The hash under which the cache keeps the library."""
        if self.is_portable:
            maker = [platform.system(), platform.machine()]
        else:
            # The version and not the folder: a library serves every machine with this compiler.
            program, *its_words = shlex.split(self.compiler)
            maker = [version_of(self.compiler) or program, *its_words]
        units = [path.name for path in self.units if path.parent == self.source_root]
        return key_of([*maker, *units, *self.flags], self.sources, self.source_root)


def key_of(words: Sequence[str], sources: Sequence[Path], root: Path) -> str:
    """Return a hash of words (the compiler and its command) and of the sources below `root`."""
    digest = hashlib.sha256()
    digest.update("\0".join(words).encode())
    for path in sources:
        digest.update(f"\0{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def version_of(compiler: str) -> str:
    """Return the output of a compiler's --version; raise BuildError if it hangs or cannot run."""
    command = [*shlex.split(compiler), "--version"]
    try:
        # A process group of its own, since a process that a wrapper started would hold the pipe
        # open.
        running = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0, **_TEXT
        )
    except OSError as error:
        raise BuildError(f"{compiler} cannot be run: {error}.", hint=CHECK_COMPILER) from error
    with running as process:
        try:
            return process.communicate(timeout=VERSION_SECONDS)[0]
        except BaseException as error:  # KeyboardInterrupt too
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise BuildError(
                f"{compiler} --version did not end within {VERSION_SECONDS:g} s.",
                "The build cache needs the compiler's version to find a library.",
                CHECK_COMPILER,
            ) from error


def source_folder() -> Path:
    """Return csrc/, which is inside the installed package, or beside it in a checkout."""
    for folder in (PACKAGE_FOLDER / "csrc", PACKAGE_FOLDER.parent / "csrc"):
        if (folder / "tts_kernel.cu").exists():
            return folder
    raise BuildError(
        f"There is no csrc/ in {PACKAGE_FOLDER} or beside it.",
        "The kernel is compiled at first use from sources that ship with the package.",
        "Reinstall qwen_megakernel.",
    )


def sources_below(folder: Path, *, without: Sequence[str] = ()) -> tuple[Path, ...]:
    """Return every source in a folder and its subfolders, sorted, but for those of `without`."""
    return tuple(
        sorted(
            path
            for path in folder.rglob("*")
            if path.suffix in SUFFIXES
            and path.relative_to(folder).parts[0] not in without
            and path.is_file()
        )
    )


def build_cache() -> Path:
    """Return $QWEN_MEGAKERNEL_BUILD_CACHE, or by default `kernels` in the package's cache."""
    if folder := os.environ.get("QWEN_MEGAKERNEL_BUILD_CACHE"):
        return Path(folder)
    return cache_folder() / "kernels"


def compiled(recipe: Recipe) -> Path:
    """Return the library of a recipe, which is compiled at first use and found afterwards.

    Raises:
        BuildError: ninja is missing, the compiler failed (the message names its log) or did not
            end, the cache cannot be written, or another user could have written it.
        KeyboardInterrupt: Ctrl-C ended the compiler.
    """
    try:
        key = recipe.key
        folder = build_cache() / key
        library = folder / recipe.library
        if _is_intact(library):
            return library
        ninja = find_ninja()
        build_cache().parent.mkdir(parents=True, exist_ok=True)
        build_cache().mkdir(mode=0o700, exist_ok=True)
        _check_owner(build_cache(), may_be_link=True)
        _check_owner(lock := build_cache() / f"{key}.lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        message = "Another process compiles %s; waiting for it ..."
        with held(lock, flags, lambda: logger.info(message, recipe.name)):
            if _is_intact(library):  # another process built it during the wait
                return library
            if folder.exists():
                logger.warning("%s is damaged; building it again.", library)
                shutil.rmtree(folder)
            logger.info("Compiling %s, once ...", recipe.name)
            started = time.monotonic()
            with tempfile.TemporaryDirectory(dir=build_cache(), prefix=f"{key}.") as work:
                _compile(Path(work), recipe, ninja)
                for path in Path(work).iterdir():
                    path.chmod(0o644)  # whatever the umask is
                Path(work).chmod(0o755)  # root can compile for all users
                os.replace(work, folder)
                Path(work).mkdir()  # for the context manager to remove
            logger.info("Compiled %s in %.1f s.", recipe.name, time.monotonic() - started)
        return library
    except OSError as error:
        raise BuildError(
            f"The library of {recipe.name} could not be written: {error}.",
            f"Compiled code is kept in {build_cache()}.",
            "Make room there, or set QWEN_MEGAKERNEL_BUILD_CACHE to a folder that can be written.",
        ) from error


def found(recipe: Recipe) -> Path | None:
    """Return the library of a recipe if an earlier run has compiled it."""
    library = build_cache() / recipe.key / recipe.library
    return library if _is_intact(library) else None


def find_cxx() -> str:
    """Return the command of the C++ compiler, quoted for a shell: $CXX, or else g++ or clang++."""
    if cxx := os.environ.get("CXX", "").strip():
        words = [cxx] if shutil.which(cxx) else cxx.split()  # a path may have spaces
        if program := shutil.which(words[0]):
            return shlex.join([program, *words[1:]])
        raise BuildError(
            f"CXX is {cxx!r}; there is no program {words[0]}.",
            hint="Unset CXX, or set it to the command of a C++ compiler.",
        )
    for name in ("g++", "clang++"):
        if path := shutil.which(name):
            return shlex.quote(path)
    raise BuildError(
        "There is no C++ compiler: neither g++ nor clang++ is in PATH, and CXX is not set.",
        "The emulation backend compiles the kernel's sources for this CPU.",
        "Run: apt install g++, or use --backend torch.",
    )


def find_zig() -> str | None:
    """Return the command of the C++ compiler in the package ziglang; None: it is not installed."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        return None
    zig = Path(spec.submodule_search_locations[0]) / "zig"
    system = "macos" if platform.system() == "Darwin" else "linux-gnu"
    machine = {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    # Without a target, zig uses all of this CPU's instructions, not one instruction set.
    return f"{shlex.quote(str(zig))} c++ -target {machine}-{system}"


def find_ninja() -> str:
    """Return the path of ninja, from its Python package, whose version is known, or from PATH."""
    if importlib.util.find_spec("ninja"):
        program = Path(importlib.import_module("ninja").BIN_DIR) / "ninja"
        if program.exists():
            return str(program)
    if path := shutil.which("ninja"):
        return path
    raise BuildError(
        "ninja is not installed.", "It drives the compilation.", "Run: pip install ninja"
    )


def _is_intact(library: Path) -> bool:
    """Return whether the cache has a library as it was compiled, by its checksum."""
    checksum = library.with_name("sha256")
    _check_owner(library.parents[1], may_be_link=True)
    for path in (library.parent, library, checksum):
        _check_owner(path)
    try:
        expected = checksum.read_bytes()
        return hashlib.sha256(library.read_bytes()).hexdigest().encode() == expected
    except OSError:
        return False


def _check_owner(path: Path, *, may_be_link: bool = False) -> None:
    """Raise BuildError if a user other than this one and root could have written a file or folder.

    Args:
        path: a part of the cache; nothing is raised if it does not exist.
        may_be_link: whether to follow a link of this user's or of root's, as to another disk.
    """
    try:
        status = path.lstat()
        owners, is_link = {status.st_uid}, stat.S_ISLNK(status.st_mode)
        if is_link and may_be_link:
            status, is_link = path.stat(), False
            owners.add(status.st_uid)
    except OSError:  # reading or writing it meets the same error
        return
    if path == build_cache() and not (is_link or stat.S_ISDIR(status.st_mode)):
        raise BuildError(
            f"{path} is no folder, and compiled code is kept in one.",
            hint="Set QWEN_MEGAKERNEL_BUILD_CACHE to a folder of your own.",
        )
    user = os.geteuid()
    others = owners - {0, user}
    if is_link:
        fault = "is a link"
    elif others:
        fault = f"belongs to user {min(others)}, not to user {user} or root"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        fault = f"can be written by other users (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return
    cache = shlex.quote(str(build_cache()))
    raise BuildError(
        f"{path} {fault}, so no compiled code is loaded from {build_cache()}.",
        "Another user could have put code of their own there.",
        f"Run: rm -r {cache}; the next run compiles again. If you trust what is in it, run "
        f"chown -R {user} {cache} and chmod -R go-w {cache} instead. Or set "
        "QWEN_MEGAKERNEL_BUILD_CACHE to a folder of your own.",
    )


def _output_of(build: subprocess.Popen[str], limit_seconds: float) -> str:
    """Wait for a build and return its output; every few seconds, log that it still runs."""
    started = time.monotonic()
    while True:
        left = started + limit_seconds - time.monotonic()
        try:
            return build.communicate(timeout=min(SECONDS_BETWEEN_WORDS, max(0, left)))[0]
        except subprocess.TimeoutExpired:
            if left <= SECONDS_BETWEEN_WORDS:
                raise
            logger.info("... %.0f s so far", time.monotonic() - started)


def _compile(work: Path, recipe: Recipe, ninja: str) -> None:
    """Fill the folder `work` with the library, its checksum and the compiler's log."""
    lines = [
        "rule compile",
        "  command = $compiler $flags -c $in -o $out",
        "rule link",
        "  command = $compiler $flags -shared $in -o $out",
    ]
    for path in recipe.units:
        language = recipe.cu_language if path.suffix == ".cu" else ""
        lines += [
            f"build {path.stem}.o: compile {_escape(path)}",
            f"  compiler = {_escape(recipe.compiler)}",
            f"  flags = {' '.join(recipe.flags)} {language}",
        ]
    objects = " ".join(f"{path.stem}.o" for path in recipe.units)
    link = [flag for flag in recipe.flags if not flag.startswith("-D")]
    lines += [
        f"build {recipe.library}: link {objects}",
        f"  compiler = {_escape(recipe.compiler)}",
        f"  flags = {' '.join([*link, *recipe.link_flags])}",
        "",
    ]
    (work / "build.ninja").write_bytes(os.fsencode("\n".join(lines)))
    environment = {"ZIG_GLOBAL_CACHE_DIR": str(build_cache() / "zig")} | os.environ
    with subprocess.Popen(
        [ninja, "-C", str(work)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        **_TEXT,
    ) as build:
        try:
            log = _output_of(build, recipe.limit_seconds)
        except BaseException as error:  # KeyboardInterrupt too
            build.terminate()  # ninja then ends its compilers; a killed ninja would not
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise BuildError(
                f"{recipe.compiler} did not end within {recipe.limit_seconds:.0f} s.",
                f"It was compiling {recipe.name}, which takes seconds to minutes.",
                CHECK_COMPILER,
            ) from error
    if build.returncode == -signal.SIGINT or "interrupted by user" in log:
        raise KeyboardInterrupt  # Ctrl-C in a terminal reaches ninja, too, and maybe first
    (work / "build.log").write_text(log, "utf-8")
    if build.returncode:
        kept = build_cache() / "failed.log"
        kept.write_text(log, "utf-8")
        for line in log.splitlines()[-20:]:
            logger.debug("%s", line)
        match = re.search(r"^FAILED: .*?(\w+)\.o\b", log, re.MULTILINE)
        names = {path.stem: path.name for path in recipe.units}
        failed = names.get(match[1] if match else "", "linking")
        raise BuildError(
            f"{recipe.compiler} failed on {failed} (exit {build.returncode}).",
            f"Its output is in {kept}; --debug prints the end of it.",
        )
    library = work / recipe.library
    (work / "sha256").write_text(hashlib.sha256(library.read_bytes()).hexdigest())


def _escape(path: str | Path) -> str:
    return re.sub(r"([ :$])", r"$\1", str(path))


def load(path: Path) -> ctypes.CDLL:
    """Load a library that `compiled` returned, or raise BuildError."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(
            f"{path} does not load: {error}.",
            "A system of another kind compiled it, or its disk is mounted noexec.",
            f"Remove {path.parent}; the next run compiles it again. Or set "
            "QWEN_MEGAKERNEL_BUILD_CACHE to a folder on another disk.",
        ) from error
