// Rows through one stack without drawing anything: the prompt (prefill), or one position at a time.
#pragma once
#include "frame.cuh"

namespace qwen_tts {

// Embeds, runs and normalises p.num_rows consecutive positions, kMaxRows in a weight pass. A token
// id of -1 is the sentinel for "take the prepared embedding". All threads of all blocks.
template <class Dims>
__device__ __forceinline__ void forward_rows(const ForwardParams& p, const Stack& stack,
                                             const void* table, Context& c) {
  constexpr int kHidden = Dims::kHidden;
  prime(c.smem.rings, layer_start<Dims>(stack, 0));
  for (int first = 0; first < p.num_rows; first += kMaxRows) {
    const int count = min(kMaxRows, p.num_rows - first);
    if (thread_idx() < count) {
      const int row = first + thread_idx(), position = p.first_position + row;
      PassRow& pass_row = c.smem.pass.rows[thread_idx()];
      pass_row = {p.slot, position, 0, {position, position, position}};
      for (int axis = 0; p.rope_positions && axis < 3; ++axis) {
        pass_row.rope_position[axis] = p.rope_positions[axis * p.num_rows + row];
      }
    }
    if (thread_idx() == 0) c.smem.pass.num_rows = c.smem.pass.sequence_rows = count;
    for (int i = 0; i < count; ++i) {
      if (!owns_row(i)) continue;
      const int row = first + i;
      float* x = c.workspace.x + static_cast<size_t>(i) * kHidden;
      if (p.tokens[row] >= 0) {
        copy_embedding<kHidden>(x, table, p.tokens[row]);
      } else {
        copy_row<kHidden>(x, p.embeds + static_cast<size_t>(row) * kHidden);
      }
    }
    WeightStream<kRingSlots> weight_stream(c.smem.rings);
    const auto before_layers = [&] { open_layer<Dims>(weight_stream, stack, 0); };
    if (!c.barrier.sync(Stage::kInput, first, before_layers)) return;
    const auto again = [&] { return layer_start<Dims>(stack, 0); };
    if (!decoder_layers<Dims>(c.workspace.x, stack, p.num_layers, weight_stream, again, [] {}, c)) {
      return;
    }
    for (int i = 0; i < count; ++i) {
      if (!owns_row(i)) continue;
      const float* x = c.workspace.x + static_cast<size_t>(i) * kHidden;
      const auto normalise_to = [&](float* out) {
        rms_norm<kHidden>(out, x, static_cast<const Weight*>(stack.final_norm), stack.rms_norm_eps,
                          c.smem.stage.norm);
      };
      if (p.hidden) normalise_to(p.hidden + static_cast<size_t>(first + i) * kHidden);
      if (p.keep_last && first + i + 1 == p.num_rows) {
        normalise_to(c.slots.hidden + static_cast<size_t>(p.slot) * kHidden);
      }
    }
    // No barrier: the next rows overwrite x, but each row in the block that has just read it.
  }
}

}  // namespace qwen_tts
