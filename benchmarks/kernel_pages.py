"""The two pages about the kernel, with rows from the tools that compile it."""

from benchmarks.page_parts import ROOT, table


def rows_of(page: str) -> list[list[str]]:
    """Return the rows of the only table of a page, as they are."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return [line[2:-2].split(" | ") for line in lines if line.startswith("|")][2:]


def kernel_ptxas(rows: list[list[str]] | None = None) -> list[str]:
    """Return docs/kernel_ptxas.md, with the rows of tools/kernel_study/ptxas_table.py."""
    rows = rows_of(PTXAS) if rows is None else rows
    columns = ["model", "weights", "arch", "kernel", "threads", "registers", "stack"]
    return [
        "# What ptxas reports",
        "",
        "`tools/kernel_study/ptxas_table.py` writes this page, for bf16 weights and int8 layers.",
        "CPU s is the compiler's time for all kernels of an architecture. A dash means that they",
        "were in the cache. Builds without a row for few_step were made from older sources. In the",
        "present ones, few_step_kernel decodes one to four streams, and step_kernel more.",
        "",
        *table([*columns, "spill stores/loads", "CPU s"], rows),
    ]


def kernel_mutations(rows: list[list[str]] | None = None) -> list[str]:
    """Return docs/kernel_mutations.md, with the rows of tools/kernel_study/mutate_kernel.py."""
    rows = rows_of(MUTATIONS) if rows is None else rows
    unexplained = sum(not any(row[2:]) for row in rows)
    columns = ["where", "removed", "other codes or failure", "ThreadSanitizer", "if unnoticed: why"]
    return [
        "# What happens when a synchronisation is removed",
        "",
        "`tools/kernel_study/mutate_kernel.py` writes this page: "
        f"{len(rows)} mutants, {unexplained} unexplained.",
        "",
        *table(columns, rows),
    ]


PTXAS, MUTATIONS = "docs/kernel_ptxas.md", "docs/kernel_mutations.md"
