"""docs/performance.md, the tables that were measured on a CPU."""

from typing import Any

from benchmarks.page_parts import (
    FRAME_MS,
    Rows,
    digits,
    load_results,
    model_of,
    not_native,
    paragraph,
    sourced_table,
    value,
)

# The parts of a frame, by their names in `measure.py streams`.
PARTS = ("decode", "vocoder", "overhead")


def measured_cpu() -> list[str]:
    """Return all tables of a CPU, in the order of the page."""
    return [
        *speech_tables(),
        *decode_tables(),
        *vocoder_table(),
        *streams_table(),
        *listeners_table(),
        *threads_table(),
        *start_table(),
        *processes_table(),
        *mapped_table(),
        *servers_table(),
        *texts_tables(),
        *bandwidth_table(),
    ]


def section(title: str, note: str, columns: list[str], rows: Rows) -> list[str]:
    """Return a heading, a paragraph and a table; [] if there are no rows."""
    if not rows:
        return []
    return [f"### {title}", "", *paragraph(note), "", *sourced_table(columns, rows), ""]


def milliseconds(spreads: dict[str, float], *ranks: str) -> list[str]:
    return [f"{digits(spreads[rank])} ms" for rank in ranks]


def speech_tables() -> list[str]:
    """Compare whole speeches of both backends (`measure.py cpu-speech`); calculate more cores."""
    rows: Rows = []
    with_cores: Rows = []
    for result in load_results("speech_cpu_*.json"):
        for row in result["rows"]:
            weights = result["settings"]["weights"]
            decode, vocoder = (row[f"{part}_ms_per_frame"]["p50"] for part in PARTS[:2])
            cells = [row["model"], weights, row["backend"], row["threads"]]
            for name in ("first_frame_ms", "first_chunk_ms"):
                cells += milliseconds(row[name], "p50")
            cells += [digits(row["rtf"]["p50"]), digits(decode), digits(vocoder)]
            rows.append((row | result, cells))
            if row["backend"] == "cpu":
                times = (decode + vocoder * row["threads"] / cores for cores in CORES)
                cells = [row["model"], weights, *(digits(ms / FRAME_MS) for ms in times)]
                with_cores.append((row | result, cells))
    columns = ["model", "weights", "backend", "threads", "first frame", "first samples", "RTF"]
    columns += ["decode, ms a frame", "vocoder, ms a frame"]
    return section(
        "A whole speech",
        "The native decoder (`cpu`) and PyTorch's (`torch`) speak alternately in one process; p50. "
        "RTF is the real-time factor, seconds of computing for one second of speech.",
        columns,
        rows,
    ) + section(
        "With more cores (calculated, not measured)",
        "This table gives the real-time factor of one stream with more cores and the same memory. "
        "Decoding takes the same time, because two cores already read at the speed of this memory; "
        "the vocoder's time is divided among the cores. Faster memory shortens decoding.",
        ["model", "weights", *(f"{cores} cores" for cores in CORES)],
        with_cores,
    )


CORES = (2, 4, 8)


def decode_tables() -> list[str]:
    """Compare the CPU decoder with the memory and PyTorch, from `measure.py cpu-decode`."""
    frames: Rows = []
    once: Rows = []
    for result in load_results("decode_cpu_*.json"):
        for row in result["rows"]:
            name = [row["model"], row["weights"], row["backend"]]
            times = [digits(row["ms_per_frame"][rank]) for rank in ("p50", "p95")]
            floor = [digits(row["floor_ms_per_frame"]), f"{row['times_the_floor']:.2f}"]
            frames.append((result | row, [*name, row["streams"], *times, *floor]))
            if "load_s" in row:
                prompts = (row[f"prompt_{length}_ms"] for length in (10, 110))
                cells = [*name, *(ms for spreads in prompts for ms in milliseconds(spreads, "p50"))]
                cells.append(f"{digits(row['load_s'], 2)} s")
                private = row["private_mb"] if row["backend"] == "cpu" else None
                if private is not None:  # negative if more memory was freed than taken
                    private = f"{private:.0f} MB" if private >= 1 else "under 1 MB"
                cells.append(private)
                once.append((result | row, cells))
    return section(
        "Decoding a frame",
        "Times are milliseconds for a frame of all streams together; both backends run alternately "
        "in one process. The floor is the time in which numpy reads a frame's weights, measured in "
        "the same run.",
        ["model", "weights", "backend", "streams", "p50", "p95", "floor", "times the floor"],
        frames,
    ) + section(
        "Loading, and prompts",
        "Prompts have 10 and 110 positions (p50), and loading includes quantising. Memory is that "
        "of the process alone. It has the packed weights, too, which are not counted; each process "
        "has its own, unless it maps a converted file.",
        ["model", "weights", "backend", "prompt 10", "prompt 110", "load", "private"],
        once,
    )


