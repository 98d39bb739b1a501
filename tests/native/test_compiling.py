"""The build cache: compilers that hang or fail, a full cache, two builds at once."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from commands import write_program

from qwen_megakernel.errors import BuildError
from qwen_megakernel.native import compiling, cpu_library

SOURCE = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture
def recipe(tmp_path, monkeypatch) -> compiling.Recipe:
    """The recipe of a library with one function, and an empty cache."""
    monkeypatch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(tmp_path / "cache"))
    unit = tmp_path / "answer.cpp"
    unit.write_text(SOURCE)
    return compiling.Recipe(
        name="the answer",
        library="libanswer.so",
        compiler=compiling.find_cxx(),
        flags=("-fPIC",),
        units=(unit,),
        sources=(unit,),
        source_root=tmp_path,
    )


def script(folder: Path, text: str) -> str:
    """Write a compiler that is a shell script; return its path."""
    text = f'#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit\n{text}\n'
    return str(write_program(folder / "compiler", text))


def test_a_library_is_found_by_what_its_compiler_says_not_by_where_it_lies(recipe, tmp_path):
    def key(folder: str, version: int, *words: str) -> str:
        text = f"#!/bin/sh\n[ $# -gt 0 ] && echo release {version}\n"
        path = write_program(tmp_path / folder / "compiler", text)
        return replace(recipe, compiler=" ".join([str(path), *words])).key

    assert key("here", 1) == key("there", 1)
    assert len({key("here", 1), key("here", 2), key("here", 1, "-target", "x")}) == 3


def test_a_compiler_that_hangs_is_ended_with_all_that_it_began(recipe, tmp_path):
    pid = tmp_path / "pid"
    hanging = script(tmp_path, f"sleep 600 & echo $! > {pid}; wait")
    with pytest.raises(BuildError, match=r"did not end within 1 s\.\n.*\n.* set CXX"):
        compiling.compiled(replace(recipe, compiler=hanging, limit_seconds=1))
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid.read_text().strip()}").exists():
        # A killed child of a killed parent stays a zombie until init reads its status.
        state = Path(f"/proc/{pid.read_text().strip()}/stat").read_text().split()[2]
        if state == "Z" or time.monotonic() > deadline:
            assert state == "Z"
            break
        time.sleep(0.05)
    assert compiling.load(compiling.compiled(recipe)).answer() == 42


def test_a_compiler_that_hangs_before_it_says_its_version_is_named(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "VERSION_SECONDS", 0.5)
    sleep = "#!/bin/sh\nsleep 30\n"  # a child that holds the pipe
    hanging = write_program(tmp_path / "compiler", sleep)
    started = time.monotonic()
    with pytest.raises(BuildError, match=r"--version did not end within 0.5 s\.\n.*\n.* set CXX"):
        compiling.compiled(replace(recipe, compiler=str(hanging)))
    assert time.monotonic() - started < 10


def test_a_compiler_at_work_is_told_of_every_few_seconds(recipe, tmp_path, monkeypatch, caplog):
    assert compiling.SECONDS_BETWEEN_WORDS < 10
    monkeypatch.setattr(compiling, "SECONDS_BETWEEN_WORDS", 0.4)
    caplog.set_level("INFO", compiling.__name__)
    slow = script(tmp_path, f'sleep 1; exec {recipe.compiler} "$@"')
    compiling.compiled(replace(recipe, compiler=slow, limit_seconds=60))
    first, *between, last = caplog.messages
    assert first == "Compiling the answer, once ..." and last.startswith("Compiled the answer in ")
    assert len(between) >= 2 and all(line.endswith(" s so far") for line in between)


def test_a_compiler_that_fails_leaves_nothing_and_the_next_one_builds(recipe, tmp_path):
    failing = script(tmp_path, "echo 'no space left' >&2; exit 1")
    with pytest.raises(BuildError, match=r"failed on answer\.cpp \(exit 1\)"):
        compiling.compiled(replace(recipe, compiler=failing))
    left = {path.name for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"}
    assert left == {"failed.log"}
    assert "no space left" in (tmp_path / "cache" / "failed.log").read_text()
    assert compiling.load(compiling.compiled(recipe)).answer() == 42


def test_a_cache_that_cannot_be_written_is_named_with_its_cure(recipe, tmp_path, monkeypatch):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(in_the_way / "cache"))
    with pytest.raises(BuildError, match=r"answer could not be written: .*\n.*\n.*BUILD_CACHE to"):
        compiling.compiled(recipe)


def mount(*words) -> None:
    if subprocess.run(["mount", *words], capture_output=True).returncode:
        pytest.skip("this container may not mount")


@pytest.fixture
def disk(request, tmp_path, monkeypatch):
    """A disk of its own for the cache, which is mounted with the option of the test."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount("-t", "tmpfs", "-o", f"{request.param},mode=700", "tmpfs", disk)
    monkeypatch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(disk))
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.fixture
def read_only(tmp_path):
    """read_only() makes the cache read-only for the rest of the test."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o755)
    if os.geteuid() != 0:
        yield lambda: cache.chmod(0o555)
        cache.chmod(0o755)
        return
    mount("--bind", cache, cache)  # root writes anywhere but into a read-only mount
    yield lambda: mount("-o", "remount,bind,ro", cache)
    subprocess.run(["umount", cache], check=True)


@pytest.mark.ci
def test_a_read_only_cache_is_named_and_what_is_in_it_is_used(recipe, read_only):
    path = compiling.compiled(recipe)
    read_only()
    assert compiling.compiled(recipe) == compiling.found(recipe) == path
    with pytest.raises(BuildError, match=r"could not be written: .*\n.*\n.*BUILD_CACHE to"):
        compiling.compiled(replace(recipe, flags=(*recipe.flags, "-g")))


@pytest.mark.ci
@pytest.mark.parametrize("disk", ["noexec"], indirect=True)
def test_a_disk_from_which_nothing_may_run_is_named_with_its_cure(recipe, disk):
    with pytest.raises(BuildError, match=r"does not load: .*failed to map") as caught:
        compiling.load(compiling.compiled(recipe))
    assert "noexec" in caught.value.why
    assert "set QWEN_MEGAKERNEL_BUILD_CACHE to a folder on another disk" in caught.value.hint


@pytest.mark.ci
@pytest.mark.parametrize("disk", ["size=8k"], indirect=True)
def test_a_full_disk_leaves_nothing_half_built(recipe, disk):
    with pytest.raises(BuildError):
        compiling.compiled(recipe)
    assert not [path for path in disk.iterdir() if path.is_dir()]


def test_two_processes_that_build_at_once_compile_once(recipe, tmp_path):
    counting = script(tmp_path, f'echo >> {tmp_path / "calls"}; sleep 0.3; exec g++ "$@"')
    program = f"""
