"""The export of a checkpoint as six Core ML models (`MODELS`), which run on an Apple machine.

Any machine can write them. Source of the division into models, and of their names: speech-swift's
Core ML backend (docs/ledger.md, row C14). In contrast to that backend, caches are states of the
models, which Core ML has since macOS 15 and iOS 18, and the codec is decoded in chunks.
"""

import contextlib
import hashlib
import io
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qwen_megakernel.checkpoint.loading import MODEL_FILES, WEIGHTS, Checkpoint, write_once
from qwen_megakernel.choices import WEIGHTS as INT8_FORMS
from qwen_megakernel.choices import WeightsForm
from qwen_megakernel.decoders.coreml import decoder_models
from qwen_megakernel.decoders.coreml.speech_decoder import SpeechDecoder
from qwen_megakernel.decoders.quantization import check_weights
from qwen_megakernel.errors import UsageError, check_choice, check_counts
from qwen_megakernel.installing import require
from qwen_megakernel.printable import get_logger

logger = get_logger(__name__)

FORMAT = 1  # version of the written files; a new number has cached models converted again
PRECISIONS = ("float16", "float32")
MODELS = (
    "TextProjector",
    "CodeEmbedder",
    "MultiCodeEmbedder",
    "CodeDecoder",
    "MultiCodeDecoder",
    "SpeechDecoder",
)
STACK_OF = {"talker": "CodeDecoder", "predictor": "MultiCodeDecoder"}
MANIFEST = "manifest.json"
STATES = ("keys", "values")  # the states of a stack


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of a conversion.

    Attributes:
        num_positions: number of positions of the talker's cache: prompt and frames.
        precision: number format of activations and weights, except the speech decoder's.
        weights: one of `choices.WEIGHTS`, the layers with 8-bit weights; None: none.
        chunk_frames: number of frames that the speech decoder decodes at once.
        speech_precision: number format of the speech decoder; only float32, because 16 bits put
            noise into the waveform (docs/coreml.md).
    """

    num_positions: int
    precision: str = "float16"
    weights: str | None = None
    chunk_frames: int = 4
    speech_precision: str = "float32"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UsageError(
                f"precision is {self.precision!r}; Core ML computes in {' or '.join(PRECISIONS)}."
            )
        if self.speech_precision != "float32":
            raise UsageError(
                f"speech_precision is {self.speech_precision!r}; the speech decoder is float32.",
                "In 16 bits each layer rounds the waveform, and the noise adds up.",
                "Use float32; docs/coreml.md has measurements of the noise.",
            )
        if self.weights is not None:
            check_choice("weights", self.weights, INT8_FORMS)
        check_weights(self.weights, "coreml")
        check_counts(num_positions=self.num_positions, chunk_frames=self.chunk_frames)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress coremltools' warnings about versions and its dozens of progress bars."""
    logs = logging.getLogger("coremltools")
    level = logs.level
    logs.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logs.setLevel(level)


def coremltools() -> Any:
    """Import the package coremltools, or raise MissingPackageError."""
    with require("coreml", by="Core ML", package="coremltools"), _quietly():
        return import_module("coremltools")


def export(
    checkpoint: Checkpoint, folder: Path, options: ExportOptions, names: Sequence[str] = MODELS
) -> None:
    """Convert a checkpoint, and write NAME.mlpackage for each of `names` into `folder`.

    The other files that an app needs (config, vocabulary) are copied beside them; `MANIFEST` is
    written last, when all is complete.
    """
    limit = checkpoint.config.talker.stack.max_positions
    if options.num_positions > limit:
        raise UsageError(f"num_positions is {options.num_positions}; this model has {limit}.")
    coremltools()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    for name in names:
        logger.info("Converting %s.", name)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            written = Path(work) / f"{name}.mlpackage"
            is_speech = name == "SpeechDecoder"
            precision = options.speech_precision if is_speech else options.precision
            _convert(checkpoint, name, options, precision).save(str(written))
            target = folder / written.name
            if target.exists():
                shutil.rmtree(target)
            written.rename(target)
    for name in set(MODEL_FILES) - {WEIGHTS}:
        if (source := checkpoint.files.folder / name).is_file():
            shutil.copy(source, folder)
    manifest = {"model": checkpoint.files.name, "models": list(names), "format": FORMAT}
    (folder / MANIFEST).write_text(json.dumps(manifest | asdict(options), indent=1) + "\n")


