"""The tables of README.md and docs/ whose rows are result files, one function for each page."""

from collections.abc import Iterator
from typing import Any

from benchmarks.cpu_page import linked
from benchmarks.page_parts import (
    Cell,
    Rows,
    backend_of,
    digits,
    footnotes,
    gpu_results,
    load_result,
    load_results,
    machine_of,
    model_of,
    not_native,
    paragraph,
    result_table,
    source_of,
    sourced_table,
    table,
    timed_on,
)


def speech_table() -> list[str]:
    """Compare what a speech costs on this project's decoders and on others."""
    rows: Rows = []
    for result in [*load_results("benchmark_*.json"), *load_results("rtf_cpu_*.json")]:
        figures = result["summary"]
        form = ", ".join(backend_of(result).split(", ")[1:])
        cells = [f"this project, `{result['backend']}`", f"{model_of(result)}, {form}"]
        cells += [*speech_figures(figures), f"{digits(figures['first_audible_ms']['p50'])} ms"]
        rows.append((result, [*cells, most_listeners(result["model"])]))
    for result in load_results("servers_cpu_*.json"):
        for row in result["rows"]:
            if row["page"]:
                times = {"rtf": row["rtf"], "first_chunk_ms": row["first_sound_ms"]}
                cells = [linked(row), f"{model_of(result)}, {row['weights']}"]
                cells += [*speech_figures(times), None, None]
                rows.append((not_native(result), cells))
    for result in load_results("texts_cpu_0.6b_native.json"):
        for row in result["rows"]:
            if row["system"] == "espeak-ng" and row["text"] == "medium":
                cells = ["espeak-ng, for scale", "rules, no network", *speech_figures(row)]
                cells += [None, None]
                rows.append((not_native(result), cells))
    columns = ["engine", "model and weights", "RTF", "first samples", "first audible"]
    columns.append("listeners at once")
    lines = sourced_table(columns, rows)
    counted = [found for result, _ in rows for found in listeners(result["model"])]
    for file, found in {found["file"]: found for found in counted}.items():
        note = "Listeners at once, none of whom hears a gap with 100 ms buffered: "
        note += f"`{file}` at commit {found['commit']}, {timed_on(found)}."
        explained = [line for line in footnotes([note]) if line and line not in lines]
        lines += ["", *paragraph(note), *(line for mark in explained for line in ("", mark))]
    return lines + gpu_table()


def gpu_table() -> list[str]:
    """Return the frames of many streams and the first samples on each GPU that has run both."""
    lines: list[str] = []
    for name, results in gpu_results().items():
        for result in results:
            curve, first = (
                rows_of(result, step, "model", "backend") for step in ("batch_curve", "first_sound")
            )
            if not (curve and first):
                continue
            columns = ["on the GPU", "model", "a frame of 1 stream", "of 16", "most streams tried"]
            rows = []
            for (model, backend), frames in curve.items():
                of = {row["streams"]: f"{digits(row['ms_per_frame'])} ms" for row in frames}
                wait = next(
                    (
                        f"{digits(row['ms']['p50'])} ms"
                        for row in first.get((model, backend), [])
                        if row["stage"] == "first_chunk"
                    ),
                    None,
                )
                most = f"{frames[-1]['streams']}: {frames[-1]['times_real_time']:.0f} x real time"
                name_of_row = [f"`{backend}`", f"{model} (random weights)"]
                rows.append([*name_of_row, of.get(1), of.get(16), most, wait])
            lines += ["", *table([*columns, "first samples"], rows)]
            note = f"On one {name} in bfloat16: `{result['file']}` at commit {result['commit']}. "
            note += "A frame is 80 ms of speech, here without vocoder; first samples include it."
            lines += ["", *paragraph(note)]
    return lines