import pathlib
from qwen_megakernel.native import compiling, cpu_library
unit = pathlib.Path({str(recipe.units[0])!r})
recipe = compiling.Recipe("the answer", "libanswer.so", {counting!r}, ("-fPIC",), (unit,), (unit,),
                          unit.parent)
assert compiling.load(compiling.compiled(recipe)).answer() == 42
"""
    both = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [each.wait(60) for each in both] == [0, 0]
    assert len((tmp_path / "calls").read_text()) == 2  # to compile, and to link


def test_an_interrupt_ends_the_compiler(recipe, tmp_path, monkeypatch):
    hanging = script(tmp_path, "sleep 600")
    real = subprocess.Popen.communicate

    def interrupted(self, *given, **options):
        if "ninja" in str(self.args[0]):
            raise KeyboardInterrupt
        return real(self, *given, **options)

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiling.compiled(replace(recipe, compiler=hanging))


@pytest.mark.parametrize("wait_s", [0, 0.3])
def test_a_compiler_that_ctrl_c_ended_has_not_failed(recipe, tmp_path, monkeypatch, wait_s):
    wait = compiling._output_of

    def reached_by_the_terminals_signal(build, limit_seconds):
        time.sleep(wait_s)
        threading.Thread(target=press_until_it_ends, args=(build,), daemon=True).start()
        return wait(build, limit_seconds)

    def press_until_it_ends(build):
        """Send the signal again: ninja loses one that comes while it starts. Another one that comes
        while it ends would leave its command running, so the pause is long. The shell that starts
        the compiler may lose the signal, too; ninja then waits for the compiler's own end."""
        while build.poll() is None:
            build.send_signal(signal.SIGINT)
            time.sleep(2)

    monkeypatch.setattr(compiling, "_output_of", reached_by_the_terminals_signal)
    with pytest.raises(KeyboardInterrupt):
        compiling.compiled(replace(recipe, compiler=script(tmp_path, "sleep 5")))
    assert not (tmp_path / "cache" / "failed.log").exists()


def test_a_portable_library_is_found_without_its_compiler_and_with_another(recipe, tmp_path):
    portable = replace(recipe, is_portable=True)
    assert compiling.found(portable) is None
    path = compiling.compiled(portable)
    gone = replace(portable, compiler=str(tmp_path / "none"))
    assert compiling.found(gone) == compiling.compiled(gone) == path
    newer = script(tmp_path, 'exec g++ "$@"')
    assert compiling.compiled(replace(portable, compiler=newer)) == path
    assert compiling.compiled(replace(recipe, compiler=newer)) != compiling.compiled(recipe)
    path.write_bytes(b"damaged")
    assert compiling.found(portable) is None


