"""What is generated in the documents: python benchmarks/pages.py [PAGE] [--check].

Whole pages, or what is between two markers of a page, all from the committed result files. The two
pages about the kernel have no such file: the tools that compile it give their rows to `write`, and
without them the rows stay, and only the words around them are written anew.

python benchmarks/pages.py --plot FILE    draw floors and measured frames (needs [plots])
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs as a script from anywhere

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # which torch reads when it is imported

from benchmarks import roofline
from benchmarks.cpu_page import C_ENGINE
from benchmarks.page_parts import (
    ROOT,
    Cell,
    Rows,
    backend_of,
    digits,
    footnotes,
    load_result,
    load_results,
    machine_of,
    model_of,
    not_native,
    paragraph,
    result_table,
    source_of,
    sourced_table,
    spaced_table,
    table,
    timed_on,
    write,
)
from benchmarks.performance_page import configs, performance, plot
from qwen_megakernel.choices import WEIGHTS
from qwen_megakernel.cli import options


def speech_table() -> list[str]:
    """What a speech costs on this project's decoders, and beside them what others take."""
    rows: Rows = []
    for result in load_results("benchmark_*.json"):
        figures = result["summary"]
        form = ", ".join(backend_of(result).split(", ")[1:])
        cells = [f"this project, `{result['backend']}`", f"{model_of(result)}, {form}"]
        cells += [*speech_figures(figures), f"{digits(figures['first_audible_ms']['p50'])} ms"]
        rows.append((result, [*cells, most_listeners(result["model"])]))
    for result in load_results("c_engine_cpu_*.json"):
        for row in result["rows"]:
            if row["engine"] == "C engine":
                cells = [f"[an engine in C](https://{C_ENGINE})"]
                cells += [f"{model_of(result)}, {row['weights']}", *speech_figures(row), None, None]
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
    return lines


def speech_figures(figures: dict[str, Any]) -> list[str]:
    """The real-time factor and the time until the first samples, p50."""
    return [digits(figures["rtf"]["p50"]), f"{digits(figures['first_chunk_ms']['p50'])} ms"]


def listeners(model: str) -> list[dict[str, Any]]:
    """The result of `measure.py open-loop` for a model, if there is one."""
    return load_results(f"listeners_cpu_{model}.json")


def most_listeners(model: str) -> str | None:
    """How many listeners heard no gap, with 100 ms buffered; with how many it was tried."""
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
    """Results of `measure.py voices`, p50."""
    columns: dict[str, Cell] = {
        "model": model_of,
        "x-vector": "{summary[x_vector_ms][p50]:.0f} ms",
        "codes": "{summary[codec_ms][p50]:.0f} ms",
        "a remembered voice": "{summary[cached_voice_ms][p50]:.1f} ms",
    }
    return result_table("voices_*.json", columns)


def pipecat_table() -> list[str]:
    """Results of `measure.py pipecat`."""
    columns: dict[str, Cell] = {
        "mode": lambda result: "TOKEN" if result["settings"]["token"] else "SENTENCE",
        "pipelines": "{settings[pipelines]}",
        "chunk to frame, p95": "{summary[overhead_ms][p95]:.1f} ms",
        "event loop held": "{summary[loop_held_ms][max]:.1f} ms CPU, "
        "{summary[loop_held_wall_ms][max]:.1f} ms by the clock",
        "interruption to engine, p95": "{summary[quiet_ms][p95]:.2f} ms",
    }
    return result_table("pipecat_*.json", columns)


def reading_table() -> list[str]:
    """Results of `measure.py reading`, p50."""
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
    """One row a position of each result file of `measure.py word-times`."""
    columns = ["speech", "words", "their place", "by letters, p50 / p95", "found, p50 / p95"]
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
    """Results of `measure.py sound`, p50."""
    names = ("slow", "fast", "twice", "telephone", "studio", "loud", "edges")
    heads = ("speed 0.5", "1.25", "2", "8000 Hz", "48 000 Hz", "12 dB louder", "silence")
    columns: dict[str, Cell] = {
        head: f"{{summary[{name}_ms][p50]:.1f}} ms" for name, head in zip(names, heads, strict=True)
    }
    return result_table("sound_*.json", columns)


def speech_control() -> list[str]:
    """What reading a text and changing its sound cost, and how exactly words are timed."""
    times = word_times_table() if load_results(WORD_TIMES) else []
    return [
        *reading_table(),
        "",
        "CPU time for a second that is heard, in the reader's thread (`measure.py sound`):",
        "",
        *sound_table(),
        *([""] if times else []),
        *times,
    ]


