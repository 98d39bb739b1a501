"""docs/precision.md: what half precision and weights of 8, 6 and 4 bits cost."""

from collections.abc import Sequence

from benchmarks import roofline
from benchmarks.page_parts import (
    load_result,
    load_results,
    machine_of,
    model_of,
    paragraph,
    spaced_table,
    table,
)
from benchmarks.performance_page import configs
from qwen_megakernel.choices import WEIGHTS

# The forms of weights, by their complete names.
FORMS = [
    weights
    for weights in WEIGHTS
    if any(word in weights for word in ("rows", "groups", "int6", "int4"))
]


# The variants that tools/precision_table.py compares, and their descriptions on the page.
VARIANTS = {
    "fp32": "plain decoder, float32",
    "bf16": "plain decoder, bf16, rounded as the official code rounds",
    "mixed": "plain decoder, its `--dtype talker=bfloat16,predictor=float32`",
    **{weights: f"plain decoder, float32 arithmetic, `--weights {weights}`" for weights in FORMS},
    "int8-rows, bf16": "plain decoder, bf16 arithmetic: its `--weights int8 --dtype bfloat16`",
    "cpu fp32": "native code, `--backend cpu`",
    "cpu int8-groups": "the same, int8 weights in all layers: its `--weights int8`",
    "cpu int8-groups-heads": "the same, int8 weights in all layers and heads",
    "cpu int6": "the same, int6 weights in all layers",
    "cpu int4-heads": "the same, int4 weights in all layers, int8 in all heads",
    "kernel fp32": "kernel (emulated), float32 weights",
    "kernel bf16": "kernel (emulated), bf16 weights, activations near float32",
    "kernel int8-talker-rows": "the same, int8 weights in the talker's layers",
    "kernel int8-rows": "the same, int8 weights in all layers: its `--weights int8`",
}


# The forms in which the demonstration voice was measured.
SPOKEN = ("stored", "int8", "int4-int8", "int4")

# The widths of roofline.py, and their names on the page.
WIDTHS = {
    "bf16": "bf16",
    "fp32": "fp32",
    "mixed": "bf16 talker, fp32 predictor",
    "int8-talker": "int8 talker, bf16 predictor",
    "int8": "int8, bf16 heads",
    "int8-rows-heads": "int8 heads, too",
    "int8-groups": "int8 in groups, bf16 heads",
    "int8-groups-heads": "in groups, heads, too",
    "int6": "int6, bf16 heads",
    "int4-int8": "int4 talker, int8 predictor, bf16 heads",
    "int4": "int4, bf16 heads",
    "int4-heads": "int4, int8 heads",
}


def repeating(values: Sequence[float | None], *forms: str) -> str | None:
    """Format values as one, in the most precise form in which they are equal; if there is none,
    return the least and the largest in the last form."""
    if None in values:
        return None
    for form in forms:
        if len(told := {form.format(value) for value in values}) == 1:
            return told.pop()
    return " to ".join(forms[-1].format(value) for value in (min(values), max(values)))


def spoken() -> list[str]:
    """Compare forms on the demonstration voice, from `evaluate.py --weights` of tools."""
    results = {form: load_result(f"demo_voice_weights_{form}.json") for form in SPOKEN}
    rows = []
    for form, result in results.items():
        found, heard = result["sets"]["all, full"], result["recogniser"]["full"]
        shares = found["ended"], found["length_right"], heard["word_error_rate"]
        ended, right, wrong = (f"{100 * share:.1f} %" for share in shares)
        pitch = f"{found['melody']['median_error']:.2f}"
        rows.append([form, ended, right, f"{100 * found['length']:.1f} %", pitch, wrong])
    columns = ["weights", "end by themselves", "right length", "mean length", "pitch off by"]
    first = results[SPOKEN[0]]
    return [
        *paragraph(
            "The demonstration voice is small, but trained. It says sentences that it was not "
            f"trained on ({first['sets']['all, full']['sentences']}, each form with the same "
            "random numbers). Length and pitch, in semitones, are those beside the reference; "
            f"pocketsphinx listens to {first['recogniser']['full']['sentences']} sentences:"
        ),
        "",
        *table([*columns, "words wrong"], rows),
        "",
        *paragraph(
            f"On {machine_of(first)}, from `demo_voice_weights_*.json` at commit "
            f"{first['commit']}. A trained model of the released size was not measured here. The "
            "authors of another engine (github.com/gabriele-mastrapasqua/qwen3-tts, "
            "docs/quantization.md) report of the released weights that speech is 71 % longer with "
            "4 bits and the scales of the largest magnitudes, and 22 % longer with scales of the "
            "least squared error; and that the code predictor's codes agree in 78 % with 8 bits "
            "and in 46 % with 4, so `int4-int8` is the form to try first."
        ),
        "",
    ]


