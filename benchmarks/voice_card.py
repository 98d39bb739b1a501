"""The model card of demo-voice, from the result of tools/demo_voice/evaluate.py."""

from itertools import product

from benchmarks.page_parts import load_result, machine_of, table

KINDS = {"written": "written by hand", "template": "drawn from the training grammar", "all": "both"}


CARD_HEAD = """\
# {name}

A small text-to-speech checkpoint of this project in the Qwen3-TTS-12Hz architecture and file
layout, so that the first demo speaks without a download. It is a demonstration, not a good voice,
and holds no weight of Qwen's. `tools/demo_voice/README.md` shows how it is made.

| | |
|---|---|
| says | everyday English in one flat voice (100 Hz, monotone) |
| size | {talker:.1f} M + {vocoder:.1f} M parameters (talker bf16, vocoder fp16), {size:.1f} MB |
| frame | 8 codebooks of 256 codes, 80 ms, 24 kHz |
| options of a request | none, or `voice="demo"`, `language="english"` |
| cannot | clone voices: the codec encoder is left out; follow an instruction: it is ignored |
| trained on | speech of espeak-ng 1.51, one voice; nothing recorded from people |
| licence | Apache-2.0, as the project |

## Figures

From `benchmarks/results/{result}` (commit {commit}),
on {machine}. The sentences were not
trained on. A word is right if most of its frames were drawn close to the reference's. This is
strict, and does not show faults of the vocoder. The requests used the checkpoint's own sampling and
named no voice and no language.
"""


CARD_TAIL = """
A sentence's length is right within {tolerance:.0f} % of the reference's. "In full" puts the whole
text into the prefill (the default), "stepwise" feeds it a token with each frame, as a voice agent
does.
"""


CARD_RECOGNISER = """
pocketsphinx, an old recogniser that is weak on synthetic voices, gets {wrong_full:.0f} %
(stepwise {wrong_stepwise:.0f} %) of the words wrong on {sentences} of the sentences written by
hand. If it only has to choose the right one of these sentences, it is right in
{told_full:.0f} % ({told_stepwise:.0f} %). For the codes of the reference, where only the vocoder
can cause errors, it gets {wrong_reference:.0f} % of the words wrong.
"""


CARD_LIMITS = """
## Limits

No listener has judged the voice. It is one voice with one pitch, and it expresses no feeling. The
model begins with 0.2 to 0.4 s of silence, because the training target waits until enough of the
first word is known; the engine keeps 60 ms of it (`leading_silence` in `config.json`). The voice
guesses the pronunciation of unknown words from their spelling, often wrongly. Give it long texts as
sentences of under 100 characters.
"""


def model_card() -> list[str]:
    """Return the card of the shipped voice, from the result of tools/demo_voice/evaluate.py."""
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
