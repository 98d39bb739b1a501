"""Writes a checkpoint with its matrices packed for the native decoder, which then maps the file."""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from qwen_megakernel.checkpoint import loading, packed_form, safetensors_file
from qwen_megakernel.checkpoint.loading import Checkpoint, ModelFiles
from qwen_megakernel.checkpoint.packed_form import PackedForm
from qwen_megakernel.checkpoint.tensor_shapes import CODEC_DECODER_PREFIX, TALKER_PREFIX, Shape
from qwen_megakernel.choices import VOCODER_WEIGHTS
from qwen_megakernel.decoders.cpu.decoder import check_config
from qwen_megakernel.decoders.cpu.packing import Packer
from qwen_megakernel.decoders.quantization import RoundedWeights
from qwen_megakernel.decoders.weights import DecoderModel, QuantizedModel
from qwen_megakernel.errors import UnsupportedModel, UsageError, check_choice
from qwen_megakernel.native.cpu_library import CpuPool, open_library
from qwen_megakernel.output_files import writing
from qwen_megakernel.vocoder.cpu.vocoder import PACKED, TABLES, CpuVocoder, packed_tensors

_COPIED = ("*.json", "*.txt")  # configs and the tokenizer


def convert(
    checkpoint: Checkpoint, weights: str | None, folder: Path, vocoder_weights: str = "float32"
) -> None:
    """Write a checkpoint into a new folder, complete and with packed matrices.

    The vocoder is in memory, then one matrix at a time. The folder gets its name when all of it is
    there.

    Args:
        weights: one of `choices.WEIGHTS`; None: as the checkpoint stores them.
        vocoder_weights: one of `choices.VOCODER_WEIGHTS`.
    Raises:
        UsageError: vocoder_weights is unknown, the checkpoint is itself converted, or no file
            holds its weights.
        UnsupportedModel, BuildError: the native decoder cannot run the model here.
        OutputError: the folder exists, or it cannot be written.
    """
    check_choice("vocoder_weights", vocoder_weights, VOCODER_WEIGHTS)
    loading.check_new(folder)
    files = checkpoint.files
    if checkpoint.form or files.is_drawn:
        raise UsageError(
            f"{files.name} cannot be converted: "
            + ("it has been converted already." if checkpoint.form else "no file holds it."),
            hint="Convert the original model.",
        )
    check_config(checkpoint.config)
    model: DecoderModel = checkpoint
    if weights:
        rounded = RoundedWeights.of(checkpoint.talker, weights, in_groups=True)
        model = QuantizedModel(checkpoint.config, rounded)
    pool = CpuPool(open_library(), torch.get_num_threads())
    packer = Packer(model, pool)
    with writing(folder), loading.new_folder(folder) as draft:
        codec = draft / loading.CODEC_FOLDER
        codec.mkdir(parents=True)
        for source, target in ((files.folder, draft), (files.speech_tokenizer, codec)):
            for pattern in _COPIED:
                for path in source.glob(pattern):
                    shutil.copyfile(path, target / path.name)
        _write_vocoder(checkpoint, vocoder_weights, pool, codec / loading.WEIGHTS)
        _write_talker(checkpoint, weights, packer, draft / loading.WEIGHTS)


def kept(files: ModelFiles, weights: str | None) -> ModelFiles:
    """Return the files of a model as `convert` writes them, from the cache or written into it.

    A changed original is written anew. A converted model, and one whose weights no file holds, is
    returned as it is.

    Raises:
        ModelFilesError, UnsupportedModel, BuildError, OutputError: the model cannot be converted.
    """
    folders = (files.folder, files.speech_tokenizer)
    if files.is_drawn or packed_form.read(files.folder / loading.WEIGHTS):
        return files
    states = [
        (str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns)
        for folder in folders
        for pattern in (*_COPIED, loading.WEIGHTS)
        for path in sorted(folder.glob(pattern))
    ]
    key = hashlib.sha256(repr(states).encode()).hexdigest()[:16]
    folder = loading.write_once(
        f"packed-{weights or 'stored'}-{key}",
        packed_form.VERSION,
        lambda draft: convert(loading.load(files), weights, draft),
    )
    return replace(files, folder=folder, speech_tokenizer=folder / loading.CODEC_FOLDER)


def _write_vocoder(checkpoint: Checkpoint, weights: str, pool: CpuPool, path: Path) -> None:
    vocoder = CpuVocoder(
        checkpoint.codec_config, checkpoint.codec_decoder, pool, is_half=weights == "float16"
    )
    packed = [vocoder.packed, vocoder.tables.view(-1).view(torch.uint8)]
    source = checkpoint.files.speech_tokenizer / loading.WEIGHTS
    # The codebooks come on top: a voice names its encoder by what they are computed from.
    replaced = {PACKED: packed_tensors(checkpoint.codec_config), TABLES: []}
    parts = {name.removeprefix(packed_form.PREFIX): names for name, names in replaced.items()}
    dtypes = ["F16" if vocoder.is_half else "U8", "U8"]
    _write(
        *(checkpoint, source, path, CODEC_DECODER_PREFIX),
        weights=None,
        parts=parts,
        entries=[(dtype, tuple(each.shape)) for dtype, each in zip(dtypes, packed, strict=True)],
        packed=(each.numpy() for each in packed),
    )


def _write_talker(checkpoint: Checkpoint, weights: str | None, packer: Packer, path: Path) -> None:
    def packed() -> Iterator[np.ndarray]:
        for each in packer.names:
            matrix = torch.empty(packer.sizes[each.name], dtype=torch.uint8)
            packer.pack(each, matrix.data_ptr())
            yield matrix.numpy()

    _write(
        *(checkpoint, checkpoint.files.folder / loading.WEIGHTS, path, TALKER_PREFIX),
        weights=weights,
        parts={each.name: list(each.parts) for each in packer.names},
        entries=[("U8", (size,)) for size in packer.sizes.values()],
        packed=packed(),
    )


def _write(
    checkpoint: Checkpoint,
    source: Path,
    path: Path,
    prefix: str,
    *,
    weights: str | None,
    parts: dict[str, list[str]],
    entries: list[tuple[str, Shape]],
    packed: Iterator[np.ndarray],
) -> None:
    """Write a file: `packed`, arrays of these dtypes and shapes, then the rest of the source."""
    stored = safetensors_file.describe(source)
    dtypes = {stored[prefix + name][0] for names in parts.values() for name in names}
    if len(dtypes) != 1:
        raise UnsupportedModel(f"{source} has matrices in several dtypes: {', '.join(dtypes)}.")
    with source.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    form = PackedForm(weights, dtypes.pop(), parts, checkpoint.files.name, sha256)
    replaced = {prefix + name for name in form.part_names}
    rest = {name: entry for name, entry in stored.items() if name not in replaced}
    names = [f"{prefix}{packed_form.PREFIX}{name}" for name in form.parts]
    written = dict(zip(names, entries, strict=True))

    def data() -> Iterator[np.ndarray]:
        yield from packed
        mapped = safetensors_file.MappedTensors(source, "")
        for name in rest:
            yield mapped[name].reshape(-1).view(torch.uint8).numpy()
            mapped.release([name])

    safetensors_file.write(
        path, written | rest, data(), form.metadata(), alignment=packed_form.ALIGNMENT, summed=True
    )
