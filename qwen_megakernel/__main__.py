"""Runs the command line: python -m qwen_megakernel"""

import sys

try:
    from qwen_megakernel.cli.main import main

    code = main()
except KeyboardInterrupt:  # during the imports; later ones end in `running.run`
    sys.stderr.write("interrupted\n")
    code = 130
sys.exit(code)