def rows_of(result: dict[str, Any], step: str, *names: str) -> dict[tuple[Any, ...], list[Any]]:
    """Return the rows of a step of tools/gpu_check.sh by their values of `names`."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    for row in ((result["steps"].get(step) or {}).get("result") or {}).get("rows", []):
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def speech_figures(figures: dict[str, Any]) -> list[str]:
    """Return the real-time factor and the time until the first samples, p50."""
    return [digits(figures["rtf"]["p50"]), f"{digits(figures['first_chunk_ms']['p50'])} ms"]


def listeners(model: str) -> list[dict[str, Any]]:
    """Return the result of `measure.py open-loop` for a model, if there is one."""
    return load_results(f"listeners_cpu_{model}.json")


def most_listeners(model: str) -> str | None:
    """Return how many listeners heard no gap with 100 ms buffered, of how many were tried."""
    loads = [
        (row["listeners"], row["underruns_100ms"])
        for result in listeners(model)
        for row in result["rows"]
        if "listeners" in row and row["busy"] == 0
    ]
    heard_all = [listeners for listeners, underruns in loads if not underruns]
    if not heard_all:
        return None
    more = " or more" if len(heard_all) == len(loads) else ""
    return f"{max(heard_all)}{more}"


def voices_table() -> list[str]:
    """Return the results of `measure.py voices`, p50."""
    columns: dict[str, Cell] = {
        "model": model_of,
        "x-vector": "{summary[x_vector_ms][p50]:.0f} ms",
        "codes": "{summary[codec_ms][p50]:.0f} ms",
        "a cached voice": "{summary[cached_voice_ms][p50]:.1f} ms",
    }
    return result_table("voices_*.json", columns)


def pipecat_table() -> list[str]:
    """Return the results of `measure.py pipecat`."""
    columns: dict[str, Cell] = {
        "mode": lambda result: "TOKEN" if result["settings"]["token"] else "SENTENCE",
        "pipelines": "{settings[pipelines]}",
        "chunk to frame, p95": "{summary[overhead_ms][p95]:.1f} ms",
        "event loop blocked": "{summary[loop_held_ms][max]:.1f} ms CPU, "
        "{summary[loop_held_wall_ms][max]:.1f} ms by the clock",
        "interruption to engine, p95": "{summary[quiet_ms][p95]:.2f} ms",
    }
    return result_table("pipecat_*.json", columns)


def reading_table() -> list[str]:
    """Return the results of `measure.py reading`, p50."""
    columns: dict[str, Cell] = {
        "full of expressions": "{summary[expressions_ms][p50]:.1f} ms",
        "numbers alone": "{summary[numbers_ms][p50]:.1f} ms",
        "without any": "{summary[plain_ms][p50]:.1f} ms",
        "20 000 lexicon entries": "{summary[lexicon_ms][p50]:.1f} ms",
        "first samples, off": "{summary[first_chunk_off_ms][p50]:.1f} ms",
        "on": "{summary[first_chunk_on_ms][p50]:.1f} ms",
    }
    return result_table("reading_*.json", columns)


WORD_TIMES = "word_times_*.json"


def word_times_table() -> list[str]:
    """Return a row for each position in each result of `measure.py word-times`."""
    columns = ["speech", "words", "position", "by letters, p50 / p95", "found, p50 / p95"]
    rows: Rows = [
        (
            result,
            [
                *(row["speech"], row["words"], row["position"]),
                *(
                    " / ".join(f"{row[name][rank]:.0f}" for rank in ("p50", "p95")) + " ms"
                    for name in ("by_letters_ms", "found_ms")
                ),
            ],
        )
        for result in map(not_native, load_results(WORD_TIMES))
        for row in result["rows"]
    ]
    return sourced_table(columns, rows)


def sound_table() -> list[str]:
    """Return the results of `measure.py sound`, p50."""
    names = ("slow", "fast", "twice", "telephone", "studio", "loud", "edges")
    heads = ("speed 0.5", "1.25", "2", "8000 Hz", "48 000 Hz", "12 dB louder", "silence")
    columns: dict[str, Cell] = {
        head: f"{{summary[{name}_ms][p50]:.1f}} ms" for name, head in zip(names, heads, strict=True)
    }
    return result_table("sound_*.json", columns)


def speech_control() -> list[str]:
    """Return the cost of reading and of changing sound, and how exactly words are timed."""
    times = word_times_table() if load_results(WORD_TIMES) else []
    return [
        *reading_table(),
        "",
        "CPU time for each second of sound, in the reader's thread (`measure.py sound`):",
        "",
        *sound_table(),
        *([""] if times else []),
        *times,
    ]


def marks() -> list[str]:
    """Return what the watermark survives, its false alarms, and how it changes the sound."""
    (result,) = load_results("marks_*.json")
    speeches = [row["speech"] for row in result["changes"]]
    rows: Rows = [
        (result, [what, f"{seconds} s", *shares])
        for (what, seconds), shares in _shares(result["rows"], speeches, "what", "seconds")
    ]
    unmarked, draws = (
        next(row for row in result["rows"] if name in row) for name in ("searches", "draws")
    )
    changes: Rows = [
        (
            result,
            [
                row["speech"],
                f"{row['signal_to_mark_db']:.1f} dB",
                f"{row['pesq']:.2f} (lowest {row['lowest_pesq']:.2f})",
                f"{row['rtf']:.4f}",
            ],
        )
        for row in result["changes"]
    ]
    return [
        *sourced_table(["after", "recordings of", *speeches], rows),
        "",
        *paragraph(
            f"{unmarked['searches']} searches for random keys in {unmarked['files']} unmarked "
            f"files gave {unmarked['false_alarms']} false alarms; the least likely score has a "
            f"chance of {unmarked['lowest_chance']:.0e}. Of {draws['draws']} recordings of 5 s of "
            f"random operators, with noise 20 dB below the speech, {draws['marks_found']} were "
            f"found, {draws['operators_named']} with their operator and {draws['confused']} with "
            "another."
        ),
        "",
        *sourced_table(["speech", "signal to watermark", "PESQ", "real-time factor"], changes),
        *_perth(result, speeches),
    ]


def _shares(
    rows: list[dict[str, Any]], speeches: list[str], *names: str
) -> Iterator[tuple[tuple[Any, ...], list[str]]]:
    """Yield the rows' values of `names`, and the share of each speech in which a mark was found."""
    found: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in rows:
        if "found" in row:
            share = f"{row['found']:.0%} of {row['pieces']}"
            found.setdefault(tuple(row[name] for name in names), {})[row["speech"]] = share
    for key, shares in found.items():
        yield key, [shares[speech] for speech in speeches]


