"""The house: a module imports only lower floors, and importing costs nothing."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "qwen_megakernel"

# From the ground up. Modules of one floor do not know each other.
FLOORS = [
    {"errors"},
    {"voice"},
    {"config", "utterance", "audio", "languages", "sentences"},
    {"inventory", "synthetic_config", "sampling", "guard", "codes_file", "reference_audio"},
    {"build_tts", "kernel_library", "packing", "decoder_slots", "cuda_graphs", "device_sampling"},
    {"synthetic", "hub", "weights", "vocoder_layers", "word_times"},
    {"checkpoint"},
    {"embeddings"},
    {"kernel_buffers"},
    {"kernel_launch"},
    {"kernels", "reference", "speaker_encoder", "codec_encoder"},
    {"graph_stack"},
    {"graph_model"},
    {"graph_decoder"},
    {"text", "prompt", "voices", "model_tts"},
    {"vocoder", "speech_stream"},
    {"graph_vocoder"},
    {"stages"},
    {"step_loop", "official_names"},
    {"speech_engine"},
    {"tts_engine"},
    {
        "pipecat_settings",
        "pipecat_speech",
        "pipecat_base",
        "doctor",
        "options",
        "official",
        "compat",
    },
    {"validation"},
    {"server_settings", "server_admission"},
    {"server_audio", "server_errors", "server_metrics"},
    {"server_voices", "server_guard", "server_stream"},
    {"server_requests"},
    {"server_service", "server_websocket"},
    {"wyoming_session"},
    {"wyoming_server"},
    {"server_protocol"},
    {"pipecat_tts", "server"},
    {"cli_build", "cli_serve", "cli_voices"},
    {"cli"},
    {"__main__"},
]


def floor_of(module: str) -> int:
    return next(index for index, floor in enumerate(FLOORS) if module in floor)


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "qwen_megakernel":
            found |= {alias.name for alias in node.names if (PACKAGE / f"{alias.name}.py").exists()}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "qwen_megakernel."
        ):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("qwen_megakernel.")
            }
    return found


def test_every_module_has_a_floor():
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert modules <= set().union(*FLOORS)


def test_modules_import_only_lower_floors():
    climbing = [
        f"{path.stem} -> {other}"
        for path in PACKAGE.glob("*.py")
        if path.stem != "__init__"
        for other in imported_modules(path)
        if floor_of(other) >= floor_of(path.stem)
    ]
    assert not climbing


def test_adapters_and_the_command_line_import_no_torch():
    adapters = ("pipecat_tts", "cli", "cli_build", "cli_serve", "cli_voices", "options")
    for name in (*adapters, *(path.stem for path in PACKAGE.glob("server*.py"))):
        path = PACKAGE / f"{name}.py"
        top_level = ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else []
        names = {
            alias.name.split(".")[0]
            for node in top_level
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        assert "torch" not in names, name


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, qwen_megakernel; "
        "print([m for m in ('torch', 'transformers', 'numpy', 'soundfile') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_is_printed_by_the_package():
    """Results go through the command line; everything else logs."""
    for path in PACKAGE.glob("*.py"):
        if path.stem in ("cli", "cli_build", "cli_serve", "cli_voices", "options"):
            continue
        calls = [
            node.lineno
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "print"
        ]
        assert not calls, f"{path.name}: print at lines {calls}"
