"""Runs the command line: qwen-megakernel, or python -m qwen_megakernel"""

import sys


def main() -> int:
    """Run a command; return its exit code."""
    try:
        from qwen_megakernel import torch_import

        if sys.argv[1:2] and sys.argv[1] in torch_import.COMMANDS and "torch" not in sys.modules:
            torch_import.wait_passively()
            torch_import.begin()
        from qwen_megakernel.cli.main import main as run

        return run()
    except KeyboardInterrupt:  # during the imports; later ones end in `running.run`
        sys.stderr.write("interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
