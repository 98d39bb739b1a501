"""Every buffer that the kernel reads or writes, allocated once.

The structs hold addresses. The tensors at these addresses live as long as the object that allocated
them, and its owner keeps that object until the last launch is over.
"""

import ctypes
from collections import deque
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.checkpoint.config import StackConfig, TalkerConfig
from qwen_megakernel.checkpoint.weight_reader import WeightReader
from qwen_megakernel.decoders.embeddings import Embeddings
from qwen_megakernel.decoders.kernel import packing
from qwen_megakernel.decoders.kernel.build import KernelSizes
from qwen_megakernel.decoders.kernel.library import (
    MAX_STREAMS,
    Control,
    Description,
    Model,
    SlotBuffers,
    Stack,
    Workspace,
    check_tensor,
)
from qwen_megakernel.decoders.layers import rope_tables
from qwen_megakernel.decoders.quantization import QuantizedMatrix
from qwen_megakernel.decoders.sampling import MIN_FRAMES
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.decoders.weights import DecoderModel, Weights
from qwen_megakernel.errors import OutOfMemory

TALKER = "model."  # the names of the talker's weights begin with this

# The blocks of a launch poll the first word, which has a cache line of its own.
WORDS = 2 * Control.left.offset // 4
ERROR_WORD = Control.error.offset // 4
assert ctypes.sizeof(Control) <= 4 * WORDS


