// RMSNorm of a whole row; RMSNorm and rotary embedding of one attention head.
#pragma once
#include "common.cuh"
#include "tts_kernel.h"

namespace qwen_tts {

struct NormSmem {
  float warp_sums[kNumWarps];
};

// out[i] = x[i] / rms(x) * weight[i] for i < kSize. All threads of one block.
//   x, out  [kSize] f32, global, 16-byte aligned; x written before the last grid barrier
template <int kSize>
__device__ void rms_norm(float* out, const float* x, const Weight* weight, float eps,
                         NormSmem& smem) {
  float squares = 0;
#pragma unroll 1
  for (int i = thread_idx(); i < kSize; i += kNumThreads) {
    const float value = load_activation(x + i);
    squares += value * value;
  }
  squares = warp_sum(squares);
  if (lane_idx() == 0) smem.warp_sums[warp_idx()] = squares;
  __syncthreads();
  float total = 0;
#pragma unroll 4
  for (int warp = 0; warp < kNumWarps; ++warp) total += smem.warp_sums[warp];
  const float scale = rsqrtf(total / kSize + eps);
#pragma unroll 1
  for (int i = thread_idx(); i < kSize; i += kNumThreads) {
    out[i] = load_activation(x + i) * scale * to_float(weight[i]);
  }
  __syncthreads();
}

// Which of the three positions turns pair i: interleaved sections, time, height, width, time, ...
// for as long as height and width have pairs left, then time. With three equal positions this is
// plain RoPE, bit for bit. Source: QwenLM/Qwen3-TTS, apply_multimodal_rotary_pos_emb.
__device__ __forceinline__ int rope_axis(int pair, const Stack& stack) {
  const int axis = pair % 3;
  const int num_pairs = axis == 1   ? stack.mrope_height_pairs
                        : axis == 2 ? stack.mrope_width_pairs
                                    : 0;
  return pair < 3 * num_pairs ? axis : 0;
}

// One head of q or k: RMSNorm over the head, where the model has one, then rotation of the pairs
// (i, i + kHeadDim / 2). All lanes of one warp.
//   out     [kHeadDim] f32, shared memory; visible to other warps after __syncthreads()
//   head    [kHeadDim] f32, global, written before the last grid barrier
//   weight  [kHeadDim], read only with kNorm
template <int kHeadDim, bool kNorm>
__device__ void norm_rope(float* out, const float* head, const Weight* weight, const PassRow& row,
                          const Stack& stack) {
  constexpr int kPairs = kHeadDim / 2;
  constexpr int kLanePairs = (kPairs + kWarpSize - 1) / kWarpSize;
  const int lane = opaque(lane_idx());
  // Everything is asked for before anything is needed: these loads wait for L2 together.
  float lower[kLanePairs], upper[kLanePairs], lower_weight[kLanePairs], upper_weight[kLanePairs];
  float cos[kLanePairs], sin[kLanePairs];
  [[maybe_unused]] float squares = 0;
#pragma unroll
  for (int j = 0; j < kLanePairs; ++j) {
    const int i = min(lane + j * kWarpSize, kPairs - 1);
    lower[j] = load_activation(head + i);
    upper[j] = load_activation(head + i + kPairs);
    lower_weight[j] = kNorm ? to_float(weight[i]) : 1.f;
    upper_weight[j] = kNorm ? to_float(weight[i + kPairs]) : 1.f;
    const int position = row.rope_position[rope_axis(i, stack)];
    const size_t angle = static_cast<size_t>(position) * kPairs + i;
    cos[j] = __ldg(stack.rope_cos + angle);
    sin[j] = __ldg(stack.rope_sin + angle);
  }
#pragma unroll
  for (int j = 0; j < kLanePairs; ++j) {
    const bool inside = lane + j * kWarpSize < kPairs;
    squares += inside ? lower[j] * lower[j] + upper[j] * upper[j] : 0.f;
  }
  float scale = 1;
  if constexpr (kNorm) scale = rsqrtf(warp_sum(squares) / kHeadDim + stack.rms_norm_eps);
#pragma unroll
  for (int j = 0; j < kLanePairs; ++j) {
    const int i = lane + j * kWarpSize;
    if (i < kPairs) {
      const float a = lower[j] * scale * lower_weight[j];
      const float b = upper[j] * scale * upper_weight[j];
      out[i] = a * cos[j] - b * sin[j];
      out[i + kPairs] = b * cos[j] + a * sin[j];
    }
  }
}

}  // namespace qwen_tts