def vocoder_table() -> list[str]:
    """Compare the vocoders of a CPU, from `measure.py vocoder`."""
    rows: Rows = []
    for result in load_results("vocoder_cpu_*.json"):
        for row in result["rows"]:
            times = [digits(row["ms_per_frame"][name]) for name in ("p50", "best")]
            cells = [result["model"], result.get("weights"), row["vocoder"], row["chunk_frames"]]
            rows.append((result, [*cells, *times, value(result, "read_bandwidth_gb_s.p50")]))
    return section(
        "The vocoder",
        "PyTorch's vocoder (`torch`), the native one (`native`), and the native one without fast "
        "convolutions along time (`direct`) run alternately with two threads. Before every chunk "
        "the native decoder draws its frames, with the weights of the second column (–: it draws "
        "none).",
        [
            *("model", "weights", "vocoder", "frames of a chunk", "ms a frame, p50", "at best"),
            "memory reads, GB/s",
        ],
        rows,
    )


def streams_table() -> list[str]:
    """Show streams side by side, with the engine's own part, from `measure.py streams`."""
    rows: Rows = []
    for result in load_results("streams_cpu_*.json"):
        summary = result["summary"]
        figures = [summary["rtf"], *(summary[f"{part}_ms_per_frame"] for part in PARTS)]
        cells = [result["model"], result["dtype"], result["settings"]["streams"]]
        rows.append((result, [*cells, *(digits(spreads["p50"]) for spreads in figures)]))
    return section(
        "Streams at once",
        "Times are for one frame of each stream, p50; overhead is all time in neither decoder nor "
        "vocoder.",
        ["model", "precision", "streams", "RTF of all", *(f"{part}, ms" for part in PARTS)],
        rows,
    )


def listeners_table() -> list[str]:
    """Show listeners that play the speech, and requests at random times, next to busy programs,
    from `measure.py open-loop` on a CPU."""
    rows: Rows = []
    for result in load_results("listeners_cpu_*.json"):
        for row in result["rows"]:
            if "rps" in row:
                load = f"{row['rps']:g} a second"
            else:
                load = f"{row['listeners']} listener{'s' if row['listeners'] > 1 else ''}"
            cells = [result["model"], result["backend"], result["threads"], load, row["busy"]]
            cells += milliseconds(row["first_chunk_ms"], "p50", "p95")
            cells += [f"{100 * row[name]:.1f} %" for name in ("underruns", "underruns_100ms")]
            rows.append((result, [*cells, row["requests"]]))
    return section(
        "Listeners at once",
        "Each listener plays a speech and then requests the next, on an idle machine or next to "
        "programs that are always busy. Underruns are speeches with a gap in playback.",
        [
            *("model", "backend", "threads", "load", "busy programs", "first samples, p50", "p95"),
            *("underruns", "with 100 ms buffered", "requests"),
        ],
        rows,
    )