def load_table() -> list[str]:
    """Results of the load test, a row for each level."""
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
    """Results of `measure.py server`, a row for each figure."""
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
    """docs/performance-journey.md: what a frame waits for on the decoder that `auto` takes."""
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
        f"**What is left.** `auto` takes the native decoder: a frame of {model_of(native)} takes "
        f"{native['times_the_floor']:.2f} times the time in which numpy reads its weights,",
        f"{ms[0]} ms where PyTorch's decoder takes {ms[1]}. Only fewer bytes are faster: "
        f"{ms[2]} ms in int8 ({timed_on(native | decoded)}; {', '.join(source_of(decoded))}).",
        f"In a whole speech a frame's decoding takes {decode} ms and its vocoder {vocoder} "
        f"({timed_on(speech | spoken)}; {', '.join(source_of(spoken))}).",
    ]
    return paragraph(" ".join(lines)) + footnotes(lines)


# ---- docs/precision.md ---------------------------------------------------------------------------


# The forms of int8, each by the one name that says all of it.
INT8_FORMS = [weights for weights in WEIGHTS if "rows" in weights or "groups" in weights]

# What tools/precision_table.py compares, and how this page calls the widths of roofline.py.
VARIANTS = {
    "fp32": "plain decoder, float32",
    "bf16": "plain decoder, bf16, rounded as the official code rounds",
    "mixed": "plain decoder, its `--dtype talker=bfloat16,predictor=float32`",
    **{
        weights: f"plain decoder, float32 arithmetic, `--weights {weights}`"
        for weights in INT8_FORMS
    },
    "int8-rows, bf16": "plain decoder, bf16 arithmetic: its `--weights int8 --dtype bfloat16`",
    "cpu fp32": "native code, `--backend cpu`",
    "cpu int8-groups": "the same, int8 weights in all layers: its `--weights int8`",
    "cpu int8-groups-heads": "the same, int8 weights in all layers and heads",
    "kernel fp32": "kernel (emulated), float32 weights",
    "kernel bf16": "kernel (emulated), bf16 weights, activations near float32",
    "kernel int8-talker-rows": "the same, int8 weights in the talker's layers",
    "kernel int8-rows": "the same, int8 weights in all layers: its `--weights int8`",
}
WIDTHS = {
    "bf16": "bf16",
    "fp32": "fp32",
    "mixed": "bf16 talker, fp32 predictor",
    "int8-talker": "int8 talker, bf16 predictor",
    "int8": "int8, bf16 heads",
    "int8-rows-heads": "int8 heads, too",
    "int8-groups": "int8 in groups, bf16 heads",
    "int8-groups-heads": "in groups, heads, too",
}


def repeating(values: Sequence[float | None], *forms: str) -> str | None:
    """All values in the most precise form in which they are the same; if there is none, the least
    and the largest in the coarsest."""
    if None in values:
        return None
    for form in forms:
        if len(told := {form.format(value) for value in values}) == 1:
            return told.pop()
    return " to ".join(forms[-1].format(value) for value in (min(values), max(values)))