@pytest.mark.ci
@pytest.mark.timeout(900)  # zig compiles its own C++ library first
def test_zig_compiles_the_cpu_decoder_where_there_is_no_compiler(tmp_path, monkeypatch):
    if compiling.find_zig() is None:
        pytest.skip("needs the package ziglang (extra 'compiler')")
    monkeypatch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    library = cpu_library.open_library()
    assert library.qwen_cpu_instruction_set().decode() == cpu_library.supported_sets()[0]
    # The same sources for Macs; no Mac has run the result.
    monkeypatch.setattr(compiling.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(compiling.platform, "machine", lambda: "arm64")
    path = cpu_library.library_for("neon")
    assert path.read_bytes()[:4] == b"\xcf\xfa\xed\xfe"  # Mach-O, 64 bits


@pytest.mark.parametrize("words", ["", " -DUNUSED"])
def test_the_compiler_that_cxx_names_compiles(recipe, tmp_path, monkeypatch, words):
    called = tmp_path / "called"
    compiler = write_program(
        tmp_path / "my tools" / "cxx",
        f'#!/bin/sh\n[ "$1" = --version ] || echo "$@" >> {called}\nexec g++ "$@"\n',
    )
    if words:  # a command of several words is split where a shell splits it
        monkeypatch.setenv("PATH", f"{compiler.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CXX", f"cxx{words}" if words else str(compiler))
    library = compiling.compiled(replace(recipe, compiler=compiling.find_cxx()))
    assert compiling.load(library).answer() == 42
    assert words.strip() in called.read_text()


@pytest.mark.parametrize("cxx", ["no-such-compiler", "no-such-cache g++", "/no/such/g++"])
def test_a_cxx_that_is_no_program_is_named(monkeypatch, cxx):
    monkeypatch.setenv("CXX", cxx)
    for find in (compiling.find_cxx, cpu_library.find_compiler):
        with pytest.raises(BuildError, match=r"^CXX is '[^']*'; there is no program") as caught:
            find()
        assert f"no program {cxx.split()[0]}." in caught.value.what
        assert "Unset CXX" in caught.value.hint


def test_a_compiler_that_is_no_program_is_named(recipe, tmp_path):
    broken = write_program(tmp_path / "compiler", "no program")
    with pytest.raises(BuildError, match=rf"^{broken} cannot be run: .*\n.* set CXX to another"):
        compiling.compiled(replace(recipe, compiler=str(broken)))


@pytest.mark.parametrize("fails", [False, True])
def test_a_compiler_may_speak_another_encoding(recipe, tmp_path, fails):
    text = f"""#!/bin/sh
printf 'f\\374r \\377\\n' >&2
[ "$1" = --version ] && printf 'M\\344rz\\n' && exit
{"exit 1" if fails else 'exec g++ "$@"'}
"""
    recipe = replace(recipe, compiler=str(write_program(tmp_path / "compiler", text)))
    if fails:
        with pytest.raises(BuildError, match=r"failed on answer\.cpp \(exit 1\)"):
            compiling.compiled(recipe)
    else:
        assert compiling.load(compiling.compiled(recipe)).answer() == 42


def test_folders_may_have_any_names(recipe, tmp_path, monkeypatch):
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/a 'b\" $c:d caf\xe9"))
    folder.mkdir()
    monkeypatch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(folder / "cache"))
    unit = folder / recipe.units[0].name
    unit.write_text(SOURCE)
    recipe = replace(recipe, units=(unit,), sources=(unit,), source_root=folder)
    assert compiling.load(compiling.compiled(recipe)).answer() == 42


def test_a_damaged_checksum_leads_to_a_new_library(recipe):
    library = compiling.compiled(recipe)
    library.with_name("sha256").write_bytes(b"\xff" * 64)
    assert compiling.found(recipe) is None
    assert compiling.load(compiling.compiled(recipe)).answer() == 42


def test_a_cache_that_is_no_folder_is_not_to_be_removed(monkeypatch):
    monkeypatch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", "/dev/null")
    with pytest.raises(BuildError, match=r"^/dev/null is no folder") as caught:
        compiling._check_owner(compiling.build_cache(), may_be_link=True)
    assert caught.value.hint == "Set QWEN_MEGAKERNEL_BUILD_CACHE to a folder of your own."


# ---- files of other users ------------------------------------------------------------------------

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")


