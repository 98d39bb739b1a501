"""The import of PyTorch: a thread loads its libraries, and a command leaves out what it can."""

import gc
import sys
import threading
from pathlib import Path

import pytest
import torch
from commands import run

from qwen_megakernel import torch_import

LIBRARIES = ("libtorch_global_deps", "libtorch_cpu", "libtorch_python")
IS_CPU_BUILD = torch.version.cuda is None and torch.version.hip is None
SPEAK = """
import gc, sys
frozen = gc.get_freeze_count()  # Python 3.12 begins with some hundred
from qwen_megakernel.__main__ import main
sys.argv[1:] = ["speak", "Hello.", "--model", "demo-voice", "--output", sys.argv[1], "--quiet"]
assert main() == 0
import torch
print("_meta_registrations" in vars(torch), "torch._meta_registrations" in sys.modules)
import torch._meta_registrations
was_frozen = gc.get_freeze_count() > frozen
print(callable(torch._meta_registrations.activate_meta), gc.isenabled(), was_frozen)
"""
LIBRARY = """
import gc, sys, threading
frozen = gc.get_freeze_count()
import qwen_megakernel
gc.disable() if sys.argv[1] == "disabled" else None
qwen_megakernel.TTSEngine
print("torch._meta_registrations" in sys.modules, gc.isenabled(), gc.get_freeze_count() - frozen)
"""

WAITING = """
import sys
from qwen_megakernel import torch_import

def libraries():
    loaded = [getattr(each, "__spec__", None) for each in sys.modules.values()]
    return {each.name for each in loaded if each and str(each.origin).endswith(".so")}

def begin():
    global before
    started()
    before = libraries()

def import_torch(**options):
    is_ready = "qwen_megakernel.text.reading.languages" in sys.modules
    print(*sorted(libraries() - before), "|", is_ready)
    sys.exit()

started = torch_import.begin
torch_import.begin, torch_import.import_torch = begin, import_torch
"""
OF_A_COMMAND = """
from qwen_megakernel.__main__ import main
sys.argv[1:] = ["speak", "Hello.", "--model", "demo-voice", "--output", "hello.wav"]
main()
"""


def test_a_short_command_leaves_out_what_serves_pytorchs_compiler(tmp_path):
    done = run("-c", SPEAK, tmp_path / "hello.wav")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["False False", "True True True"]
    assert (tmp_path / "hello.wav").stat().st_size > 10_000


@pytest.mark.parametrize("collections", ["enabled", pytest.param("disabled", marks=pytest.mark.ci)])
def test_the_package_leaves_a_programs_collections_as_they_are(collections):
    done = run("-c", LIBRARY, collections)
    assert done.stdout.split() == ["True", str(collections == "enabled"), "0"], done.stderr


@pytest.mark.skipif(not IS_CPU_BUILD or sys.platform != "linux", reason="looks into /proc")
def test_a_thread_loads_the_libraries_of_a_build_for_cpus():
    program = """
import sys, threading
from qwen_megakernel import torch_import
torch_import.begin()
for thread in threading.enumerate()[1:]:
    thread.join()
print("libtorch_cpu.so" in open("/proc/self/maps").read(), "torch" in sys.modules)
torch_import.import_torch()
import torch
print(torch.ones(3).sum().item())
"""
    done = run("-c", program)
    assert done.stdout.split() == ["True", "False", "3.0"], done.stderr


@pytest.mark.parametrize(
    "program", [OF_A_COMMAND, "import qwen_megakernel\nqwen_megakernel.TTSEngine"]
)
def test_what_is_imported_meanwhile_needs_no_library(program):
    # An import of one would wait until PyTorch's are loaded.
    done = run("-c", WAITING + program)
    assert done.stdout.split() == ["|", "True"], done.stdout + done.stderr


@pytest.mark.parametrize(
    ("libraries", "loaded"),
    [
        (LIBRARIES, LIBRARIES[:2]),
        ((*LIBRARIES, "libtorch_cuda"), ()),  # it needs others, which the import chooses
        ((), ()),
    ],
)
def test_only_a_build_for_cpus_is_loaded_ahead(tmp_path, monkeypatch, libraries, loaded):
    for name in libraries:
        place = tmp_path / "torch" / "lib" / f"{name}.so"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("no library")
    (tmp_path / "torch").mkdir(exist_ok=True)
    (tmp_path / "torch" / "__init__.py").touch()
    asked: list[Path] = []
    load = torch_import._load

    def noticed(*paths: Path) -> None:
        asked.extend(paths)
        load(*paths)  # which fails in silence

    monkeypatch.setattr(torch_import, "_load", noticed)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "torch")
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    earlier = set(threading.enumerate())
    torch_import.begin()
    for thread in {*threading.enumerate()} - earlier:
        thread.join()
    assert [path.stem for path in asked] == list(loaded) and not failed


def test_an_import_that_fails_leaves_nothing_behind(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_hooks", [])
    monkeypatch.setattr(sys, "meta_path", [])
    before = sys.modules.get(torch_import._FOR_COMPILER)
    monkeypatch.delitem(sys.modules, torch_import._FOR_COMPILER, raising=False)
    with pytest.raises(ImportError):
        torch_import.import_torch(is_command=True, with_compiler=False)
    assert torch_import._FOR_COMPILER not in sys.modules and gc.isenabled()
    assert before is None or before.__name__ == torch_import._FOR_COMPILER
