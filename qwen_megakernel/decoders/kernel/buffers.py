"""Every buffer that the kernel reads or writes, allocated once.

The structs hold addresses; the tensors behind them live as long as this object, and the decoder
keeps it until its last launch is over.
"""

import ctypes

import torch
from torch import Tensor

from qwen_megakernel.checkpoint.config import StackConfig
from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.decoders.embeddings import Embeddings
from qwen_megakernel.decoders.int8 import Int8Matrix
from qwen_megakernel.decoders.kernel import packing
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
from qwen_megakernel.decoders.sampling import MIN_FRAMES
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.errors import OutOfMemory


class KernelBuffers:
    """Weights, KV caches, per-slot state and scratch of one decoder.

    Args:
        checkpoint: weights and config.
        description: what the library says of itself: rows of a pass, splits of attention.
        sizes: as `FrameDecoder` takes them.
    Raises:
        OutOfMemory: the device has not enough free memory; nothing was allocated.
    """

    def __init__(self, checkpoint: Checkpoint, description: Description, sizes: DecoderSizes):
        self.config, self.device, self.dtype = checkpoint.config, sizes.device, sizes.dtype
        self.max_positions, self.max_text_rows = sizes.max_positions, sizes.max_text_rows
        if self.device.type == "cuda":
            self._check_memory(checkpoint, sizes.num_slots)
        self._alive: list[Tensor] = []
        self.embeddings = Embeddings(checkpoint, self.device, self.dtype)
        self.model = self._load_model(checkpoint, sizes.num_slots)
        self.slots = self._allocate_slots(sizes.num_slots)
        self.workspace = self._allocate_workspace(description)

    def _keep(self, tensor: Tensor) -> int:
        """The address of a tensor that lives as long as this object.

        A tensor of a mapped file lies at any multiple of 8 bytes; the kernel reads 16 at a time.
        """
        if tensor.data_ptr() % 16:
            tensor = tensor.clone()
        self._alive.append(check_tensor("buffer", tensor, tensor.shape, tensor.dtype))
        return self._alive[-1].data_ptr()

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _check_memory(self, checkpoint: Checkpoint, num_slots: int) -> None:
        stack, size = self.config.talker.stack, self.dtype.itemsize
        needed = sum(
            weight.values.numel() if isinstance(weight, Int8Matrix) else weight.numel() * size
            for name, weight in checkpoint.talker.items()
            if "text_embedding" not in name
        )
        needed += 2 * stack.num_layers * num_slots * stack.kv_size * self.max_positions * size
        free, _ = torch.cuda.mem_get_info(self.device)
        if needed > free:
            raise OutOfMemory(
                f"Needs about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB free.",
                hint="Use the 0.6B model, fewer slots, or --max-frames 500.",
            )

    def _load_model(self, checkpoint: Checkpoint, num_slots: int) -> Model:
        weights, talker = checkpoint.talker, self.config.talker

        def load(name: str) -> Tensor:
            return weights[name].to(device=self.device, dtype=self.dtype).contiguous()

        tables = self.embeddings.codec_table, *self.embeddings.code_tables
        frame_table = torch.cat(tables)
        # The embeddings read the kernel's table from now on: one copy in memory.
        splits = [len(table) for table in tables]
        self.embeddings.codec_table, *self.embeddings.code_tables = frame_table.split(splits)
        predictor_table, projection, bias = frame_table, None, None
        if self.config.has_projection:
            name = "code_predictor.small_to_mtp_projection."
            matrix, bias = load(name + "weight"), load(name + "bias").float()
            predictor_table = packing.project_table(frame_table, matrix, bias)
            projection, bias = self._keep(packing.pack(matrix)), self._keep(bias)
        lm_heads = packing.pack_lm_heads(weights, self.config, self.device, self.dtype)
        predictor = self.config.predictor.stack
        predictor_slots = MAX_STREAMS, talker.num_code_groups
        return Model(
            talker=self._load_stack(weights, "model.", talker.stack, num_slots, self.max_positions),
            predictor=self._load_stack(
                weights, "code_predictor.model.", predictor, *predictor_slots
            ),
            codec_head=self._keep(packing.pack(load("codec_head.weight"))),
            lm_heads=self._keep(lm_heads),
            projection=projection,
            projection_bias=bias,
            frame_table=self._keep(frame_table),
            predictor_table=self._keep(predictor_table),
            codec_eos_id=talker.codec_eos_id,
            suppressed_from=talker.suppressed_from,
            min_frames=MIN_FRAMES,
        )

    def _load_stack(
        self,
        weights: dict[str, Tensor],
        prefix: str,
        config: StackConfig,
        num_slots: int,
        max_positions: int,
    ) -> Stack:
        norm = weights[prefix + "norm.weight"].to(device=self.device, dtype=self.dtype)
        cos, sin = packing.rope_tables(config, max_positions, self.device)
        cache_shape = (
            *(config.num_layers, num_slots, config.num_kv_heads, max_positions, config.head_dim),
        )
        layers = packing.pack_stack(weights, prefix, config, self.device, self.dtype)
        _, height_pairs, width_pairs = config.mrope_section or (0, 0, 0)
        return Stack(
            layers=self._keep(layers),
            final_norm=self._keep(norm),
            rope_cos=self._keep(cos),
            rope_sin=self._keep(sin),
            keys=self._keep(self._zeros(*cache_shape, dtype=self.dtype)),
            values=self._keep(self._zeros(*cache_shape, dtype=self.dtype)),
            num_layers=config.num_layers,
            num_slots=num_slots,
            max_positions=max_positions,
            mrope_height_pairs=height_pairs,
            mrope_width_pairs=width_pairs,
            rms_norm_eps=config.rms_norm_eps,
        )

    def _allocate_slots(self, num_slots: int) -> SlotBuffers:
        talker = self.config.talker
        width = talker.stack.hidden_size
        self.seen = self._zeros(num_slots, talker.vocab_size // 32, dtype=torch.int32)
        self.text_rows = self._zeros(num_slots, self.max_text_rows, width)
        self.pad_embed = self._zeros(num_slots, width)
        codes = self._zeros(num_slots, talker.num_code_groups, dtype=torch.int32)
        return SlotBuffers(
            hidden=self._keep(self._zeros(num_slots, width)),
            codes=self._keep(codes),
            seen=self._keep(self.seen),
            text_rows=self._keep(self.text_rows),
            pad_embed=self._keep(self.pad_embed),
            max_text_rows=self.max_text_rows,
        )

    def _allocate_workspace(self, description: Description) -> Workspace:
        rows, splits = description.max_rows, description.max_splits
        most_rows = description.max_forward_rows
        stacks = (self.config.talker.stack, self.config.predictor.stack)
        vocab = max(self.config.talker.vocab_size, self.config.predictor.vocab_size)
        self.control = self._zeros(ctypes.sizeof(Control) // 4, dtype=torch.int32)
        # Written by the host while the kernel reads it: mapped memory, not the device's own.
        on_gpu = self.device.type == "cuda"
        self.cancel = torch.zeros(1, dtype=torch.int32, pin_memory=on_gpu)
        self.tickets = self._zeros(rows, max(s.num_kv_heads for s in stacks), dtype=torch.int32)
        partials = max(s.num_heads * splits * (s.head_dim + 2) for s in stacks)
        buffers = {
            "x": self._zeros(most_rows, max(s.hidden_size for s in stacks)),
            "hidden": self._zeros(rows, self.config.talker.stack.hidden_size),
            "qkv": self._zeros(most_rows, max(s.q_size + 2 * s.kv_size for s in stacks)),
            "attention": self._zeros(most_rows, max(s.q_size for s in stacks)),
            "mlp": self._zeros(most_rows, max(s.intermediate_size for s in stacks)),
            "logits": self._zeros(rows, vocab),
            "attention_partials": self._zeros(rows, partials),
            "attention_tickets": self.tickets,
            "control": self.control,
            "cancel": self.cancel,
        }
        return Workspace(**{name: self._keep(buffer) for name, buffer in buffers.items()})
