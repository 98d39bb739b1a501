"""The model card of demo-voice, from results of evaluate.py and quality.py of tools/demo_voice."""

from itertools import product
from typing import Any

from benchmarks.page_parts import load_result, machine_of, paragraph, table

KINDS = {"written": "written by hand", "template": "drawn from the training grammar", "all": "both"}


CARD_HEAD = """\
# {name}

A small text-to-speech checkpoint of this project in the Qwen3-TTS-12Hz architecture and file
layout, so that the first demo speaks without a download. It holds no weight of Qwen's.
`tools/demo_voice/README.md` shows how it is made.

| | |
|---|---|
| says | everyday English in the voice of a man, with a melody; questions rise |
| size | {talker:.1f} M + {vocoder:.1f} M + {encoder:.1f} M parameters, {size:.1f} MB |
| frame | 8 codes of 256, seven for the envelope and one for the pitch; 80 ms, 24 kHz |
| options of a request | none, or `voice="demo"`, `language="english"` |
| can learn | melody, pace and pauses of recordings, in its own timbre (`docs/finetune.md`) |
| cannot | clone voices, for it has no speaker encoder; follow an instruction: it is ignored |
| trained on | speech of flite 2.2, voice `rms` (made from Carnegie Mellon's ARCTIC recordings) |
| encoder trained on | speech of flite's voices `rms`, `slt` and `awb` (of the same recordings) |
| licence | Apache-2.0, as the project; flite's notice stays with copies (`LICENSE-flite.txt`) |

## Figures

From `benchmarks/results/{result}` (commit {commit}),
on {machine}. The sentences were not
trained on. The requests used the checkpoint's own sampling and named no voice and no language.
"""


CARD_TAIL = """
A sentence's length is right within {tolerance:.0f} % of the reference's, which is flite's. "Melody"
is the correlation of the pitch with the reference's, and in brackets the range of the pitch over
the reference's. A question rises if its last frame with a pitch lies above its mean. "In full" puts
the whole text into the prefill (the default), "stepwise" feeds it a token with each frame, as a
voice agent does.
"""

RECOGNISER = (
    "pocketsphinx, an old recogniser that is weak on synthetic voices, gets {wrong_full:.1f} % "
    "(stepwise {wrong_stepwise:.1f} %) of the words wrong on {sentences} of the sentences written "
    "by hand. If it only has to choose the right one of these sentences, it is right in "
    "{told_full:.0f} % ({told_stepwise:.0f} %). For the codes of the reference, where only the "
    "vocoder can cause errors, it gets {wrong_reference:.1f} % of the words wrong."
)

CODEC = (
    "The codec alone, on {sentences} of these sentences (`{file}`, commit {commit}): pocketsphinx "
    "gets {teacher_words:.1f} % of the words wrong in the sound that the vocoder learned, and "
    "{decoded_words:.1f} % in its own. PESQ is {pesq:.2f} and STOI {stoi:.3f} against that sound; "
    "the pitch is off by {median_error:.2f} semitones in half of the places. Sentences have "
    "{loudness:.1f} LUFS, their quietest 20 ms {quietest:.0f} dBFS, and {clipped:.2g} clipped "
    "samples."
)

REPEATED = (
    "Recordings of flite's speakers that went through encoder and vocoder, with their words wrong "
    "before: {repeated}. The encoder has never heard `kal16`, an older and choppy voice; how well "
    "it hears people has not been measured."
)


CARD_LIMITS = """
## Limits

No listener has judged the voice. It is one voice, and it expresses no feeling. It reads the words
that it knows; it guesses the pronunciation of others from their spelling, often wrongly. Stepwise,
the model is silent until sixteen tokens of the text have arrived, about 22 characters, or the whole
text; the engine keeps 60 ms of that silence (`leading_silence` in `config.json`). The vocoder
begins with a tick of 20 ms, over which the engine fades (`high_pass`). Give it long texts as
sentences of under 100 characters.
"""


def model_card() -> list[str]:
    """Return the card of the shipped voice, from its two results."""
    from qwen_megakernel.checkpoint.loading import DEMO_VOICE, DEMO_VOICE_FOLDER
    from qwen_megakernel.checkpoint.tensor_shapes import CODEC_ENCODER_PREFIX
    from tools.demo_voice.evaluate import LENGTH_TOLERANCE
    from tools.demo_voice.package import load_codec
    from tools.demo_voice.shards import FEEDS

    result = load_result("demo_voice.json")
    encoder = load_codec(DEMO_VOICE_FOLDER, CODEC_ENCODER_PREFIX)
    weights = sum(path.stat().st_size for path in DEMO_VOICE_FOLDER.rglob("*.safetensors"))
    head = CARD_HEAD.format(
        name=DEMO_VOICE,
        talker=result["parameters"]["talker"] / 1e6,
        vocoder=result["parameters"]["vocoder"] / 1e6,
        encoder=sum(tensor.numel() for tensor in encoder.values()) / 1e6,
        size=weights / 1e6,
        result=result["file"],
        commit=result["commit"],
        machine=machine_of(result),
    )
    rows = []
    for (kind, label), feed in product(KINDS.items(), FEEDS):
        figures = result["sets"][f"{kind}, {feed}"]
        melody = figures["melody"]
        rows.append(
            [
                label,
                figures["sentences"],
                "in full" if feed == "full" else feed,
                f"{100 * figures['ended']:.1f} %",
                f"{100 * figures['length_right']:.1f} %",
                f"{melody['correlation']:.2f} ({melody['range']:.2f})",
                f"{100 * figures['questions_rise']:.0f} % of {figures['questions']}",
            ]
        )
    columns = ["sentences", "number", "text", "ended by themselves", "length right"]
    columns += ["melody", "questions rise"]
    tail = CARD_TAIL.format(tolerance=100 * LENGTH_TOLERANCE).splitlines()
    texts = (recognised(result), codec(), repeated())
    heard = [line for text in texts for line in (*paragraph(text), "")][:-1]
    body = [*head.splitlines(), "", *table(columns, rows), *tail, "", *heard]
    return body + CARD_LIMITS.splitlines()


def recognised(result: dict[str, Any]) -> str:
    """Return what the recogniser hears of the voice."""
    from tools.demo_voice.evaluate import AS_REFERENCE
    from tools.demo_voice.shards import FEEDS

    heard = result["recogniser"]
    figures = {"sentences": heard[FEEDS[0]]["sentences"]}
    for feed in (*FEEDS, AS_REFERENCE):
        figures[f"wrong_{feed}"] = 100 * heard[feed]["word_error_rate"]
        figures[f"told_{feed}"] = 100 * heard[feed]["sentence_told_apart"]
    return RECOGNISER.format(**figures)


def codec() -> str:
    """Return how close the vocoder's sound is to the one that it learned."""
    result = load_result("demo_voice_codec.json")
    return CODEC.format(
        sentences=result["sentences"],
        file=f"benchmarks/results/{result['file']}",
        commit=result["commit"],
        teacher_words=100 * result["word_error_rate"]["teacher"],
        decoded_words=100 * result["word_error_rate"]["decoded"],
        median_error=result["melody"]["median_error"],
        **result["alike"],
        **{key: result["levels"]["decoded"][key] for key in ("loudness", "quietest", "clipped")},
    )


def repeated() -> str:
    """Return how well the codec repeats recordings."""
    found = load_result("demo_voice_codec.json")["repeated"]
    rows = (
        f"`{speaker}` {figures['repeated']:.1%} ({figures['recording']:.1%})"
        for speaker, figures in found.items()
    )
    return REPEATED.format(repeated=", ".join(rows))
