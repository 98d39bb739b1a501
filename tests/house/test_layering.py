"""A room imports only rooms on lower floors, and importing the package loads no torch."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest
from commands import ROOT, run

PACKAGE = ROOT / "qwen_megakernel"

# From the ground up. A room, or a module of the top, may import what precedes it in this list.
FLOORS = """
    printable
    errors  choices  torch_import
    installing  output_files
    gpu  native  voice  signals
    speech_options  content_credentials
    marking
    records  audio
    checkpoint
    text  vocoder  sound
    timing
    cloning  decoders
    engine
    training  official_api
    tts_engine  sheen
    families  compat  build_tts  model_tts
    pipecat  server
    cli  pipecat_tts
    __main__
"""
# Loggers whose level a module sets; it logs nothing with them.
OTHER_LOGGERS = {"'coremltools'", "'qwen_megakernel.decoders.coreml'", "compiling.__name__"}
FLOOR_OF = {room: floor for floor, line in enumerate(FLOORS.split("\n")) for room in line.split()}
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(path.read_text("utf-8"))
    for path in PACKAGE.rglob("*.py")
    if path != PACKAGE / "__init__.py"
}


def imports(module: str) -> Iterator[str]:
    """Return the package's modules that a module imports, at its top or inside its functions."""
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from {name.removeprefix(f"{PACKAGE.name}.") for name in names} & MODULES.keys()


def calls(module: str, name: str) -> list[ast.Call]:
    """Return the calls of a function, by its own name or as an attribute."""
    nodes = [node for node in ast.walk(MODULES[module]) if isinstance(node, ast.Call)]
    return [
        node for node in nodes if name in (getattr(node.func, key, "") for key in ("id", "attr"))
    ]


def room_of(module: str) -> str:
    return module.split(".")[0]


def test_a_room_imports_only_lower_floors():
    assert {room_of(module) for module in MODULES} == FLOOR_OF.keys()
    climbing = [
        f"{module} -> {other}"
        for module in MODULES
        for other in imports(module)
        if room_of(other) != room_of(module)
        and FLOOR_OF[room_of(other)] >= FLOOR_OF[room_of(module)]
    ]
    assert not climbing


def test_no_string_hides_an_import_of_ours():
    for module in MODULES:
        for call in calls(module, "import_module") + calls(module, "__import__"):
            name = call.args[0]
            is_other = isinstance(name, ast.Constant) and not name.value.startswith(PACKAGE.name)
            assert is_other or module == "validation.official", f"{module}: line {call.lineno}"


@pytest.mark.parametrize("room", FLOOR_OF)
def test_no_circle_inside_a_room(room: str):
    graph = {module: set(imports(module)) for module in MODULES if room_of(module) == room}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_face_of_a_room_is_its_docstring_alone():
    for path in PACKAGE.glob("*/**/__init__.py"):
        body = ast.parse(path.read_text("utf-8")).body
        assert len(body) == 1 and ast.get_docstring(ast.Module(body, [])), path


def test_torch_is_imported_where_it_is_needed():
    for module in MODULES:
        if room_of(module) in ("cli", "server", "pipecat"):
            names = set()
            for node in MODULES[module].body:
                if isinstance(node, ast.Import):
                    names |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    names.add((node.module or "").split(".")[0])
            assert "torch" not in names, module


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, qwen_megakernel; "
        "print([m for m in ('torch', 'transformers', 'numpy', 'soundfile') if m in sys.modules])"
    )
    done = run("-c", code)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_module_logs_with_a_logger_that_makes_its_records_printable():
    for module in MODULES:
        for call in calls(module, "getLogger") if module != "printable" else ():
            configures = ast.unparse(call.args[0]) in OTHER_LOGGERS
            assert configures, f"{module}: line {call.lineno}: use printable.get_logger"
        for level in ("debug", "info", "warning", "error", "exception", "critical", "log"):
            roots = [ast.unparse(call.func) for call in calls(module, level)]
            assert f"logging.{level}" not in roots, module


def test_only_the_commands_print():
    for module in MODULES:
        if room_of(module) != "cli":
            assert not calls(module, "print"), module
