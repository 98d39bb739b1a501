"""The plain decoder with both stacks in Core ML: `--backend coreml`.

Embeddings, sampling and the account of slots are the plain decoder's. Needs macOS 15 on the
machine that runs it; models are converted once, into the cache, if they are not there.
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
from qwen_megakernel.errors import SetupError

MODELS = ("CodeDecoder", "MultiCodeDecoder")


def load_model(path: Path) -> Any:
    """A converted model, compiled for this machine, on whichever of its units Core ML chooses.

    Raises:
        SetupError: Core ML does not take it.
    """
    kind = coremltools().models.MLModel
    try:
        return kind(str(path))
    except RuntimeError as error:
        raise SetupError(
            f"Core ML does not load {path.name}: {error}.",
            hint=f"Remove {path.parent} to convert it again.",
        ) from error


class CoreMLStack:
    """The face of `plain.DecoderStack` on a converted model; a cache is a state of it."""

    def __init__(self, model: Any):
        self._model = model

    def new_cache(self, num_positions: int) -> Any:
        """A state; it has the positions for which the model was converted."""
        return self._model.make_state()

    def run(self, x: Tensor, cache: Any, start: int) -> dict[str, Tensor]:
        """What the model gives for the last row of x [n, hidden_size], float32; one row a call."""
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
        """The hidden state of the last position, [1, hidden_size]; no intermediate results."""
        return self.run(x, cache, start)["hidden"].flatten()[None]


class CoreMLDecoder(PlainDecoder):
    """`PlainDecoder` whose layers Core ML computes.

    Args:
        checkpoint: weights and config.
        sizes: as `FrameDecoder` takes them. Models are converted for `max_positions`; Core ML
            computes in `dtype`, float16 or float32, and the rest is float32 on the CPU.
        weights: None, or one of `choices.WEIGHTS`.
    Raises:
        MissingPackageError: coremltools is not installed.
        SetupError: Core ML does not take what was converted.
    """

    def __init__(self, checkpoint: Checkpoint, sizes: DecoderSizes, weights: str | None = None):
        precision = str(sizes.dtype).removeprefix("torch.")
        self._options = ExportOptions(sizes.max_positions, precision, weights)
        super().__init__(checkpoint, replace(sizes, dtype=torch.float32))
        self.dtype = sizes.dtype  # what an engine reports

    def _load_stacks(self, checkpoint: Checkpoint) -> None:
        folder = exported(checkpoint, self._options, MODELS)
        self.talker, self.predictor = (
            CoreMLStack(load_model(folder / f"{name}.mlpackage")) for name in MODELS
        )

    def _predict(self, x: Tensor, start: int, group: int) -> Tensor:
        """As there; projection and heads are in the model."""
        logits = self.predictor.run(x, self._predictor_cache, start)["logits"]
        return logits[group - 1].float()
