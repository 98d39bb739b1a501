"""Build the package, which pyproject.toml describes.

`csrc/` lies beside the package and ships inside it, to be compiled at first use.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
KERNEL_SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "csrc").rglob("*")
    if path.suffix in (".cu", ".cuh", ".h", ".cpp")
)


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


setup(cmdclass={"build_py": BuildWithKernel})
