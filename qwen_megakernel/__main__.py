"""python -m qwen_megakernel"""

import sys

from qwen_megakernel.cli import main

sys.exit(main())