class ControlBlocks:
    """The grid barrier, the word of its error and the attention tickets of every launch.

    A launch is enqueued before the launches in front of it have ended, and one that fails must not
    change those of the next. A launch that ends without an error leaves zeros; after an error
    `give_back` writes them.

    Args:
        num_slots: slots of the decoder: each may have a prompt under way, and all of them a step.
        num_rows, num_heads: shape of the tickets: streams of a launch, key-value heads.
    Attributes:
        words: [count, WORDS] int32, a `Control` at the beginning of each row.
        tickets: [count, num_rows, num_heads] int32.
        free: the rows that no launch has, in the order in which launches get them.
    """

    def __init__(self, num_slots: int, num_rows: int, num_heads: int, device: torch.device):
        count = num_slots + -(-num_slots // MAX_STREAMS) + 1
        self.words = torch.zeros(count, WORDS, dtype=torch.int32, device=device)
        self.tickets = torch.zeros(count, num_rows, num_heads, dtype=torch.int32, device=device)
        self.free = deque(range(count))

    def __len__(self) -> int:
        return len(self.words)

    @property
    def errors(self) -> Tensor:
        """The error words [count] int32, 0 for none; a view."""
        return self.words[:, ERROR_WORD]

    def give_back(self, row: int, *, is_clean: bool) -> None:
        """Free the row of a launch that has ended; the next launch finds zeros there."""
        if not is_clean:
            self.words[row].zero_()
            self.tickets[row].zero_()
        self.free.append(row)


class LayerBuffers:
    """The talker's layers, their KV caches, and the scratch of a launch.

    These are all buffers that `forward` needs if its rows are prepared embeddings and no frame
    follows; `KernelBuffers` adds the buffers of frames.

    Args:
        config: dimensions that the library was compiled for.
        weights: the tensors "model.layers..." and "model.norm.weight", among others.
        description: from the library; it has the rows of a pass and the splits of attention.
    Raises:
        OutOfMemory: the device has not enough free memory; nothing was allocated.
    """

    def __init__(
        self, config: KernelSizes, weights: Weights, description: Description, sizes: DecoderSizes
    ):
        self.config, self.device, self.dtype = config, sizes.device, sizes.dtype
        if self.device.type == "cuda":
            self._check_memory(weights, sizes)
        self._alive: list[Tensor] = []
        self.caches: dict[str, list[Tensor]] = {}  # keys and values of each stack
        talker = config.talker.stack
        read = WeightReader(weights, self.device, self.dtype, TALKER)
        stack = self._load_stack(read, talker, sizes.num_slots, sizes.max_positions)
        self.model = Model(talker=stack)
        self.slots = SlotBuffers()
        self.workspace = self._allocate_workspace(description)
        num_heads = max(each.num_kv_heads for each in (talker, config.predictor.stack))
        self.controls = ControlBlocks(sizes.num_slots, description.max_rows, num_heads, self.device)
        # The tokens of a prompt whose rows are all prepared embeddings.
        self.prepared = self._zeros(sizes.max_positions, dtype=torch.int32) - 1

    def workspace_of(self, control: int) -> Workspace:
        """Return the workspace of a launch that has row `control` of the control blocks."""
        workspace = Workspace.from_buffer_copy(self.workspace)
        workspace.control = self.controls.words[control].data_ptr()
        workspace.attention_tickets = self.controls.tickets[control].data_ptr()
        return workspace

    def forget(self, slots: Sequence[int]) -> None:
        """Zero what a failed launch wrote, because the next launch may read some of it."""
        for slot in slots:
            for cache in self.caches[TALKER]:
                cache[:, slot].zero_()

    def _keep(self, values: Tensor) -> int:
        """Keep a tensor as long as this object lives, and return its address.

        A tensor of a mapped file is aligned to 8 bytes only; the kernel reads 16 at a time.
        """
        if values.data_ptr() % 16:
            values = values.clone()
        self._alive.append(check_tensor("buffer", values, values.shape, values.dtype))
        return self._alive[-1].data_ptr()

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _check_memory(self, weights: Weights, sizes: DecoderSizes) -> None:
        stack, size = self.config.talker.stack, self.dtype.itemsize
        num_rows = stack.num_layers * sizes.num_slots * sizes.max_positions
        needed = sum(
            weight.values.numel() if isinstance(weight, QuantizedMatrix) else weight.numel() * size
            for name, weight in weights.items()
            if "text_embedding" not in name
        )
        needed += 2 * num_rows * stack.kv_size * size  # keys and values
        free, _ = torch.cuda.mem_get_info(self.device)
        if needed > free:
            raise OutOfMemory(
                f"The model and its slots need about {needed / 1e9:.1f} GB; the GPU has "
                f"{free / 1e9:.1f} GB free.",
                hint="Use the 0.6B model, fewer slots, or --max-frames 500.",
            )

    def _load_stack(
        self, read: WeightReader, config: StackConfig, num_slots: int, max_positions: int
    ) -> Stack:
        norm = read["norm.weight"]
        cos, sin = (t.to(self.device) for t in rope_tables(config, max_positions))
        shape = config.num_layers, num_slots, config.num_kv_heads, max_positions, config.head_dim
        layers = packing.pack_stack(read, config)
        caches = [self._zeros(*shape, dtype=self.dtype) for _ in range(2)]
        self.caches[read.prefix] = caches
        _, height_pairs, width_pairs = config.mrope_section or (0, 0, 0)
        return Stack(
            layers=self._keep(layers),
            final_norm=self._keep(norm),
            rope_cos=self._keep(cos),
            rope_sin=self._keep(sin),
            keys=self._keep(caches[0]),
            values=self._keep(caches[1]),
            num_layers=config.num_layers,
            num_slots=num_slots,
            max_positions=max_positions,
            mrope_height_pairs=height_pairs,
            mrope_width_pairs=width_pairs,
            rms_norm_eps=config.rms_norm_eps,
        )

    def _allocate_workspace(self, description: Description) -> Workspace:
        rows, splits = description.max_rows, description.max_splits
        most_rows = description.max_forward_rows
        stacks = (self.config.talker.stack, self.config.predictor.stack)
        vocab = max(self.config.talker.vocab_size, self.config.predictor.vocab_size)
        # The host writes this word while the kernel reads it, so it is mapped host memory.
        on_gpu = self.device.type == "cuda"
        self.cancel = torch.zeros(1, dtype=torch.int32, pin_memory=on_gpu)
        partials = max(s.num_heads * splits * (s.head_dim + 2) for s in stacks)
        buffers = {
            "x": self._zeros(most_rows, max(s.hidden_size for s in stacks)),
            "hidden": self._zeros(rows, self.config.talker.stack.hidden_size),
            "qkv": self._zeros(most_rows, max(s.q_size + 2 * s.kv_size for s in stacks)),
            "attention": self._zeros(most_rows, max(s.q_size for s in stacks)),
            "mlp": self._zeros(most_rows, max(s.intermediate_size for s in stacks)),
            "logits": self._zeros(rows, vocab),
            "attention_partials": self._zeros(rows, partials),
            "cancel": self.cancel,
        }  # each launch has its own control block and tickets: `workspace_of`
        return Workspace(**{name: self._keep(buffer) for name, buffer in buffers.items()})


class KernelBuffers(LayerBuffers):
    """The buffers of a decoder: those of its layers, the other weights, and per-slot state."""

    def __init__(self, model: DecoderModel, description: Description, sizes: DecoderSizes):
        super().__init__(model.config, model.talker, description, sizes)
        self.embeddings = Embeddings(model, self.device, self.dtype)
        self._load_codes(model)
        self._allocate_slots(model.config.talker, sizes)

    def forget(self, slots: Sequence[int]) -> None:
        super().forget(slots)
        for slot in slots:
            self.hidden[slot] = 0

    def _load_codes(self, model: DecoderModel) -> None:
        """Add the code predictor, the heads and the tables of codes to the struct `model`."""
        config, native, groups = model.config, self.model, model.config.talker.num_code_groups
        read = WeightReader(model.talker, self.device, self.dtype)
        frame_table = predictor_table = self.embeddings.join_tables()
        if config.has_projection:
            at = read.at("code_predictor.small_to_mtp_projection")
            matrix = at["weight"].contiguous()
            bias = at["bias"].contiguous().float()
            # Every row is projected now, so that no frame computes it.
            projected = F.linear(frame_table.float(), matrix.float(), bias)
            predictor_table = projected.to(frame_table.dtype)
            native.projection = self._keep(packing.pack(matrix))
            native.projection_bias = self._keep(bias)
        stack = read.at("code_predictor.model")
        native.predictor = self._load_stack(stack, config.predictor.stack, MAX_STREAMS, groups)
        head = read["codec_head.weight"].contiguous()
        native.codec_head = self._keep(packing.pack(head))
        names = [f"code_predictor.lm_head.{i}.weight" for i in range(groups - 1)]
        heads = torch.stack([packing.pack(read[name]) for name in names])
        native.lm_heads = self._keep(heads)
        native.frame_table = self._keep(frame_table)
        native.predictor_table = self._keep(predictor_table)
        native.codec_eos_id = config.talker.codec_eos_id
        native.suppressed_from = config.talker.suppressed_from
        native.min_frames = MIN_FRAMES

    def _allocate_slots(self, talker: TalkerConfig, sizes: DecoderSizes) -> None:
        """Allocate the state of every slot, and fill the struct `slots`."""
        width, num_slots = talker.stack.hidden_size, sizes.num_slots
        self.seen = self._zeros(num_slots, talker.vocab_size // 32, dtype=torch.int32)
        self.text_rows = self._zeros(num_slots, sizes.most_frames, width)
        self.pad_embed = self._zeros(num_slots, width)
        codes = self._zeros(num_slots, talker.num_code_groups, dtype=torch.int32)
        self.hidden = self._zeros(num_slots, width)
        self.slots = SlotBuffers(
            hidden=self._keep(self.hidden),
            codes=self._keep(codes),
            seen=self._keep(self.seen),
            text_rows=self._keep(self.text_rows),
            pad_embed=self._keep(self.pad_embed),
            max_text_rows=sizes.most_frames,
        )
