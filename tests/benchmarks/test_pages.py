"""benchmarks/pages.py: what is generated is what the committed results say, a GPU's included."""

import json

import pytest

from benchmarks import page_parts, pages, performance_page


@pytest.mark.parametrize("page", pages.PAGES)
def test_a_page_is_what_its_results_say(page):
    assert pages.main([page, "--check"]) == 0, f"run python benchmarks/pages.py {page}"


@pytest.fixture
def document(tmp_path, monkeypatch):
    """A page in another folder, with a table of its own."""
    monkeypatch.setattr(page_parts, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "PAGES", {"page.md": lambda: ["| new |"]})
    return tmp_path / "page.md"


def test_only_what_is_between_the_markers_is_written(document, capsys):
    old = f"Before.\n{page_parts.BEGIN}\n| old |\n{page_parts.END}\nAfter.\n"
    document.write_text(old)
    assert pages.main(["--check"]) == 1 and "out of date: page.md" in capsys.readouterr().err
    assert document.read_text() == old  # a check writes nothing
    assert pages.main([]) == 0
    assert document.read_text() == old.replace("old", "new")
    assert pages.main(["--check"]) == 0


def test_a_page_without_markers_is_written_whole(document):
    document.write_text("old\n")
    assert pages.main(["page.md"]) == 0 and document.read_text() == "| new |\n"


@pytest.mark.parametrize("make", [pages.kernel_ptxas, pages.kernel_mutations])
def test_a_page_of_the_kernel_has_the_rows_it_is_given(make):
    width = len(make([])[-2].split(" | "))
    rows = [["a", *["" for _ in range(width - 1)]], ["b"] * width]
    assert make(rows)[-1] == f"| {' | '.join(rows[1])} |" and make(rows)[:2] == make([])[:2]


def test_a_mutant_that_nothing_explains_is_counted():
    rows = [["a", "b", "yes", "", ""], ["a", "b", "", "", "why"], ["a", "b", "", "", ""]]
    assert "3 mutants, 1 unexplained." in pages.kernel_mutations(rows)[2]


def ok(*rows, **facts):
    """What a step that went well reports."""
    return {"status": "ok", "result": {"rows": rows} | facts}


FRAME_TIMES = {"model": "random-0.6b-base", "streams": 1, "ms_per_frame": 1.2}
FRAME_TIMES |= {"mb_per_frame": 3320.0, "share_of_copy": 0.69}
MEMORY = {"model": "m", "streams": 8, "load_s": 5.0}
MEMORY |= {"peak_memory_mb": {"host": 11.0, "gpu": 22.0, "device": 33.0}}
PEERS = [
    {"model": "m", "system": "qwen-tts", "why_not": "It is not installed."},
    {"model": "m", "system": "graph", "ms_per_frame": {"p50": 4.5}, "times_the_best": 3.75},
]
RESULT = {
    "commit": "abc",
    "created": "2027-01-01",
    "emulation": False,
    "device": {"name": "NVIDIA H200", "driver_version": "600.1"},
    "steps": {
        "frame_times": ok(FRAME_TIMES, copy_gb_per_s=4000.0),
        "peers": ok(*PEERS),
        "memory": ok(MEMORY),
        "million": {"status": "short", "result": {"launches": 412_000, "goal": 1_000_000}},
        "tests": {"status": "timeout", "result": None},
    },
}


@pytest.fixture
def results(tmp_path, monkeypatch):
    for folder, emulation in (("gpu_h200", False), ("gpu_emulation", True)):
        (tmp_path / folder).mkdir()
        found = RESULT | {"emulation": emulation, "commit": "emulated" if emulation else "abc"}
        (tmp_path / folder / "result.json").write_text(json.dumps(found))
    for module in (page_parts, performance_page):
        monkeypatch.setattr(module, "RESULTS", tmp_path)


def test_a_gpus_frames_stand_beside_their_floor_and_goal(results):
    page = "\n".join(pages.performance())
    # 3320 MB at the 4000 GB/s of the same run are 0.83 ms.
    assert "| random-0.6b-base | 1 | 1.200 | 0.830 | 1.446 | 69 % | 1.560 | 1.150 |" in page
    assert "`gpu_h200/result.json`: commit abc, driver 600.1" in page
    assert "million short (412000 of 1000000 launches), tests timeout" in page
    assert "Nothing yet" not in page