def vocoders() -> list[str]:
    """Compare the vocoder's weights in float32 and in float16, from `vocoder-precision`."""
    results = load_results("vocoder_precision_*.json")
    rows = [
        [
            *(model_of(result), row["weights"], f"{row['packed_mb']:.1f} MB"),
            *(f"{row['signal_to_noise_db']:.0f} dB", f"{row['largest_error']:.1e}"),
        ]
        for result in results
        for row in result["rows"]
    ]
    return [
        *paragraph(
            "`convert --vocoder-weights float16` stores the weights and codebooks of the native "
            "vocoder in half the bytes. The vocoder widens them when it reads them, and computes "
            "in float32. The samples of a speech, from -1 to 1, are compared with those of "
            "PyTorch's vocoder in float64. Random weights amplify every error, that of float32 as "
            "well:"
        ),
        "",
        *table(["model", "weights", "packed", "signal to error", "largest error"], rows),
        "",
        *paragraph(
            f"On {machine_of(results[0])}, from `vocoder_precision_*.json` at commit "
            f"{results[0]['commit']}."
        ),
        "",
    ]


def precision() -> list[str]:
    """Return docs/precision.md, from the result of tools/precision_table.py."""
    result = load_result("precision.json")
    model = result["model"]
    runs = [run["variants"] for run in result["runs"]]
    sets = [f"`{run['torch_instruction_set']}`" for run in result["runs"]]
    names = [name for name in VARIANTS if name != "fp32" and name in runs[0]]
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
            "This page shows what half precision and weights of 8, 6 and 4 bits cost: how far "
            "results move from those in float32, how many codes change, and how many bytes a frame "
            "reads. `benchmarks/pages.py` writes it from `benchmarks/results/precision.json` "
            f"(commit {result['commit']}, {machine_of(result)}, torch "
            f"{result['machine']['torch']}). Each figure was measured with PyTorch's instruction "
            f"sets {' and '.join(sets)}; the tables "
            "have the digits in which both results agree, or both figures."
        ),
        "",
        *paragraph(
            f"The model's weights are {model['weights']}. It has {model['layers'][0]} + "
            f"{model['layers'][1]} layers, hidden {model['hidden_size']}, intermediate "
            f"{model['intermediate_size']}, {model['heads'][0]}/{model['heads'][1]} heads of "
            f"{model['heads'][2]}, {model['code_groups']} codes: the 0.6B model's depth, a quarter "
            f"of its width. All variants got the same codes for {result['frames']} frames (teacher "
            "forcing). Random weights have flatter logits than trained ones, so use the order of "
            "the rows, not the share of changed codes. How a variant sounds is not known without "
            "the released weights, so int8, int6 and int4 are off by default."
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
            "`--weights int8-talker` stores the talker's layers in 8 bits, `int8` also those of "
            "the code predictor, and `-heads` after either also the heads. `int6` and `int4` "
            "store the layers of both in 6 and 4 bits, `int6-talker` and `int4-talker` only the "
            "talker's; a second number is that of the code predictor (`int4-int8`), and `-heads` "
            "have 8. Of 6 and 4 bits, 32 weights share the scale with the least squared error. "
            "Norms, embeddings and "
            f"projections stay as they are. So does the text embedding with its {outside} million "
            "values: no frame reads it, and a prompt reads only some rows of its file."
        ),
        "",
        *spoken(),
        *vocoders(),
        "The bytes of weights that a frame reads, computed from the released shapes:",
        "",
        *table(["", *WIDTHS.values()], sizes),
    ]
