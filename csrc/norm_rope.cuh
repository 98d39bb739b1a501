// RMSNorm of a whole row; RMSNorm and rotary embedding of one attention head.
#pragma once
#include "common.cuh"
#include "tts_kernel.h"

namespace qwen_tts {

struct NormSmem {
  float warp_sums[kNumWarps];
};

// out[i] = x[i] / rms(x) * weight[i] for i < kSize. All threads of one block call this.
//   x, out  [kSize] f32, global, 16-byte aligned; x was written before the last grid barrier
//   weight  [kSize], global, aligned to four elements
template <int kSize>
__device__ void rms_norm(float* out, const float* x, const Weight* weight, float eps,
                         NormSmem& smem) {
  float squares = 0;
#pragma unroll 1
  for (int i = 4 * opaque(thread_idx()); i < kSize; i += 4 * kNumThreads) {
    const float4 four = load_activation4(x + i);
    squares += four.x * four.x + four.y * four.y + four.z * four.z + four.w * four.w;
  }
  squares = warp_sum(squares);
  if (lane_idx() == 0) smem.warp_sums[warp_idx()] = squares;
  __syncthreads();
  float total = 0;
#pragma unroll 4
  for (int warp = 0; warp < kNumWarps; ++warp) total += smem.warp_sums[warp];
  const float scale = rsqrtf(total / kSize + eps);
#pragma unroll 1
  for (int i = 4 * opaque(thread_idx()); i < kSize; i += 4 * kNumThreads) {
    const float4 four = load_activation4(x + i);
    float weights[4];
    load_elements(weights, weight + i);
    *reinterpret_cast<float4*>(out + i) = {four.x * scale * weights[0], four.y * scale * weights[1],
                                           four.z * scale * weights[2],
                                           four.w * scale * weights[3]};
  }
  __syncthreads();
}

// A head spread over a warp: lane l holds kLaneDims (a power of two) elements from l * kLaneDims.
template <int kHeadDim>
struct HeadLanes {
  static constexpr int kLaneDims = kHeadDim <= 32    ? 1
                                   : kHeadDim <= 64  ? 2
                                   : kHeadDim <= 128 ? 4
                                                     : 8;
  static_assert(kHeadDim % kLaneDims == 0);
};

// The axis whose position rotates `pair`. Sections are interleaved: time, height, width, time, ...
// for as long as height and width have pairs left, then time. With three equal positions this is
// plain RoPE, bit for bit. Source: QwenLM/Qwen3-TTS, apply_multimodal_rotary_pos_emb.
__device__ __forceinline__ int rope_axis(int pair, const Stack& stack) {
  const int axis = pair % 3;
  const int num_pairs = axis == 1   ? stack.mrope_height_pairs
                        : axis == 2 ? stack.mrope_width_pairs
                                    : 0;
  return pair < 3 * num_pairs ? axis : 0;
}

// Applies RMSNorm to one head of q or k, if the model has it, and rotates the pairs (i, i +
// kHeadDim / 2). All lanes of one warp call this; a lane has adjacent pairs. With kAxes 3 the axis
// of a pair chooses the position that rotates it; with kAxes 1 the first position rotates all.
template <int kHeadDim, bool kNorm, int kAxes>
class RotatedHead {
 public:
  // Starts all loads at once, so that those of several heads wait for L2 together.
  //   head           [kHeadDim] f32, global, written before the last grid barrier
  //   weight         [kHeadDim], read only with kNorm
  //   rope_position  (axis) -> position
  template <class RopePosition>
  __device__ RotatedHead(const float* head, const Weight* weight, const RopePosition& rope_position,
                         const Stack& stack)
      : first_(opaque(lane_idx()) * kLanePairs) {
    const int first = inside() ? first_ : 0;  // lanes without a pair read pair 0
    load_elements(lower_, head + first);
    load_elements(upper_, head + first + kPairs);
    if constexpr (kNorm) {
      load_elements(lower_weight_, weight + first);
      load_elements(upper_weight_, weight + first + kPairs);
    }
    if constexpr (kAxes == 1) {
      const int angle = rope_position(0) * kPairs + first;
      load_elements(cos_, stack.rope_cos + angle);
      load_elements(sin_, stack.rope_sin + angle);
    } else {
#pragma unroll
      for (int j = 0; j < kLanePairs; ++j) {
        const int position = rope_position(rope_axis(first + j, stack));
        const int angle = position * kPairs + first + j;
        cos_[j] = __ldcg(stack.rope_cos + angle);
        sin_[j] = __ldcg(stack.rope_sin + angle);
      }
    }
  }

  // Calls store(first, values) with adjacent elements, twice in every lane that has pairs.
  template <class Store>
  __device__ void finish(const Stack& stack, const Store& store) const {
    float scale = 1;
    if constexpr (kNorm) {
      float squares = 0;
#pragma unroll
      for (int j = 0; j < kLanePairs; ++j) {
        squares += lower_[j] * lower_[j] + upper_[j] * upper_[j];
      }
      scale = rsqrtf(warp_sum(inside() ? squares : 0.f) / kHeadDim + stack.rms_norm_eps);
    }
    float lower[kLanePairs], upper[kLanePairs];
#pragma unroll
    for (int j = 0; j < kLanePairs; ++j) {
      const float a = kNorm ? lower_[j] * scale * lower_weight_[j] : lower_[j];
      const float b = kNorm ? upper_[j] * scale * upper_weight_[j] : upper_[j];
      lower[j] = a * cos_[j] - b * sin_[j];
      upper[j] = b * cos_[j] + a * sin_[j];
    }
    if (inside()) {
      store(first_, lower);
      store(first_ + kPairs, upper);
    }
  }

 private:
  static constexpr int kPairs = kHeadDim / 2;
  static constexpr int kLanePairs = kPairs <= 2 * kWarpSize ? 2 : 4;
  static_assert(kPairs % kLanePairs == 0 && kPairs <= kLanePairs * kWarpSize);

  __device__ bool inside() const { return kPairs == kLanePairs * kWarpSize || first_ < kPairs; }

  int first_;  // the first of this lane's pairs
  float lower_[kLanePairs], upper_[kLanePairs], lower_weight_[kLanePairs],
      upper_weight_[kLanePairs];
  float cos_[kLanePairs], sin_[kLanePairs];
};

}  // namespace qwen_tts