def precision() -> list[str]:
    """docs/precision.md, from the result of tools/precision_table.py."""
    result = load_result("precision.json")
    model = result["model"]
    runs = [run["variants"] for run in result["runs"]]
    sets = [f"`{run['torch_instruction_set']}`" for run in result["runs"]]
    names = [name for name in VARIANTS if name != "fp32"]
    stages = ["talker after layer 1", f"talker after layer {model['layers'][0]}"]
    stages += ["talker hidden", "talker logits", "code_predictor after layer 1"]
    stages += [f"code_predictor after layer {model['layers'][1]}", "predictor logits"]
    errors, shares, sizes = [], [], []
    for name in names:
        found = [run[name] for run in runs]
        errors.append([name])
        for stage in stages:
            rms = [each["relative_rms_error"].get(stage) for each in found]
            errors[-1].append(repeating(rms, "{:.1e}", "{:.0e}"))
        kept = [
            [100 * s for s in (*each["best_code_agrees"].values(), each["drawn_code_agrees"])]
            for each in found
        ]
        shares.append(
            [name, *(repeating(each, "{:.1f} %", "{:.0f} %") for each in zip(*kept, strict=True))]
        )
    tables = [config.talker for config in configs().values()]
    text = {talker.text_vocab_size * talker.text_hidden_size for talker in tables}
    for size, config in configs().items():
        found = (roofline.weight_bytes(config, width) for width in WIDTHS)
        sizes.append([size, *(f"{num_bytes / 1e9:.2f} GB" for num_bytes in found)])
    outside = " or ".join(f"{count / 1e6:.0f}" for count in sorted(text))
    return [
        "# Precision",
        "",
        *paragraph(
            "This page shows what half precision and 8-bit weights cost: how far results move from "
            "those in float32, how many codes change, and how many bytes a frame reads. "
            "`benchmarks/pages.py` writes it from `benchmarks/results/precision.json` (commit "
            f"{result['commit']}, {machine_of(result)}, torch {result['machine']['torch']}). Each "
            f"figure was measured with PyTorch's instruction sets {' and '.join(sets)}; the tables "
            "have the digits that repeat, or both figures."
        ),
        "",
        *paragraph(
            f"The model's weights are {model['weights']}. It has {model['layers'][0]} + "
            f"{model['layers'][1]} layers, hidden {model['hidden_size']}, intermediate "
            f"{model['intermediate_size']}, {model['heads'][0]}/{model['heads'][1]} heads of "
            f"{model['heads'][2]}, {model['code_groups']} codes: the 0.6B model's depth, a quarter "
            f"of its width. It was led along the same codes for {result['frames']} frames (teacher "
            "forcing). Random weights have flatter logits than trained ones: take the order of the "
            "rows from here, not the share of changed codes. How each sounds is not known without "
            "the released weights, so int8 is off unless it is asked for."
        ),
        "",
        "Variants:",
        "",
        *(f"- `{name}`: {VARIANTS[name]}" for name in names),
        "",
        "Relative RMS error against the plain decoder in float32, by stage:",
        "",
        *spaced_table(["variant", *stages], errors),
        *paragraph(
            "Codes that stay the same: code 0 and the other codes by best logit, and all codes as "
            "drawn with the default sampling and the same random numbers:"
        ),
        "",
        *spaced_table(["variant", "code 0, best", "codes 1.., best", "all, drawn"], shares),
        *paragraph(
            "`--weights int8-talker` makes 8 bits of the talker's layers, `int8` of the code "
            "predictor's too, and `-heads` behind either of the heads. Norms, embeddings and "
            f"projections stay as they are stored. So does the text embedding, whose {outside} "
            "million values are outside of every form: no frame reads it, and a prompt reads some "
            "rows of its file."
        ),
        "",
        "Bytes of weights a frame reads, computed from the released shapes:",
        "",
        *table(["", *WIDTHS.values()], sizes),
    ]


# ---- the model card of demo-voice ----------------------------------------------------------------


KINDS = {"written": "written by hand", "template": "drawn from the training grammar", "all": "both"}
CARD_HEAD = """\
# {name}

A small text-to-speech checkpoint of this project in the Qwen3-TTS-12Hz architecture and file
layout, so that the first demo speaks without a download. It is a demonstration, not a good voice,
and holds no weight of Qwen's. How it is made: `tools/demo_voice/README.md`.

| | |
|---|---|
| says | everyday English in one flat voice (100 Hz, monotone) |
| size | {talker:.1f} M + {vocoder:.1f} M parameters (talker bf16, vocoder fp16), {size:.1f} MB |
| frame | 8 codebooks of 256 codes, 80 ms, 24 kHz |
| ask for | nothing, or `voice="demo"`, `language="english"` |
| cannot | clone voices: the codec encoder is left out; follow an instruction: it is ignored |
| trained on | speech of espeak-ng 1.51, one voice; nothing recorded from people |
| licence | Apache-2.0, as the project |

## Figures

From `benchmarks/results/{result}` (commit {commit}),
on {machine}. The sentences were not
trained on. A word is right if most of its frames were drawn close to the reference's: that is
strict, and does not see faults of the vocoder. Sampling is the checkpoint's own; no voice and no
language are named.
"""
CARD_TAIL = """
A sentence's length is right within {tolerance:.0f} % of the reference's. "In full" puts the whole
text into the prefill (the default), "stepwise" feeds it a token with each frame, as a voice agent
does.
"""
CARD_RECOGNISER = """
pocketsphinx, an old recogniser that is weak on synthetic voices, gets {wrong_full:.0f} %
(stepwise {wrong_stepwise:.0f} %) of the words wrong on {sentences} of the sentences written by
hand; asked which of them was said, it is right in {told_full:.0f} % ({told_stepwise:.0f} %).
Of the codes of the reference, where only the vocoder can be at fault, it gets
{wrong_reference:.0f} % wrong.
"""
CARD_LIMITS = """
## Limits

Nobody has judged it by ear. One voice, one pitch, no feeling. The model begins with 0.2 to 0.4 s of
silence, because the training target waits until enough of the first word is there; 60 ms of it are
heard (`leading_silence` in `config.json`). Words it has not met are guessed from their spelling and
often wrong. Long texts are best given as sentences of under 100 characters.
"""