def test_memory_is_that_of_a_model_on_the_host_and_on_the_gpu(results):
    assert "| m | 8 | 5.000 | 11.0 | 22.0 | 33.0 |" in pages.performance()


def test_what_was_not_measured_is_a_dash_and_emulation_is_not_shown(results):
    page = "\n".join(pages.performance())
    assert "| m | qwen-tts | – | – |" in page and "| m | graph | 4.500 | 3.750 |" in page
    assert "emulated" not in page


def test_without_a_gpus_result_the_page_tells_the_commands(tmp_path, monkeypatch):
    for module in (page_parts, performance_page):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    page = "\n".join(pages.performance())
    assert "tools/gpu_check.sh --set listeners" in page and "no GPU was at hand" in page


def test_the_plot_is_drawn(results, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "floors.png"
    pages.plot(str(path))
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


# ---- machines ----------------------------------------------------------------------------------

CALM = {
    "processor": "AMD EPYC (family 26, model 2)",
    "instruction_sets": ["avx2", "avx512f", "avx512_vnni", "avx512_bf16"],
    **{"cores": 2, "online_cores": 4, "gpu": None, "torch": "2.13.0"},
    **{"load_before_run": 1.9, "stolen_share": 0.04, "read_bandwidth_gb_s": 40.0},
}
OLD = {"processor": "AMD EPYC", "cores": 2, "gpu": None, "load_1min": 0.1}
DISTURBED, UNKNOWN = page_parts.FOOTNOTES.values()


@pytest.fixture
def voices(tmp_path, monkeypatch):
    """voices(machine, **facts): the table of one result file of `measure.py voices`."""
    monkeypatch.setattr(page_parts, "RESULTS", tmp_path)

    def voices(machine, **facts):
        names = ("x_vector_ms", "codec_ms", "cached_voice_ms")
        found = {"model": "m", "is_synthetic": False, "commit": "abc", "machine": machine}
        found["summary"] = {name: {"p50": 1.0} for name in names}
        (tmp_path / "voices_x.json").write_text(json.dumps(found | facts))
        return pages.voices_table()

    return voices


def test_figures_of_a_calm_machine_are_not_marked(voices):
    row = voices(CALM)[-1]
    assert "| AMD EPYC (family 26, model 2), 2 cores, avx512_vnni avx512_bf16 |" in row
    assert "decoder in avx2 |" in voices(CALM, instruction_set="avx2")[-1]
    assert ", avx2 |" in voices(CALM | {"instruction_sets": ["avx2"]})[-1]


@pytest.mark.parametrize(
    "disturbed", [{"load_before_run": 2.1}, {"stolen_share": 0.06}, {"online_cores": 2}]
)
def test_figures_of_a_busy_machine_are_marked_and_the_mark_is_explained(voices, disturbed):
    *_, row, empty, note = voices(CALM | disturbed)
    assert "bf16 † |" in row and (empty, note) == ("", DISTURBED)
    assert "load average above 0.5 per core" in note and "5 %" in note


def test_what_older_files_lack_is_not_recorded(voices):
    *_, row, empty, note = voices(OLD)
    assert "| AMD EPYC, 2 cores, instruction sets not recorded ‡ |" in row
    assert (empty, note) == ("", UNKNOWN)
    assert voices(CALM | {"stolen_share": None})[-1] == UNKNOWN
    assert voices(OLD | {"load_before_run": 1.1})[-1] == DISTURBED


def test_a_gpus_host_is_named_and_marked_too(results):
    lines = performance_page.measured_gpu("NVIDIA H200", [RESULT | {"file": "f"}])
    assert "Host: not recorded ‡" in lines[2] and lines[4] == UNKNOWN
    busy = RESULT | {"file": "f", "machine": CALM | {"load_before_run": 9}}
    lines = performance_page.measured_gpu("NVIDIA H200", [busy])
    assert "Host: AMD EPYC" in lines[2] and lines[4] == DISTURBED
