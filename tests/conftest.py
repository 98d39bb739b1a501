"""Fixtures: the built-in tiny checkpoints, loaded by this package and by the official one; toys."""

import functools
import gc
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import certifi
import pytest
import tiny_speech
import torch
from commands import CommandsHere

from benchmarks import machine
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.errors import MissingPackageError
from tools.validation import compare, official

pytest_plugins = ["cpu_report"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--backend emulation`, with which these suites run on the kernel's own code."""
    parser.addoption("--backend", default="cpu", help="of the demo's and the service's engines")
    parser.addoption(
        "--report",
        action="append",
        metavar="FILE",
        help="JUnit report of a run, for tests/house/test_ledger.py; may be given several times",
    )
    parser.addoption("--at-least", type=int, default=0, metavar="N", help="fail if fewer passed")


def pytest_configure(config: pytest.Config) -> None:
    """Compare float32 in the suites and in the commands that they run."""
    # pytest explains a difference in full where these are set: of seconds of samples, for minutes.
    for name in ("CI", "BUILD_NUMBER"):
        os.environ.pop(name, None)
    compare.forbid_reduced_precision()
    tiny_speech.default_backend = config.getoption("--backend")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a run fail in which too few tests passed, because the others were skipped."""
    least = session.config.getoption("--at-least")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not least or reporter is None or hasattr(session.config, "workeroutput"):
        return
    passed = len(reporter.stats.get("passed", ()))
    if passed < least and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"{passed} tests passed; there must be {least} at least", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file all of whose tests `-m` deselects: to import every file takes 40 seconds.

    Only files of tests give these three marks, to all their tests by `pytestmark`.
    """
    asked = config.option.markexpr
    if collection_path.suffix != ".py" or " or " in asked:
        return None
    terms, text = asked.split(" and "), collection_path.read_text(encoding="utf-8")
    for name in ("ci", "alone", "own_backend"):
        if name in terms and f"pytest.mark.{name}" not in text:
            return True
        if f"not {name}" in terms and f"\npytestmark = pytest.mark.{name}" in text:
            return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector look neither at the imports nor, later, at what they left.

    It would spend a third of the time that the imports take, and 0.4 s on each whole collection.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_runtest_setup() -> None:
    """Let each test begin with one thread, whatever a command set in this process before it.

    Two threads of PyTorch wait for each other in busy loops: later tests would take twice as long.
    """
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """The backend of tests that are about something else."""
    return request.config.getoption("--backend")


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the built-in checkpoints of this run, in place of the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QWEN_MEGAKERNEL_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def build_cache() -> Iterator[Path]:
    """A cache of compiled kernels that outlives the run; new sources or flags have new entries."""
    folder = Path(__file__).parents[1] / "build" / "kernels"
    folder.parent.mkdir(exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)  # a cache that a group may write is refused
    with pytest.MonkeyPatch.context() as patch:
        if "QWEN_MEGAKERNEL_BUILD_CACHE" not in os.environ:
            patch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Let commands use one thread, as tests do: toy tensors are faster, and the cores are busy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def one_certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let clients of HTTP trust one authority: reading all of them takes each client 20 ms."""
    end = "-----END CERTIFICATE-----\n"
    first, *_ = Path(certifi.where()).read_text(encoding="utf-8").partition(end)
    file = tmp_path_factory.mktemp("certificate") / "one.pem"
    file.write_text(first + end, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_conditions() -> Iterator[None]:
    """Let commands of tests neither wait for an idle machine nor measure its memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "IDLE_SECONDS", 0)
        patch.setattr(machine, "read_bandwidth", lambda num_threads: 1.0)
        yield


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandsHere:
    """run_here("demo_tts.py", "Hello."): exit code, stdout and stderr of a command."""
    loading._announce.cache_clear()  # as in a new process
    return CommandsHere(monkeypatch, capsys)


@pytest.fixture(scope="module")
def reader_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a page's reader, with a recording and the files of earlier snippets."""
    import soundfile
    import waveforms

    folder = tmp_path_factory.mktemp("reader")
    soundfile.write(folder / "mario.wav", waveforms.voice_like(3, 16000), 16000)
    return folder


@pytest.fixture(scope="session")
def model_folder(cache_folder: Path) -> Callable[[str], Path]:
    """model_folder(name): the folder of a built-in checkpoint, written on first use."""
    return lambda name: loading.resolve(name).folder


@pytest.fixture(scope="session")
def load_checkpoint(cache_folder: Path) -> Callable[[str], loading.Checkpoint]:
    """load_checkpoint(name): a built-in checkpoint, loaded once per session."""
    return functools.cache(lambda name: loading.load(loading.resolve(name)))


@pytest.fixture(scope="session")
def official_package() -> ModuleType:
    """The module `qwen_tts`; where it is not installed the test is skipped."""
    try:
        return official.package()
    except MissingPackageError as error:
        pytest.skip(error.what)


@pytest.fixture(scope="session")
def official_model(
    official_package: ModuleType, model_folder: Callable[[str], Path]
) -> Callable[[str], Any]:
    """official_model(name): the official `Qwen3TTSModel` of a built-in checkpoint, fp32, eager."""
    return functools.cache(lambda name: official.load(model_folder(name)))


@pytest.fixture(scope="module")
def tts(cache_folder: Path) -> Iterator[Any]:
    """A `TTSEngine` of the smallest checkpoint on three slots, for the tests of one file."""
    from tiny_speech import tiny_engine

    with tiny_engine(num_slots=3) as engine:
        yield engine


@pytest.fixture
def whole_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let streams begin when all of their text has come.

    Random weights draw the end of speech anywhere, and a part whose text is late goes on behind it.
    """
    from qwen_megakernel.engine.stream_state import StreamState

    is_ready = StreamState.is_ready.fget
    whole = property(lambda state: state.text.is_closed and is_ready(state))
    monkeypatch.setattr(StreamState, "is_ready", whole)


# ---- engine and server that hum ------------------------------------------------------------------


@pytest.fixture
def engine() -> Any:
    """An engine that hums (`fake_engine`), a thousand times as fast as it sounds."""
    from fake_engine import FakeEngine

    return FakeEngine(rtf=0.001)


@pytest.fixture
def live(engine: Any) -> Iterator[Any]:
    """A `live_server.LiveServer` over `engine`, which is silent when the test is over."""
    from live_server import serving

    with serving(engine) as server:
        yield server
        server.settle()
        assert not engine.speaking


# ---- toys for prompts ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def make_toy(
    tmp_path_factory: pytest.TempPathFactory, official_package: ModuleType
) -> Callable[..., Any]:
    """make_toy(model_type, model_size): a new `prompt_toys.Toy`."""
    from prompt_toys import Toy, write_tokenizer

    folder = tmp_path_factory.mktemp("bytes")
    write_tokenizer(folder)
    return functools.partial(Toy, folder)


@pytest.fixture(scope="session")
def base_toy(make_toy: Callable[..., Any]) -> Any:
    return make_toy("base", "0b6")


@pytest.fixture(scope="session")
def custom_voice_toy(make_toy: Callable[..., Any]) -> Any:
    return make_toy("custom_voice")


@pytest.fixture(scope="session")
def voice_design_toy(make_toy: Callable[..., Any]) -> Any:
    return make_toy("voice_design")
