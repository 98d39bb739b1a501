"""The plain decoder with both stacks in Core ML: `--backend coreml`.

It uses the plain decoder's embeddings, sampling and slots, and needs macOS 15. If the cache has no
converted models, the decoder first converts them.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.decoders.coreml.export import ExportOptions, coremltools, exported
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.decoders.weights import DecoderModel
from qwen_megakernel.errors import SetupError

MODELS = ("CodeDecoder", "MultiCodeDecoder")


def load_model(path: Path) -> Any:
    """Load a converted model, which Core ML compiles for this machine, or raise SetupError."""
    kind = coremltools().models.MLModel
    try:
        return kind(str(path))
    except RuntimeError as error:
        raise SetupError(
            f"Core ML does not load {path.name}: {error}.",
            hint=f"Remove {path.parent} to convert it again.",
        ) from error


class CoreMLStack:
    """A `layers.Stack` on a converted model, whose states are the caches."""

    def __init__(self, model: Any):
        self._model = model

    def new_cache(self, num_positions: int) -> Any:
        return self._model.make_state()

    def run(self, x: Tensor, cache: Any, start: int) -> dict[str, Tensor]:
        """Run the rows of x [n, hidden_size] one by one; returns float32 outputs for the last."""
        found: dict[str, Any] = {}
        for position, row in enumerate(x, start=start):
            found = self._model.predict(
                {
                    "x": row.float().view(1, -1, 1, 1).numpy(),
                    "position": torch.tensor([position], dtype=torch.int32).numpy(),
                },
                state=cache,
            )
        return {name: torch.from_numpy(value) for name, value in found.items()}

    def forward(self, x: Tensor, cache: Any, start: int) -> Tensor:
        return self.run(x, cache, start)["hidden"].flatten()[None]


class CoreMLDecoder(PlainDecoder):
    """A `PlainDecoder` whose layers Core ML computes.

    Args:
        sizes: as `FrameDecoder` takes them. Models are converted for `max_positions`; Core ML
            computes in `dtype`, float16 or float32, and the rest is float32 on the CPU.
        weights: None, or one of `choices.WEIGHTS`.
    """

    predictor: CoreMLStack

    def __init__(self, checkpoint: Checkpoint, sizes: DecoderSizes, weights: str | None = None):
        precision = str(sizes.dtype).removeprefix("torch.")
        options = ExportOptions(sizes.max_positions, precision, weights)
        self._folder = exported(checkpoint, options, MODELS)
        super().__init__(checkpoint, replace(sizes, dtype=torch.float32))
        self.dtype = sizes.dtype  # the engine reports this one

    def _load_stacks(self, model: DecoderModel) -> None:
        self.talker, self.predictor = (
            CoreMLStack(load_model(self._folder / f"{name}.mlpackage")) for name in MODELS
        )

    def _predict(self, x: Tensor, start: int, group: int) -> Tensor:
        logits = self.predictor.run(x, self._predictor_cache, start)["logits"]
        return logits[group - 1].float()  # projection and heads are in the model
