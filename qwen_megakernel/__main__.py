"""Runs the command line: python -m qwen_megakernel"""

import sys

from qwen_megakernel.cli.main import main

sys.exit(main())
