"""Runs the command line: qwen-megakernel, or python -m qwen_megakernel"""

import os
import sys


def main() -> int:
    """Run a command; return its exit code."""
    # Of descriptors that the caller closed, the next files and sockets would get the numbers, and
    # libraries write their complaints to number 2.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    end = None
    try:
        from qwen_megakernel.signals import GracefulExit

        with GracefulExit() as end:  # during the imports; later signals end in `running.run`
            from qwen_megakernel import torch_import

            words = sys.argv[1:2]
            if words and words[0] in torch_import.COMMANDS and "torch" not in sys.modules:
                torch_import.wait_passively()
                torch_import.begin()
            from qwen_megakernel.cli.main import main as run

        return run()
    except (KeyboardInterrupt, ImportError) as error:
        # numpy raises an ImportError of its own for a Ctrl-C that comes while it is imported.
        if isinstance(error, ImportError) and not (end and end.has_come):
            raise
        if sys.stderr:
            sys.stderr.write("interrupted\n")
        return end.exit_code if end else 130


if __name__ == "__main__":
    sys.exit(main())
