"""benchmarks/pages.py: pages agree with the committed results, also with those of a GPU."""

import json

import pytest

from benchmarks import (
    cpu_page,
    kernel_pages,
    page_parts,
    pages,
    performance_page,
    result_tables,
    voice_card,
)
from qwen_megakernel.decoders.backends import choose_backend


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


def test_word_times_have_a_row_for_each_position_once_they_are_taken(plant):
    without = result_tables.speech_control()
    figures = {
        "by_letters_ms": {"p50": 108.4, "p95": 335.0},
        "found_ms": {"p50": 10.2, "p95": 59.6},
    }
    row = {"speech": "drawn", "position": "all", "words": 1377} | figures
    plant("word_times_cpu.json", rows=[row, row | {"position": "first"}])
    lines = result_tables.speech_control()
    assert lines[: len(without)] == without
    added = lines[len(without) :]
    cells = "| drawn | 1377 | {} | 108 / 335 ms | 10 / 60 ms |"
    assert [line for line in added if "drawn" in line] == [*map(cells.format, ("all", "first"))]
    assert "`word_times_cpu.json` at commit abc" in " ".join(added)


@pytest.mark.parametrize("make", [kernel_pages.kernel_ptxas, kernel_pages.kernel_mutations])
def test_a_page_of_the_kernel_has_the_rows_it_is_given(make):
    width = len(make([])[-2].split(" | "))
    rows = [["a", *["" for _ in range(width - 1)]], ["b"] * width]
    assert make(rows)[-1] == f"| {' | '.join(rows[1])} |" and make(rows)[:2] == make([])[:2]


def test_a_mutant_that_nothing_explains_is_counted():
    rows = [["a", "b", "yes", "", ""], ["a", "b", "", "", "why"], ["a", "b", "", "", ""]]
    assert "3 mutants, 1 unexplained." in kernel_pages.kernel_mutations(rows)[2]


def ok(*rows, **facts):
    return {"status": "ok", "result": {"rows": rows} | facts}


