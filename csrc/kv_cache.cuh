// Addresses of the keys and values of one layer.
#pragma once
#include "common.cuh"
#include "tts_kernel.h"

namespace qwen_tts {

// Caches [num_layers, num_slots, num_kv_heads, max_positions, head_dim].
template <class Dims>
class KvCache {
 public:
  __device__ KvCache(const Stack& stack, int layer) : stack_(stack), layer_(layer) {}

  // [max_positions, head_dim] of one sequence and head
  __device__ Cache* keys(int slot, int head) const {
    return static_cast<Cache*>(stack_.keys) + offset(slot, head);
  }
  __device__ Cache* values(int slot, int head) const {
    return static_cast<Cache*>(stack_.values) + offset(slot, head);
  }

 private:
  __device__ size_t offset(int slot, int head) const {
    const size_t sequence =
        (static_cast<size_t>(layer_) * stack_.num_slots + slot) * Dims::kNumKvHeads + head;
    return sequence * stack_.max_positions * Dims::kHeadDim;
  }

  const Stack& stack_;
  int layer_;
};

}  // namespace qwen_tts