def _perth(result: Any, speeches: list[str]) -> list[str]:
    """Return what resemble-perth's watermark survives on pieces of the same speech."""
    rows: Rows = [
        (result, [what, *shares]) for (what,), shares in _shares(result["perth"], speeches, "what")
    ]
    if not rows:
        return []
    highest = max(row["highest_unmarked"] for row in result["perth"])
    return [
        "",
        *paragraph(
            "The watermark of resemble-perth 1.0.1 in recordings of 5 s of the same speech. Its "
            f"library rounds the score to 0 or 1; that of unmarked recordings is {highest:.0f} at "
            "most."
        ),
        "",
        *sourced_table(["resemble-perth after", *speeches], rows),
    ]


def load_table() -> list[str]:
    """Return the results of the load test, a row for each level."""
    columns = ["model", "load", "first byte", "first audible", "end to end"]
    columns += ["underrun, with 100 ms", "xRT"]
    rows: Rows = []
    for result in load_results("load_*.json"):
        for level in result["levels"]:
            unit = "listener" if level["load"] == 1 else "listeners"
            unit = "requests/s" if level["mode"] == "open" else unit
            times = [
                " / ".join(digits(level["summary"][name][rank]) for rank in ("p50", "p95", "p99"))
                for name in ("first_byte_ms", "first_audible_ms", "e2e_ms")
            ]
            shares = [level[name] for name in ("underrun_share", "underrun_100ms_share")]
            cells = [result["model"], f"{level['load']:g} {unit}", *times]
            cells += [", ".join(f"{share:.0%}" for share in shares), digits(level["xrt"])]
            rows.append((result, cells))
    return sourced_table(columns, rows)


def server_table() -> list[str]:
    """Return the results of `measure.py server`, a row for each figure."""
    rows: Rows = []
    for result in load_results("server_*.json"):
        settings = result["settings"]
        names = {
            "first_byte_overhead_ms": "first byte",
            "real_first_byte_overhead_ms": f"first byte, {settings['model']}",
            "chunk_overhead_ms": f"chunk, {settings['streams']} streams",
            "crowd_chunk_overhead_ms": f"chunk, {settings['crowd']} streams",
            "underruns_added": f"gaps added to each of {settings['crowd']} streams",
        }
        for name, title in names.items():
            if name in result["summary"]:
                unit = " ms" if name.endswith("_ms") else ""
                figures = [
                    f"{result['summary'][name][key]:.1f}{unit}" for key in ("p50", "p95", "max")
                ]
                rows.append((result, [title, *figures]))
    return sourced_table(["figure", "p50", "p95", "longest"], rows)