FRAME_TIMES = {"model": "random-0.6b-base", "streams": 1, "ms_per_frame": 1.2}
FRAME_TIMES |= {"mb_per_frame": 3320.0, "share_of_copy": 0.69}
MEMORY = {"model": "m", "streams": 8, "load_s": 5.0}
MEMORY |= {"peak_memory_mb": {"host": 11.0, "gpu": 22.0, "device": 33.0}}
PEERS = [
    {"model": "m", "system": "qwen-tts", "why_not": "It is not installed."},
    {"model": "m", "system": "graph", "ms_per_frame": {"p50": 4.5}, "times_the_best": 3.75},
]
EXCHANGE = {"kind": "exchange", "floats": 1024, "in_flight_kb": 48}
EXCHANGE |= {"barrier_us": 3.17, "sentinel_us": 3.56, "flagged_us": 3.4, "wrong": 0}
RESULT = {
    "commit": "abc",
    "created": "2027-01-01",
    "emulation": False,
    "device": {"name": "NVIDIA H200", "driver_version": "600.1"},
    "steps": {
        "microbenchmark": ok({"kind": "copy", "gb_per_s": 4000.0}, EXCHANGE),
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
    monkeypatch.setattr(page_parts, "RESULTS", tmp_path)


def test_a_gpus_figures_have_their_tables_and_those_of_emulation_none(results):
    lines = performance_page.performance()
    page = "\n".join(lines)
    # 3320 MB at the 4000 GB/s of the same run are 0.83 ms.
    assert "| random-0.6b-base | 1 | 1.200 | 0.830 | 1.446 | 69 % | 1.560 | 1.150 |" in page
    assert "`gpu_h200/result.json`: commit abc, driver 600.1" in page
    assert "million short (412000 of 1000000 launches), tests timeout" in page
    # Of the microbenchmark only exchanges.
    assert "|---|---|---|---|---|\n| 1024 | 48 | 3.170 | 3.560 | 3.400 |\n\n" in page
    assert "| m | 8 | 5.000 | 11.0 | 22.0 | 33.0 |" in lines
    # What was not measured is a dash.
    assert "| m | qwen-tts | – | – |" in page and "| m | graph | 4.500 | 3.750 |" in page
    assert "emulated" not in page


def test_the_readme_has_a_gpus_frames_and_its_first_samples(results, tmp_path):
    frames = [
        {"model": "m", "backend": "kernel", "streams": 1, "ms_per_frame": 2.5},
        {"model": "m", "backend": "kernel", "streams": 32, "ms_per_frame": 10.0},
    ]
    frames = [
        row | {"times_real_time": 80 * row["streams"] / row["ms_per_frame"]} for row in frames
    ]
    waits = [
        {"model": "m", "backend": "kernel", "stage": stage, "ms": {"p50": ms}}
        for stage, ms in (("request 1 cold", 6000.0), ("first_chunk", 7.0))
    ]
    steps = {"batch_curve": ok(*frames), "first_sound": ok(*waits)}
    (tmp_path / "gpu_h200" / "result.json").write_text(json.dumps(RESULT | {"steps": steps}))
    rows = [line for line in result_tables.gpu_table() if "kernel" in line]
    assert rows == [
        "| `kernel` | m (random weights) | 2.50 ms | – | 32: 256 x real time | 7.00 ms |"
    ]


def test_the_plot_is_drawn(results, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "floors.png"
    performance_page.plot(str(path))
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


# ---- machines ----------------------------------------------------------------------------------

CALM = {
    "processor": "AMD EPYC (family 26, model 2)",
    "instruction_sets": ["avx2", "avx512f", "avx512_vnni", "avx512_bf16"],
    **{"cores": 2, "online_cores": 4, "gpu": None, "torch": "2.13.0"},
    **{"load_before_run": 1.9, "stolen_share": 0.04, "read_bandwidth_gb_s": 40.0},
}
# A machine whose system does not report its load or the time that its host stole.
SILENT = CALM | {
    **{"processor": "Apple M4", "instruction_sets": ["neon"], "online_cores": None},
    **{"load_before_run": None, "stolen_share": None},
}
DISTURBED, UNKNOWN = page_parts.FOOTNOTES.values()


@pytest.fixture
def voices(plant):
    """voices(machine, **facts): the table of one result file of `measure.py voices`."""

    def voices(machine, **facts):
        names = ("x_vector_ms", "codec_ms", "cached_voice_ms")
        summary = {name: {"p50": 1.0} for name in names}
        plant("voices_x.json", machine=machine, summary=summary, **facts)
        return result_tables.voices_table()

    return voices


def test_figures_of_a_calm_machine_are_not_marked(voices):
    _, _, row, empty, source = voices(CALM)
    assert row == "| m | 1 ms | 1 ms | 1.0 ms |" and not empty
    assert source == (
        "On AMD EPYC (family 26, model 2), 2 cores, avx512_vnni avx512_bf16. "
        "From `voices_x.json` at commit abc."
    )
    assert "bf16; native code in avx2. From" in " ".join(voices(CALM, instruction_set="avx2"))
    assert ", avx2. From" in voices(CALM | {"instruction_sets": ["avx2"]})[-1]


@pytest.mark.parametrize(
    "disturbed", [{"load_before_run": 2.1}, {"stolen_share": 0.06}, {"online_cores": 2}]
)
def test_figures_of_a_busy_machine_are_marked_and_the_mark_is_explained(voices, disturbed):
    _, _, row, *_, empty, note = voices(CALM | disturbed)
    assert row.startswith("| m † |") and (empty, note) == ("", DISTURBED)
    assert "load average above 0.5 per core" in note and "5 %" in note


def test_a_load_that_the_system_does_not_tell_is_marked_as_unknown(voices):
    _, _, row, _, source, empty, note = voices(SILENT)
    assert row.startswith("| m ‡ |") and (empty, note) == ("", UNKNOWN)
    assert source.startswith("On Apple M4, 2 cores, neon. From")
    assert voices(CALM | {"stolen_share": None})[-1] == UNKNOWN
    assert voices(SILENT | {"load_before_run": 1.1})[-1] == DISTURBED


def sourced(*results):
    """The lines of a table with a row for each result."""
    rows = [({"commit": "abc", "machine": CALM} | result, [result["file"]]) for result in results]
    return page_parts.sourced_table(["name"], rows)


def test_a_table_of_one_machine_names_it_once_and_every_file_once():
    files = [{"file": "a"}, {"file": "a"}, {"file": "b", "commit": "def"}, {"file": "c"}]
    lines = sourced(*files)
    assert lines[:2] == ["| name |", "|---|"]
    assert lines[2:6] == ["| a |", "| a |", "| b |", "| c |"] and not lines[6]
    assert " ".join(lines[7:]).endswith("From `a`, `c` at commit abc; `b` at commit def.")


def test_rows_of_several_machines_name_theirs_by_a_letter():
    lines = sourced(
        {"file": "a", "instruction_set": "avx2"}, {"file": "b", "machine": SILENT}, {"file": "c"}
    )
    assert lines[0] == "| name | machine |"
    assert lines[2:5] == ["| a | A |", "| b ‡ | B |", "| c | A |"]
    cpu = "AMD EPYC (family 26, model 2), 2 cores, avx512_vnni avx512_bf16"
    assert lines[5:8] == [
        "",
        f"- A: {cpu}; native code in avx2. From `a`, `c` at commit abc.",
        "- B: Apple M4, 2 cores, neon. From `b` at commit abc.",
    ]
    assert lines[8:] == ["", UNKNOWN]


def test_rows_of_several_instruction_sets_name_theirs():
    lines = sourced(
        {"file": "a", "instruction_set": "avx2"},
        {"file": "b", "instruction_set": "neon"},
        {"file": "c"},
    )
    assert lines[0] == "| name | native code |"
    assert lines[2:5] == ["| a | avx2 |", "| b | neon |", "| c | – |"]
    assert "native code" not in " ".join(lines[5:])


def test_a_paragraph_is_broken_at_120_columns_and_never_in_code():
    code = f"`{'x ' * 30}`"
    lines = page_parts.paragraph(f"{'word ' * 20}{code} and {code}, {'word ' * 20}", "  ")
    assert len(lines) == 4 and all(len(line) <= page_parts.COLUMNS for line in lines)
    assert all(line.startswith("  ") for line in lines[1:])
    assert all(line.count("`") % 2 == 0 for line in lines)
    assert not lines[0].endswith(" ") and " ".join(lines).count("word") == 40


def test_a_gpus_host_is_named_and_marked_too(results):
    lines = performance_page.measured_gpu("NVIDIA H200", [RESULT | {"file": "f"}])
    assert "Host: not recorded ‡" in lines[2] and lines[4] == UNKNOWN
    busy = RESULT | {"file": "f", "machine": CALM | {"load_before_run": 9}}
    lines = performance_page.measured_gpu("NVIDIA H200", [busy])
    assert "Host: AMD EPYC" in lines[2] and lines[4] == DISTURBED


@pytest.mark.parametrize(
    ("module", "make"), [(result_tables, "coreml"), (voice_card, "model_card")]
)
def test_a_page_of_one_result_names_its_machine(module, make, monkeypatch):
    real = page_parts.load_result
    monkeypatch.setattr(module, "load_result", lambda name: real(name) | {"machine": CALM})
    assert page_parts.machine_of({"machine": CALM}) in " ".join(getattr(module, make)())


def test_what_is_left_is_of_the_decoder_that_auto_takes(plant):
    decoder = {"model": "m", "is_synthetic": True, "streams": 1, "instruction_set": "avx2"}
    rows = [
        decoder
        | {"backend": backend, "weights": weights, "times_the_floor": ms / 80}
        | {"ms_per_frame": spread(ms, ms)}
        for backend, weights, ms in (("torch", "stored", 170.0), ("cpu", "stored", 76.0))
    ]
    rows.append(rows[1] | {"weights": "int8", "ms_per_frame": spread(43.21, 50)})
    plant("decode_cpu_random-0.6b.json", rows=[rows[0] | {"streams": 2}, *rows])
    speech = {
        f"{part}_ms_per_frame": spread(ms, 1) for part, ms in (("decode", 75), ("vocoder", 12))
    }
    speech |= {"instruction_set": "avx2", "machine": SILENT}
    other = {"backend": "torch", "decode_ms_per_frame": spread(1, 1)}
    machine = CALM | {"load_before_run": 5}
    plant("speech_cpu_random-0.6b.json", rows=[other, speech | {"backend": "cpu"}], machine=machine)
    told = " ".join(result_tables.what_is_left())
    assert "`auto` uses the native decoder: a frame of m (random weights) takes 0.95 times" in told
    assert "76.0 ms; with PyTorch's decoder it takes 170" in told and "43.2 ms in int8" in told
    assert "decoding takes 75.0 ms and its vocoder 12.0" in told
    assert told.count("avx512_bf16, decoder in avx2") == 2 and "decoder in avx2 †" in told
    assert told.endswith(DISTURBED)
    assert choose_backend("auto", "cpu").name == "cpu"


# ---- digits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "numbers", "told"),
    [
        (page_parts.digits, (0.0038, 2.34, 16.38, 605.4, 2192.2), "0.00380 2.34 16.4 605 2192"),
        (page_parts.cell, (0.0038, 0.068, 0.13, 16.38, 0.0), "0.0038 0.068 0.130 16.4 0.000"),
    ],
)
def test_figures_have_three_digits_and_cells_are_not_rounded_to_nothing(write, numbers, told):
    assert " ".join(map(write, numbers)) == told


# ---- tables of a CPU ---------------------------------------------------------------------------


@pytest.fixture
def plant(tmp_path, monkeypatch):
    """plant(name, **facts): the only result file, of a calm machine."""
    monkeypatch.setattr(page_parts, "RESULTS", tmp_path)

    def plant(name, **facts):
        found = {"model": "m", "is_synthetic": False, "commit": "abc", "machine": CALM}
        (tmp_path / name).write_text(json.dumps(found | facts))

    return plant


def spread(p50, p95):
    return {"mean": p50, "p50": p50, "p95": p95}


def test_threads_of_both_backends_stand_in_one_table(plant):
    case = {"model": "demo-voice", "is_synthetic": False, "dtype": "float32", "busy": 2}
    case |= {"first_chunk_ms": spread(2.34, 3.0), "rtf": spread(0.0131, 0.2)}
    native = {"backend": "cpu", "threads": 2, "waiting": "native", "instruction_set": "avx2"}
    torch = {"backend": "torch", "threads": 1, "waiting": "passive"}
    plant("threads_cpu_x.json", rows=[case | native, case | torch])
    lines = cpu_page.threads_table()
    figures = "2.34 ms | 3.00 ms | 0.0131 | 0.200 |"
    assert f"| demo-voice | cpu | 2 | 2 | native | {figures}" in lines
    assert f"| demo-voice | torch | 2 | 1 | – | {figures}" in lines
    told = " ".join(lines)
    assert told.count("AMD EPYC") == 1 and "; native code in avx2. From" in told


def test_streams_have_digits_enough_for_a_fast_decoder(plant):
    summary = {f"{part}_ms_per_frame": spread(0.0192, 1) for part in cpu_page.PARTS}
    summary |= {"rtf": spread(0.0038, 1)}
    plant("streams_cpu_x.json", dtype="float32", settings={"streams": 8}, summary=summary)
    row = "| m | float32 | 8 | 0.00380 | 0.0192 | 0.0192 | 0.0192 |"
    assert row in cpu_page.streams_table()


def test_listeners_of_a_cpu_have_their_table(plant):
    row = {"requests": 12, "busy": 2, "first_chunk_ms": spread(4.5, 120.4)}
    row |= {"underruns": 0.25, "underruns_100ms": 0.0}
    rows = [row | {"listeners": 8}, row | {"rps": 0.5}]
    plant("listeners_cpu_x.json", backend="cpu", threads=2, instruction_set="avx2", rows=rows)
    lines = cpu_page.listeners_table()
    figures = "| 2 | 4.50 ms | 120 ms | 25.0 % | 0.0 % | 12 |"
    listeners = f"| m | cpu | 2 | 8 listeners {figures}"
    assert listeners in lines and f"| m | cpu | 2 | 0.5 a second {figures}" in lines
    assert listeners in performance_page.performance()


DECODED = {"model": "m", "weights": "int8", "floor_ms_per_frame": 80.0, "times_the_floor": 0.95}
DECODED |= {"ms_per_frame": spread(76.0, 90.0)}


def test_a_decoder_has_its_frames_and_its_loading_in_two_tables(plant):
    once = {"load_s": 1.234, "private_mb": 23.4}
    once |= {f"prompt_{length}_ms": spread(length, 1) for length in (10, 110)}
    native = DECODED | {"backend": "cpu", "instruction_set": "avx2"}
    rows = [native | {"streams": 1} | once, native | {"streams": 8}]
    rows.append(DECODED | {"backend": "torch", "streams": 1} | once)
    rows.append(native | {"streams": 2} | once | {"private_mb": -10.4})
    plant("decode_cpu_x_avx2.json", rows=rows)
    lines = cpu_page.decode_tables()
    for backend, streams in (("cpu", 1), ("cpu", 8), ("torch", 1), ("cpu", 2)):
        assert f"| m | int8 | {backend} | {streams} | 76.0 | 90.0 | 80.0 | 0.95 |" in lines
    assert "| m | int8 | cpu | 10.0 ms | 110 ms | 1.2 s | 23 MB |" in lines
    assert "| m | int8 | torch | 10.0 ms | 110 ms | 1.2 s | – |" in lines
    assert "| m | int8 | cpu | 10.0 ms | 110 ms | 1.2 s | under 1 MB |" in lines
    assert sum(line.startswith("| m |") for line in lines) == 7


def test_code_that_was_forced_to_avx2_stands_beside_the_best_of_the_machine(plant):
    for name, code in (("x", "avx512_vnni"), ("x_avx2", "avx2")):
        row = DECODED | {"backend": "cpu", "streams": 1, "instruction_set": code}
        plant(f"decode_cpu_{name}.json", rows=[row])
    figures = "| m | int8 | cpu | 1 | 76.0 | 90.0 | 80.0 | 0.95 |"
    lines = cpu_page.decode_tables()
    assert [f"{figures} {code} |" in lines for code in ("avx2", "avx512_vnni")] == [True, True]
    assert " ".join(lines).count("AMD EPYC") == 1


def test_more_cores_divide_the_vocoder_alone(plant):
    times = {"decode": 40.0, "vocoder": 40.0}
    row = {f"{part}_ms_per_frame": spread(ms, 1) for part, ms in times.items()}
    row |= {name: spread(90, 1) for name in ("first_frame_ms", "first_chunk_ms", "rtf")}
    row |= {"model": "m", "threads": 2, "machine": SILENT}
    rows = [row | {"backend": backend} for backend in ("cpu", "torch")]
    plant("speech_cpu_x.json", settings={"weights": "int8"}, rows=rows)
    lines = cpu_page.speech_tables()
    for backend in ("cpu", "torch"):
        assert f"| m | int8 | {backend} | 2 | 90.0 ms | 90.0 ms | 90.0 | 40.0 | 40.0 |" in lines
    assert [line for line in lines if "0.750" in line] == ["| m | int8 | 1.00 | 0.750 | 0.625 |"]


def test_the_servers_of_other_engines_stand_beside_this_one(plant):
    row = {"weights": "int8", "rtf": spread(0.9, 1), "first_sound_ms": spread(800, 1)}
    row |= {"ready_s": spread(2, 1), "peak_mb": spread(1300, 1)}
    others = {"engine": "B, commit 1", "page": "example.org/b"}
    rows = [row | {"engine": "this project", "page": ""}, row | others]
    plant("servers_cpu_x.json", rows=rows)
    lines = cpu_page.servers_table()
    linked = "[B, commit 1](https://example.org/b)"
    for engine in ("this project", linked):
        assert f"| {engine} | m | int8 | 0.900 | 800 ms | 2.00 s | 1300 MB |" in lines
    others = [line for line in result_tables.speech_table() if "800 ms" in line]
    assert len(others) == 1 and others[0].startswith(f"| {linked} | m, int8 | 0.900 | 800 ms |")


def test_the_readme_names_the_file_of_its_listeners(plant):
    names = {"first_chunk_ms": spread(2, 1), "first_audible_ms": spread(62, 1)}
    figures = {"rtf": spread(0.5, 1)} | names
    plant("benchmark_x.json", backend="cpu", dtype="float32", command="", summary=figures)
    rows = [
        {"listeners": count, "busy": 0, "underruns_100ms": share}
        for count, share in ((8, 0.0), (16, 0.0), (32, 0.1))
    ]
    plant("listeners_cpu_m.json", rows=rows, machine=CALM | {"load_before_run": 9})
    lines = result_tables.speech_table()
    assert "| this project, `cpu` | m, float32 | 0.500 | 2.00 ms | 62.0 ms | 16 |" in lines
    told = " ".join(lines)
    assert "buffered: `listeners_cpu_m.json` at commit abc, AMD EPYC" in told and "bf16 †." in told
    assert lines[-1] == DISTURBED
