"""The program that writes the documents' tables: python benchmarks/pages.py [PAGE] [--check].

It writes whole pages, or what is between two markers of a page, from the committed result files.
The two pages about the kernel have no such file: the tools that compile the kernel pass their rows
to `write`, and this program keeps those rows and writes the words around them.

python benchmarks/pages.py --plot FILE    draw floors and measured frames (needs [plots])
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs as a script from anywhere

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads it when it is imported

from benchmarks import kernel_pages, option_types, precision_page, result_tables, voice_card
from benchmarks.page_parts import write
from benchmarks.performance_page import performance, plot
from qwen_megakernel.cli import parsing

PAGES: dict[str, Callable[[], list[str]]] = {
    "README.md": result_tables.speech_table,
    "docs/voices.md": result_tables.voices_table,
    "docs/pipecat.md": result_tables.pipecat_table,
    "docs/operations.md": result_tables.load_table,
    "docs/serving.md": result_tables.server_table,
    "docs/performance.md": performance,
    "docs/performance-journey.md": result_tables.what_is_left,
    "docs/precision.md": precision_page.precision,
    "docs/marking.md": result_tables.marks,
    "docs/speech-control.md": result_tables.speech_control,
    "docs/coreml.md": result_tables.coreml,
    "docs/finetune.md": result_tables.fine_tuning,
    "qwen_megakernel/assets/demo-voice/MODEL_CARD.md": voice_card.model_card,
    kernel_pages.PTXAS: kernel_pages.kernel_ptxas,
    kernel_pages.MUTATIONS: kernel_pages.kernel_mutations,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Write, check or draw; return 1 if --check finds a page that is out of date."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add("page PAGE", f"one of {', '.join(PAGES)}", PAGES, nargs="?")
    add("--check", "write nothing; exit 1 if out of date", bool)
    add(
        "--plot FILE",
        "draw the floors of docs/performance.md instead of writing (needs the [plots] extra)",
        option_types.plot_file,
    )
    args = parser.parse_args(argv)
    if args.plot:
        plot(args.plot)
        return 0
    pages = [args.page] if args.page else list(PAGES)
    stale = [page for page in pages if write(page, PAGES[page](), check=args.check)]
    if args.check and stale:
        print(f"out of date: {', '.join(stale)}; run python benchmarks/pages.py", file=sys.stderr)
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
