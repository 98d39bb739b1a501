"""The names that users choose from; the command line reads them without loading torch."""

from dataclasses import dataclass
from itertools import permutations, product

DEFAULT_MODEL = "Qwen/Qwen3-TTS-12Hz-0.6B-Base"
TRAINED_VOICE = "voice.json"  # the file by which the folder of `train run` is known
SAMPLE_TEXT = "Good morning. This is a sample of the voice that is being trained."  # `train run`

DIALECTS = ("elevenlabs", "cartesia", "deepgram")  # hosted voices whose clients a server answers
API_KEY_VARIABLE = "QWEN_MEGAKERNEL_API_KEY"  # environment variable: the key that clients send

BACKENDS = ("auto", "kernel", "graph", "cpu", "torch", "emulation", "coreml")

# Whether numbers, dates and abbreviations are read as words; "auto": the checkpoint decides.
NORMALIZE = ("auto", "on", "off")

# Whether a text is spoken as it stands, has "[pause 1.5s]" in it, is SSML, or is a script.
TEXT_FORMATS = ("plain", "pauses", "ssml", "script")

# Encodings of samples in a WAV file: 16-bit PCM, or the 8 bits of telephones (ITU-T G.711).
ENCODINGS = ("pcm", "ulaw", "alaw")
TELEPHONE_RATE = 8000  # in Hz; the rate of ulaw and alaw, unless a request sets another
# All sample rates of MP3, in Hz (ISO/IEC 11172-3 and 13818-3, with MPEG-2.5).
MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)

DTYPES = ("float32", "bfloat16")
# Further values of `dtype=`: one number format for the talker, another for the code predictor.
DTYPES_BY_PART = tuple(
    f"talker={talker},predictor={predictor}" for talker, predictor in permutations(DTYPES, 2)
)


@dataclass(frozen=True, slots=True)
class WeightsForm:
    """The meaning of a value of `weights=`."""

    bits: dict[str, int]  # of a weight in the layers of "talker" and "predictor": 8, 6 or 4
    in_groups: bool | None  # a scale for some columns or a whole row; None: the backend chooses
    heads: bool  # the codec head and the code predictor's heads have 8 bits, too

    @staticmethod
    def parse(weights: str) -> "WeightsForm":
        """Read one of `WEIGHTS`."""
        return _FORMS[weights]


# The beginning of a value of `weights=` -> the stacks with layers that it stores in int8.
INT8_STACKS = {"int8-talker": ("talker",), "int8": ("talker", "predictor")}
# The beginning of a value of `weights=` -> the bits of each stack's layers, if some have 4 or 6.
_SMALL_STACKS = {
    "int6-talker": {"talker": 6},
    "int6-int8": {"talker": 6, "predictor": 8},
    "int6": {"talker": 6, "predictor": 6},
    "int4-talker": {"talker": 4},
    "int4-int8": {"talker": 4, "predictor": 8},
    "int4-int6": {"talker": 4, "predictor": 6},
    "int4": {"talker": 4, "predictor": 4},
}
_SCALES = {"": None, "-rows": False, "-groups": True}  # which weights share one -> `in_groups`
_HEADS = {"": False, "-heads": True}
_FORMS = {
    f"{start}{scales}{heads}": WeightsForm(dict.fromkeys(stacks, 8), _SCALES[scales], _HEADS[heads])
    for (start, stacks), scales, heads in product(INT8_STACKS.items(), _SCALES, _HEADS)
} | {
    f"{start}{heads}": WeightsForm(bits, True, _HEADS[heads])
    for (start, bits), heads in product(_SMALL_STACKS.items(), _HEADS)
}
# All values of `weights=`; None leaves the weights as the checkpoint stores them.
WEIGHTS = tuple(_FORMS)
WEIGHTS_HELP = (
    "store weights in 8 bits: int8 in all layers, int8-talker only in the talker's; -rows or "
    "-groups: which weights share a scale; -heads: the output heads in 8 bits, too, as in "
    "int8-groups-heads. Or in 6 or 4 bits, for backends cpu and torch: int6 and int4 in all "
    "layers, int6-talker and int4-talker only in the talker's; a second number is that of the "
    "code predictor's layers: int6-int8, int4-int8, int4-int6 (default: as the checkpoint stores "
    "them; docs/precision.md compares them)"
)

VOCODER_WEIGHTS = ("float32", "float16")  # of a converted model, which computes in float32
