"""What users choose from by name. It is here, without torch, for the command line to offer."""

DEFAULT_MODEL = "Qwen/Qwen3-TTS-12Hz-0.6B-Base"

BACKENDS = ("auto", "kernel", "graph", "torch", "emulation", "coreml")

# What `weights=` accepts, and the stacks whose layers each makes int8.
INT8_STACKS = {"int8-talker": ("talker",), "int8": ("talker", "predictor")}
WEIGHTS = tuple(INT8_STACKS)  # beside None: as the checkpoint stores them