def exported(checkpoint: Checkpoint, options: ExportOptions, names: Sequence[str]) -> Path:
    """Return the cache's folder of these models, after converting them if it does not exist."""
    files = [f for f in checkpoint.files.folder.rglob("*.safetensors") if f.is_file()]
    identity = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(files)]
    facts = json.dumps([asdict(options), list(names), identity])
    key = hashlib.sha256(facts.encode()).hexdigest()[:16]
    return write_once(
        f"coreml-{key}", FORMAT, lambda draft: export(checkpoint, draft, options, names)
    )


def _convert(checkpoint: Checkpoint, name: str, options: ExportOptions, precision: str) -> Any:
    """Convert one model to "float16" or "float32"; return it as an object of coremltools."""
    ct = coremltools()
    module, inputs, outputs = _module(checkpoint, name, options)
    states = [
        ct.StateType(ct.TensorType(shape=tuple(buffer.shape), dtype=np.float16), name=path)
        for path, buffer in module.named_buffers()
        if path.split(".")[-1] in STATES
    ]
    passes = ct.PassPipeline()  # the default ones except one, which divides by sqrt(1 + 1e-5)
    passes.remove_passes({"common::fuse_elementwise_to_batchnorm"})
    with torch.no_grad(), _quietly():  # the tracer warns about shapes, which must become constants
        traced = torch.jit.trace(module.eval(), tuple(inputs.values()), check_trace=False)
        model = ct.convert(
            traced,
            inputs=[
                ct.TensorType(each, tuple(x.shape), dtype=x.numpy().dtype.type)
                for each, x in inputs.items()
            ],
            outputs=[ct.TensorType(each) for each in outputs],
            states=states or None,
            minimum_deployment_target=ct.target.macOS15,
            compute_precision=getattr(ct.precision, precision.upper()),
            pass_pipeline=passes,
            skip_model_load=True,
        )
        int8_stacks = WeightsForm.parse(options.weights).bits if options.weights else ()
        if name in [STACK_OF[stack] for stack in int8_stacks]:
            model = _int8_layers(ct, model)
    model.short_description = f"{name} of {checkpoint.files.name}"
    return model


def _module(
    checkpoint: Checkpoint, name: str, options: ExportOptions
) -> tuple[nn.Module, dict[str, Tensor], tuple[str, ...]]:
    """Return a module, an example of its inputs, and the names of its outputs."""
    number = torch.zeros(1, dtype=torch.int32)
    row = torch.zeros(1, checkpoint.config.talker.stack.hidden_size, 1, 1)
    if name == "CodeDecoder":
        talker = decoder_models.CodeDecoder(checkpoint, options.num_positions)
        return talker, {"x": row, "position": number}, ("logits", "hidden")
    if name == "MultiCodeDecoder":
        predictor = decoder_models.MultiCodeDecoder(checkpoint)
        return predictor, {"x": row, "position": number}, ("logits",)
    if name == "SpeechDecoder":
        decoder = SpeechDecoder(checkpoint, options.chunk_frames)
        quantizers = checkpoint.codec_config.decoder.num_quantizers
        codes = torch.zeros(1, quantizers, options.chunk_frames, dtype=torch.int32)
        past = torch.zeros(1, decoder.num_values)
        return decoder, {"codes": codes, "past": past}, ("pcm", "new_past")
    if name == "TextProjector":
        return decoder_models.TextProjector(checkpoint), {"token": number}, ("embedding",)
    # Code 0 and the control ids; or codes 1 .., of which a code of group g is row
    # (g - 1) * vocab_size + code.
    names = ["model.codec_embedding.weight"]
    if name == "MultiCodeEmbedder":
        groups = range(checkpoint.config.talker.num_code_groups - 1)
        names = [f"code_predictor.model.codec_embedding.{group}.weight" for group in groups]
    embedder = decoder_models.CodeEmbedder([checkpoint.talker[each] for each in names])
    return embedder, {"token": number}, ("embedding",)


def _int8_layers(ct: Any, model: Any) -> Any:
    """Make the layers' matrices int8 with a scale for each row, as `decoders.quantization` does."""
    optimize = ct.optimize.coreml
    layer = optimize.OpLinearQuantizerConfig(
        mode="linear_symmetric", dtype="int8", granularity="per_channel", weight_threshold=0
    )
    names = [
        op.name
        for op in model._mil_program.functions["main"].operations
        if op.op_type == "const" and "_proj_" in op.name
    ]
    config = optimize.OptimizationConfig(op_name_configs=dict.fromkeys(names, layer))
    return optimize.linear_quantize_weights(model, config)