def threads_table() -> list[str]:
    """Compare numbers of threads, alone and beside busy programs, from `measure.py threads`."""
    rows: Rows = []
    for result in load_results("threads_cpu*.json"):
        for row in result["rows"]:
            # The backend is not recorded where there was only one.
            cells = [row["model"], row.get("backend", "torch"), row["busy"], row["threads"]]
            cells.append(row["waiting"] if row["threads"] > 1 else None)
            cells += milliseconds(row["first_chunk_ms"], "p50", "p95")
            rows.append(
                (result | row, [*cells, *(digits(row["rtf"][rank]) for rank in ("p50", "p95"))])
            )
    return section(
        "Threads",
        "Speeches run with one thread and more, on an idle machine or next to programs that are "
        'always busy (`docs/operations.md` has the conclusions). The column "waiting" '
        "names how threads wait between two pieces of work.",
        [
            *("model", "backend", "busy programs", "threads", "waiting"),
            *("first samples, p50", "p95", "RTF, p50", "p95"),
        ],
        rows,
    )


def start_table() -> list[str]:
    """Show what a new process takes its time for, from `measure.py start`."""
    rows: Rows = []
    for result in load_results("start_cpu_*.json"):
        summary = result["summary"]
        names = ("import_torch_s", "import_s", "help_s", "first_sound_s", "speak_s")
        cells = [result["model"], *(f"{digits(summary[name]['p50'])} s" for name in names)]
        rows.append((result, cells))
    return section(
        "A new process",
        "Times from the start of a process, p50: to the end of `import torch`, of "
        "`import qwen_megakernel` and of `--help`, to the first samples in Python without a "
        "warm-up, and to the end of `speak` with its file written. Loading torch is part of the "
        "last two.",
        ["model", "torch", "import", "--help", "first samples", "speak"],
        rows,
    )


def processes_table() -> list[str]:
    """Compare weights packed at every start with mapped ones, from `measure.py processes`."""
    rows: Rows = []
    for result in load_results("processes_cpu_*.json"):
        for row in result["rows"]:
            weights = result["settings"]["weights"] or "as stored"
            if result["settings"].get("vocoder_weights") == "float16" and row["form"] == "mapped":
                weights += ", vocoder float16"
            cells = [result["model"], weights, row["form"], row["processes"]]
            cells.append(f"{digits(row['load_s']['p50'])} s")
            cells += milliseconds(row["first_chunk_ms"], "p50")
            cells.append(f"{digits(row['decode_ms_per_frame']['p50'])} ms")
            names = ("peak_mb", "resident_mb", "pss_mb", "private_mb")
            rows.append((result, [*cells, *(f"{row[name]['p50']:.0f} MB" for name in names)]))
    return section(
        "Processes that share a converted model",
        "A process packs the weights when it starts, or maps the file that `convert` wrote. "
        "Processes at the same time speak at the same time. Proportional memory divides what "
        "processes share; private memory is what each has of its own.",
        [
            *("model", "weights", "form", "processes", "loaded in", "first samples", "a frame"),
            *("peak", "resident", "proportional", "private"),
        ],
        rows,
    )


def mapped_table() -> list[str]:
    """Show whether converted models speak in real time, from `measure.py rtf`."""
    rows: Rows = []
    for result in load_results("rtf_cpu_*.json"):
        summary, ranks = result["summary"], ("mean", "p50", "p95")
        cells = [model_of(result), *(digits(summary["rtf"][rank]) for rank in ranks)]
        for part in PARTS[:2]:
            cells += milliseconds(summary[f"{part}_ms_per_frame"], "p50")
        rows.append((result, [*cells, f"{result['peak_memory_mb']['host']:.0f} MB"]))
    return section(
        "Converted models in real time",
        "The real-time factor of one stream. Each model was converted from the one whose name it "
        "has, to the form behind that name, with the vocoder in float16.",
        ["model", "RTF, mean", "p50", "p95", "decode a frame", "vocoder a frame", "peak"],
        rows,
    )