def model_card() -> list[str]:
    """The card of the shipped voice, from the result of tools/demo_voice/evaluate.py."""
    from qwen_megakernel.checkpoint.loading import DEMO_VOICE, DEMO_VOICE_FOLDER
    from tools.demo_voice.evaluate import AS_REFERENCE, FEEDS, LENGTH_TOLERANCE

    result = load_result("demo_voice.json")
    weights = sum(path.stat().st_size for path in DEMO_VOICE_FOLDER.rglob("*.safetensors"))
    rows = []
    for (kind, label), feed in product(KINDS.items(), FEEDS):
        figures = result["sets"][f"{kind}, {feed}"]
        shares = (figures[key] for key in ("word_accuracy", "ended", "length_right"))
        cells = [f"{100 * share:.1f} %" for share in shares]
        rows.append([label, figures["sentences"], "in full" if feed == "full" else feed, *cells])
    head = CARD_HEAD.format(
        name=DEMO_VOICE,
        talker=result["parameters"]["talker"] / 1e6,
        vocoder=result["parameters"]["vocoder"] / 1e6,
        size=weights / 1e6,
        result=result["file"],
        commit=result["commit"],
        machine=machine_of(result),
    )
    columns = ["sentences", "number", "text", "words right", "ended by themselves", "length right"]
    tail = CARD_TAIL.format(tolerance=100 * LENGTH_TOLERANCE)
    if heard := result["recogniser"]:
        figures = {"sentences": heard[FEEDS[0]]["sentences"]}
        for feed in (*FEEDS, AS_REFERENCE):
            figures[f"wrong_{feed}"] = 100 * heard[feed]["word_error_rate"]
            figures[f"told_{feed}"] = 100 * heard[feed]["sentence_told_apart"]
        tail += CARD_RECOGNISER.format(**figures)
    return [*head.splitlines(), "", *table(columns, rows), *(tail + CARD_LIMITS).splitlines()]


# ---- the pages about the kernel ------------------------------------------------------------------


def rows_of(page: str) -> list[list[str]]:
    """The rows of the only table of a page, as they are."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return [line[2:-2].split(" | ") for line in lines if line.startswith("|")][2:]


def kernel_ptxas(rows: list[list[str]] | None = None) -> list[str]:
    """docs/kernel_ptxas.md, with the rows of tools/kernel_study/ptxas_table.py."""
    rows = rows_of(PTXAS) if rows is None else rows
    columns = ["model", "weights", "arch", "kernel", "threads", "registers", "stack"]
    return [
        "# What ptxas says",
        "",
        "Written by `tools/kernel_study/ptxas_table.py`; bf16 weights, or int8 layers beside them.",
        "CPU s: of the compiler, for the kernels of an architecture, compiled side by side. A dash",
        "means that they were in the cache. Rows of a build without few_step are of the sources",
        "before that kernel was added: few_step_kernel decodes one to four streams, step_kernel",
        "more.",
        "",
        *table([*columns, "spill stores/loads", "CPU s"], rows),
    ]


def kernel_mutations(rows: list[list[str]] | None = None) -> list[str]:
    """docs/kernel_mutations.md, with the rows of tools/kernel_study/mutate_kernel.py."""
    rows = rows_of(MUTATIONS) if rows is None else rows
    unexplained = sum(not any(row[2:]) for row in rows)
    columns = ["where", "removed", "other codes or failure", "ThreadSanitizer", "if unnoticed: why"]
    return [
        "# What happens when a synchronisation is removed",
        "",
        "Written by `tools/kernel_study/mutate_kernel.py`: "
        f"{len(rows)} mutants, {unexplained} unexplained.",
        "",
        *table(columns, rows),
    ]


# ---- command line --------------------------------------------------------------------------------


PTXAS, MUTATIONS = "docs/kernel_ptxas.md", "docs/kernel_mutations.md"


def coreml() -> list[str]:
    """The noise of a 16-bit speech decoder, from tests/support/speech_decoder_noise.py."""
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


PAGES: dict[str, Callable[[], list[str]]] = {
    "README.md": speech_table,
    "docs/voices.md": voices_table,
    "docs/pipecat.md": pipecat_table,
    "docs/operations.md": load_table,
    "docs/serving.md": server_table,
    "docs/performance.md": performance,
    "docs/performance-journey.md": what_is_left,
    "docs/precision.md": precision,
    "docs/speech-control.md": speech_control,
    "docs/coreml.md": coreml,
    "qwen_megakernel/assets/demo-voice/MODEL_CARD.md": model_card,
    PTXAS: kernel_ptxas,
    MUTATIONS: kernel_mutations,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Write, check or draw; 1 when --check finds a page that is out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "page", nargs="?", metavar="PAGE", choices=PAGES, help=f"one of {', '.join(PAGES)}"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if out of date")
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=options.plot_file,
        help="draw the floors of docs/performance.md instead of writing (needs the [plots] extra)",
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
