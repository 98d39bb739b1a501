"""The house: a module imports only lower floors, and importing costs nothing."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "qwen_megakernel"

# From the ground up. Modules of one floor do not know each other.
FLOORS = [
    {"errors", "signals", "choices"},
    {"voice"},
    {"checkpoint.config", "records", "audio", "text.languages", "text.sentences"},
    {"checkpoint.codec_config"},
    {
        "checkpoint.tensor_shapes",
        "checkpoint.random_configs",
        "decoders.sampling",
        "engine.runaway_guard",
        "engine.codes_file",
        "cloning.recordings",
    },
    {
        "decoders.kernel.build",
        "gpu.driver",
        "decoders.kernel.library",
        "decoders.onednn",
        "decoders.slots",
        "gpu.cuda_graphs",
        "decoders.graph.sampling",
        "vocoder.snake",
        "decoders.int8",
    },
    {
        "decoders.kernel.packing",
        "checkpoint.random_weights",
        "checkpoint.hub",
        "checkpoint.safetensors_file",
        "vocoder.layers",
        "pipecat.word_timestamps",
    },
    {"checkpoint.loading", "vocoder.transformer"},
    {"vocoder.vocoder"},
    {"decoders.embeddings"},
    {"decoders.kernel.buffers"},
    {"decoders.kernel.launcher"},
    {
        "decoders.kernel.decoder",
        "decoders.plain",
        "cloning.speaker_encoder",
        "cloning.codec_encoder",
    },
    {"decoders.graph.stack"},
    {"decoders.graph.model"},
    {"decoders.graph.decoder"},
    {"decoders.coreml.decoder_models"},
    {"decoders.coreml.speech_decoder"},
    {"decoders.coreml.export"},
    {"decoders.coreml.decoder"},
    {
        "text.tokenizer",
        "decoders.prompt",
        "cloning.voice_library",
        "decoders.frame_decoder",
        "decoders.kernel.text_model",
    },
    {"engine.stream"},
    {"vocoder.graph_vocoder"},
    {"engine.stages", "engine.active_stream"},
    {"engine.slots"},
    {"engine.delivery"},
    {"engine.step_loop", "official_api"},
    {"engine.speech_engine"},
    {"sheen.codes", "sheen.phonemes", "sheen.noise", "sheen.language_model"},
    {"sheen.tokens", "sheen.codec", "sheen.training.dataset"},
    {
        "sheen.training.prepare",
        "sheen.training.sequences",
        "sheen.model_folder",
        "sheen.text_input",
        "sheen.decoder",
    },
    {"sheen.training.trainer"},
    {"sheen.training.job", "sheen.engine"},
    {"sheen.training.verify"},
    {"tts_engine", "build_tts", "model_tts"},
    {"families"},
    {
        "pipecat.settings",
        "pipecat.context_speech",
        "pipecat.base",
        "cli.doctor",
        "cli.options",
        "validation.official",
        "compat",
    },
    {"validation.cases"},
    {"validation.compare", "pipecat.contexts"},
    {"server.settings", "server.admission"},
    {"server.encoders", "server.error_responses", "server.metrics"},
    {"server.voices", "server.middleware", "server.active_speech"},
    {"server.schemas", "server.responses"},
    {"server.service", "server.websocket"},
    {"server.wyoming_session"},
    {"server.wyoming_server"},
    {"server.serving"},
    {"pipecat.service", "server.app"},
    {"server.ray_serve"},
    {"cli.build", "cli.export", "cli.serve", "cli.speak", "cli.voices"},
    {"cli.sheen"},
    {"cli.main"},
    {"__main__", "pipecat_tts"},
]

# What users type, and the only modules that print.
COMMAND_LINE = (
    *("cli.main", "cli.build", "cli.export", "cli.serve", "cli.speak", "cli.voices"),
    *("cli.options", "cli.sheen"),
)


def floor_of(module: str) -> int:
    return next(index for index, floor in enumerate(FLOORS) if module in floor)


def name_of(path: Path) -> str:
    """A module's name within the package, as "decoders.kernel.decoder" or "sheen.codec"."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def modules() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if path.stem != "__init__"]


def imported_modules(path: Path) -> set[str]:
    known, found = set(map(name_of, modules())), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.removeprefix(f"{PACKAGE.name}.") for name in names}
    return found & known


def test_every_module_has_a_floor():
    assert set(map(name_of, modules())) <= set().union(*FLOORS)


def test_modules_import_only_lower_floors():
    climbing = [
        f"{name_of(path)} -> {other}"
        for path in modules()
        for other in imported_modules(path)
        if floor_of(other) >= floor_of(name_of(path))
    ]
    assert not climbing


def test_adapters_and_the_command_line_import_no_torch():
    adapters = (path.stem for path in PACKAGE.glob("server*.py"))
    for name in ("pipecat.service", *COMMAND_LINE, *adapters):
        path = PACKAGE.joinpath(*name.split(".")).with_suffix(".py")
        top_level = ast.parse(path.read_text(encoding="utf-8")).body
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
    for path in modules():
        if name_of(path) in COMMAND_LINE:
            continue
        calls = [
            node.lineno
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "print"
        ]
        assert not calls, f"{path.name}: print at lines {calls}"