def replace_by_link(path: Path) -> None:
    """Move a file or folder away, and leave a link to it."""
    path.rename(path.with_name(f"{path.name}.real"))
    path.symlink_to(path.with_name(f"{path.name}.real"))


@pytest.mark.parametrize("part", ["cache", "folder", "library", "checksum", "lock"])
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        pytest.param(
            lambda path: os.chown(path, NOBODY, -1), "belongs to user 65534", marks=needs_root
        ),
        (lambda path: path.chmod(path.stat().st_mode | 0o020), r"\(mode 0[67][2-7][045]\)"),
        (lambda path: path.chmod(path.stat().st_mode | 0o002), r"\(mode 0[67][045][267]\)"),
        (replace_by_link, "is a link"),
    ],
    ids=["owner", "group", "all", "link"],
)
def test_what_another_user_could_have_written_is_not_loaded(recipe, tmp_path, part, change, fault):
    library = compiling.compiled(recipe)
    parts = {"cache": tmp_path / "cache", "folder": library.parent, "library": library}
    parts |= {
        "checksum": library.with_name("sha256"),
        "lock": tmp_path / f"cache/{recipe.key}.lock",
    }
    change(parts[part])
    if part == "lock":
        library.write_bytes(b"damaged")  # so that it is compiled again
    if (part, change) == ("cache", replace_by_link):  # to another disk, for example
        assert compiling.compiled(recipe) == compiling.found(recipe) == library
        return
    for find in (compiling.compiled, compiling.found)[: 1 if part == "lock" else 2]:
        with pytest.raises(BuildError, match=f"^{parts[part]} .*{fault}") as caught:
            find(recipe)
        assert f"rm -r {tmp_path}/cache;" in caught.value.hint
        assert "chmod -R go-w" in caught.value.hint and "BUILD_CACHE" in caught.value.hint
    if change is not replace_by_link:
        for command in (["chown", "-R", str(os.geteuid())], ["chmod", "-R", "go-w"]):
            subprocess.run([*command, tmp_path / "cache"], check=True)
        assert compiling.load(compiling.compiled(recipe)).answer() == 42


@needs_root
def test_a_link_of_another_user_is_not_followed_to_a_cache(recipe, tmp_path):
    compiling.compiled(recipe)
    replace_by_link(tmp_path / "cache")
    os.chown(tmp_path / "cache", NOBODY, -1, follow_symlinks=False)
    with pytest.raises(BuildError, match="cache belongs to user 65534"):
        compiling.compiled(recipe)


def test_the_file_behind_a_link_in_place_of_a_lock_is_not_changed(recipe, tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "cache").mkdir(mode=0o700)
    lock = tmp_path / "cache" / f"{recipe.key}.lock"
    lock.symlink_to(victim)
    with pytest.raises(BuildError, match="lock is a link"):
        compiling.compiled(recipe)
    monkeypatch.setattr(compiling, "_check_owner", lambda path, **_: None)  # it lost a race
    with pytest.raises(BuildError, match="could not be written"):
        compiling.compiled(recipe)
    lock.unlink()
    lock.write_text("precious")  # a hard link, for example
    compiling.compiled(recipe)
    assert victim.read_text() == lock.read_text() == "precious"


def test_a_library_is_built_on_a_file_system_without_locks(recipe, monkeypatch):
    no_locks = OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=no_locks))
    assert compiling.load(compiling.compiled(recipe)).answer() == 42


@pytest.mark.parametrize("umask", [0, 0o002, 0o077])
def test_a_new_cache_can_be_written_by_its_user_alone(recipe, tmp_path, umask):
    before = os.umask(umask)
    try:
        library = compiling.compiled(recipe)
    finally:
        os.umask(before)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert library.parent.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in library.parent.iterdir()} == {0o644}
    assert compiling.found(recipe) == library


@needs_root
def test_what_root_has_compiled_serves_other_users(recipe, monkeypatch):
    library = compiling.compiled(recipe)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert compiling.found(recipe) == compiling.compiled(recipe) == library


def test_a_refused_cache_is_the_reason_for_which_pytorch_decodes(tmp_path, monkeypatch, caplog):
    from qwen_megakernel import TTSEngine

    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    monkeypatch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(tmp_path / "cache"))
    fault = "can be written by other users (mode 0777)"
    with TTSEngine.from_pretrained("tiny-random", device="cpu", warmup=False) as tts:
        assert tts.backend == "torch" and "see the warning" in tts.why
    assert [line for line in caplog.messages if fault in line and "PyTorch decodes instead" in line]
    with pytest.raises(BuildError, match="mode 0777"):
        TTSEngine.from_pretrained("tiny-random", backend="cpu", warmup=False)
    assert not list((tmp_path / "cache").iterdir())
