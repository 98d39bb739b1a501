"""Write the measured tables of the README from the committed result files.

python benchmarks/tables.py            rewrite README.md between its markers
python benchmarks/tables.py --check    exit 1 if that would change it
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def table(results: list[dict]) -> str:
    """One row a result file: what ran where, and its p50 figures."""
    lines = [
        "| model | backend | machine | first frame | first samples | RTF | commit | file |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        p50 = {name: values["p50"] for name, values in result["summary"].items()}
        gpu = result["machine"]["gpu"]
        machine = gpu["name"] if gpu else f"{result['machine']['processor']}, "
        if not gpu:
            machine += f"{result['machine']['cores']} threads"
        weights = " (random weights)" if result["is_synthetic"] else ""
        lines.append(
            f"| {result['model']}{weights} | {result['backend']}, {result['dtype']} | {machine} "
            f"| {p50['first_frame_ms']:.0f} ms | {p50['first_chunk_ms']:.0f} ms "
            f"| {p50['rtf']:.2f} | {result['commit']} | `{result['file']}` |"
        )
    return "\n".join(lines)


def load_results() -> list[dict]:
    """Result files of benchmark.py, by name."""
    found = []
    for path in sorted(RESULTS.glob("benchmark_*.json")):
        found.append(json.loads(path.read_text(encoding="utf-8")) | {"file": path.name})
    return found


def main() -> int:
    """Rewrite or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    new = f"{before}{BEGIN}\n{table(load_results())}\n{END}{after}"
    if args.check:
        return int(new != text)
    readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
