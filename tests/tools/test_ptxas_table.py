"""The figures from ptxas' reports, and the rows of the page that a partial run keeps."""

from benchmarks import kernel_pages
from qwen_megakernel.decoders.kernel import build
from tools.kernel_study import ptxas_table as tool

# An entry as nvcc 13.0 prints it.
ENTRY = """
ptxas info    : Compiling entry function '_ZN8qwen_tts{name}ENS_10StepParamsE' for 'sm_90a'
ptxas info    : Function properties for _ZN8qwen_tts{name}ENS_10StepParamsE
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers
"""


def test_each_kernel_of_a_log_is_found_with_its_registers_and_spills():
    entries = {
        "15few_step_kernel": (0, 0, 0, 125),
        "11step_kernel": (0, 0, 0, 128),
        "14forward_kernel": (16, 12, 8, 127),
    }
    log = "".join(
        ENTRY.format(name=name, stack=stack, stores=stores, loads=loads, registers=registers)
        for name, (stack, stores, loads, registers) in entries.items()
    )
    found = tool.ENTRY.findall(log)
    assert [row[0] for row in found] == ["few_step", "step", "forward"]
    assert [tuple(map(int, row[1:])) for row in found] == list(entries.values())


def test_a_run_of_some_builds_replaces_their_rows_and_no_others(monkeypatch):
    page = [
        [m, w, a, "step", "old"]
        for m in tool.MODELS
        for w in tool.WEIGHTS
        for a in build.ARCHITECTURES
    ]
    page.append(["random-0.6b", "bf16", "sm_70", "step", "of an architecture that is gone"])
    monkeypatch.setattr(kernel_pages, "rows_of", lambda name: page)
    made = [["random-0.6b", "int8", "sm_86", kernel, "new"] for kernel in ("few_step", "step")]
    rows = tool.with_others(made)
    assert [row for row in rows if row[4] == "new"] == made and len(rows) == 36 - 1 + 2
    builds = list(dict.fromkeys(tuple(row[:3]) for row in rows))
    assert builds == [tuple(row[:3]) for row in page[:-1]]


def test_no_kernel_of_the_page_spills():
    rows = kernel_pages.rows_of(kernel_pages.PTXAS)
    builds = {tuple(row[:3]) for row in rows}
    assert len(builds) == len(tool.MODELS) * len(tool.WEIGHTS) * len(build.ARCHITECTURES)
    assert all(row[6:8] == ["0", "0/0"] for row in rows)