def servers_table() -> list[str]:
    """Compare servers of several engines, from `measure.py servers`."""
    rows: Rows = []
    for result in load_results("servers_cpu_*.json"):
        for row in result["rows"]:
            cells = [linked(row), result["model"], row["weights"], digits(row["rtf"]["p50"])]
            cells += milliseconds(row["first_sound_ms"], "p50")
            cells += [f"{digits(row['ready_s']['p50'])} s", f"{row['peak_mb']['p50']:.0f} MB"]
            rows.append((result, cells))
    return section(
        "Servers of other engines on the same cores",
        "Each server was started, asked twice for a speech of at most 40 frames, and ended, by "
        "turns, p50; the figures are those of the second speech. All speak the same random "
        "checkpoint, from files that each engine's own command converted beforehand; "
        "`benchmarks/servers.json` has the commands. A server is ready when it says that its model "
        "is loaded; this one has spoken once by then.",
        ["engine", "model", "weights", "RTF", "first samples", "ready after", "peak memory"],
        rows,
    )


def linked(row: dict[str, Any]) -> str:
    """Return the engine's name, as a link to its page if it has one."""
    return f"[{row['engine']}](https://{row['page']})" if row["page"] else row["engine"]


# Size -> number of frames after which its speeches are cut, the same in every precision, so that
# times can be compared.
TEXT_FRAMES = {"0.6b": 30, "1.7b": 20}
TEXT_RUNS = 2
TEXT_FIGURES = {
    "first_chunk_ms": "first samples, ms",
    "total_ms": "whole, ms",
    "audio_s": "speech, s",
    "rtf": "RTF",
    "step_ms": "a step, ms",
    "vocoder_ms_per_frame": "vocoder, ms a frame",
}


def texts_tables() -> list[str]:
    """Show texts of three lengths by precision, from `measure.py texts`."""
    loads: Rows = []
    rows: Rows = []
    voice: Rows = []  # the system's own voice, from the first file that has it
    for result in load_results("texts_cpu_*.json"):
        name = [result["model"], f"{result['backend']}, {result['dtype']}"]
        memory = f"{result['peak_memory_mb']['host']:.0f} MB"
        loads.append((result, [*name, f"{digits(result['load_s'], 2)} s", memory]))
        its_voice: Rows = []
        for row in result["rows"]:
            figures = [digits(row[name]["p50"]) if name in row else None for name in TEXT_FIGURES]
            cells = [row["text"], row["first_frames"], *figures]
            if row["system"] == result["backend"]:
                rows.append((result, [*name, *cells]))
            else:
                its_voice.append((not_native(result), [row["system"], None, *cells]))
        voice = voice or its_voice
    cuts = " and ".join(
        f"{frames} frames ({frames * FRAME_MS / 1000:.1f} s) with {size}"
        for size, frames in TEXT_FRAMES.items()
    )
    lines = [
        "### Texts of three lengths, by precision",
        "",
        *paragraph(
            f"Times are the p50 of {TEXT_RUNS} speeches, with first packets of 1 and 3 frames and "
            f"in one piece, compared with the system's own voice. A speech is cut after {cuts}, "
            "because random weights rarely end one: a longer text makes the prompt longer here, "
            "not the speech. The system's own voice speaks each text to its end."
        ),
        "",
    ]
    lines += [*sourced_table(["model", "backend", "loaded in", "memory"], loads), ""]
    columns = ["model", "backend", "text", "first frames", *TEXT_FIGURES.values()]
    return [*lines, *sourced_table(columns, rows + voice), ""]


def bandwidth_table() -> list[str]:
    """Compare decoding with the machine's memory, from `measure.py bandwidth`."""
    rows: Rows = []
    for result in load_results("bandwidth_*.json"):
        cells = [
            result["model"],
            result["dtype"],
            f"{result['weight_bytes_per_frame'] / 1e9:.2f} GB",
            f"{result['read_bandwidth_gb_s']:.1f} GB/s",
            f"{result['floor_ms_per_frame']:.1f} ms",
            f"{result['summary']['decode_ms_per_frame']['p50']:.1f} ms",
            f"{result['times_the_floor']:.2f}",
        ]
        rows.append((result, cells))
    return section(
        "PyTorch's decoder and the memory",
        "The table compares a frame of PyTorch's decoder with the memory that it reads, p50.",
        [
            *("model", "precision", "weights a frame", "memory reads"),
            *("floor", "measured", "times the floor"),
        ],
        rows,
    )