def what_is_left() -> list[str]:
    """Say in docs/performance-journey.md what a frame waits for on `auto`'s CPU decoder."""
    decoded, spoken = (load_result(f"{kind}_cpu_random-0.6b.json") for kind in ("decode", "speech"))
    one = {(row["backend"], row["weights"]): row for row in decoded["rows"] if row["streams"] == 1}
    native, int8, plain = (
        one[key] for key in (("cpu", "stored"), ("cpu", "int8"), ("torch", "stored"))
    )
    (speech,) = (row for row in spoken["rows"] if row["backend"] == "cpu")
    ms = [digits(row["ms_per_frame"]["p50"]) for row in (native, plain, int8)]
    decode, vocoder = (
        digits(speech[f"{part}_ms_per_frame"]["p50"]) for part in ("decode", "vocoder")
    )
    lines = [
        f"**What is left.** `auto` uses the native decoder: a frame of {model_of(native)} takes "
        f"{native['times_the_floor']:.2f} times the time in which numpy reads its weights,",
        f"{ms[0]} ms; with PyTorch's decoder it takes {ms[1]}. Only fewer bytes are faster: "
        f"{ms[2]} ms in int8 ({timed_on(native | decoded)}; {', '.join(source_of(decoded))}).",
        f"In a whole speech a frame's decoding takes {decode} ms and its vocoder {vocoder} "
        f"({timed_on(speech | spoken)}; {', '.join(source_of(spoken))}).",
    ]
    return paragraph(" ".join(lines)) + footnotes(lines)


def coreml() -> list[str]:
    """Return the noise of a 16-bit speech decoder, measured by speech_decoder_noise.py."""
    result = load_result("coreml_speech_decoder.json")
    rows = [
        [name, *(f"{found[precision]:.0f} dB" for precision in ("float32", "float16"))]
        for name, found in result["signal_to_noise_db"].items()
    ]
    return [
        f"{result['frames']} frames of random codes, on {machine_of(result)}, commit "
        f"{result['commit']}; each operation's result is rounded to its type:",
        "",
        *table(["codec of", "float32", "float16"], rows),
    ]


def fine_tuning() -> list[str]:
    """Return what a voice says that has learned other speech, and what a step of training costs."""
    adapted = load_result("demo_voice_adapted.json")
    voices = adapted["voices"]
    rows = [("the voice before", voices["base"])]
    speeches = (
        ("slow", "1.25 times as slow"),
        ("high", "4.3 semitones higher"),
        ("other", "of another speaker, heard by the codec's encoder"),
    )
    for name, what in speeches:
        found = voices[name]
        minutes = found["seconds"] / 60
        learned = f"{found['recordings']} recordings, {minutes:.0f} min, {what}"
        rows.append((learned, found["recorded"]))
        for epoch, said in enumerate(found["epochs"], 1):
            rows.append((f"the voice that learns them, after epoch {epoch}", said))
    cells = [
        [
            what,
            f"{said['length']:.2f}",
            f"{said['hertz']:.0f} Hz",
            f"{said['word_errors']:.1%}" if "word_errors" in said else None,
        ]
        for what, said in rows
    ]
    step = load_result("train_step_cpu_0.6b.json")
    settings, summary = step["settings"], step["summary"]["seconds_per_step"]
    return [
        *table(["who speaks", "length", "pitch", "words heard wrong"], cells),
        "",
        *paragraph(
            f"`{adapted['file']}` at commit {adapted['commit']}; `tools/demo_voice/adapt.py` has "
            "the options."
        ),
        "",
        *paragraph(
            "With random weights of 0.6B's shapes, one LoRA step with `--checkpointing` on a "
            f"recording of {settings['num_frames']} frames ({settings['seconds']:.0f} s) took "
            f"{step['peak_memory_mb']['host'] / 1000:.1f} GB at its peak and {summary['p50']:.1f} "
            f"s: `{step['file']}` at commit {step['commit']}, {timed_on(step)}. Nothing was "
            "measured on a GPU."
        ),
    ]
