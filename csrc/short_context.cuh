// Keys and values of a short context in shared memory; one warp runs softmax attention on them.
//
// In bf16 both products are tensor-core products (attention_tiles.cuh), in float32 plain FMAs.
#pragma once
#include "attention_tiles.cuh"

namespace qwen_tts {

#if WEIGHTS_F32

template <class Dims>
struct ShortContext {
  static constexpr int kHeadDim = Dims::kHeadDim, kPositions = Dims::kMaxPositions;
  static constexpr int kHeadTasks = Dims::kHeadsPerKv;  // of a key/value head; one warp does one

  alignas(16) float queries[Dims::kNumHeads][kHeadDim];
  alignas(16) float keys[Dims::kNumKvHeads][kPositions][kHeadDim];
  alignas(16) float values[Dims::kNumKvHeads][kPositions][kHeadDim];

  // The address of an element of a position; whole vectors, or a part of one, start there.
  __device__ float* key(int head, int position, int element) {
    return &keys[head][position][element];
  }
  __device__ float* value(int head, int position, int element) {
    return &values[head][position][element];
  }
  template <int kCount>
  __device__ void store_query(int head, int element, const float (&query)[kCount]) {
    store_elements(&queries[head][element], query);
  }

  // Attention of query head `task` to positions [0, num_positions). All lanes of a warp call this.
  //   store  (query head, element, float4)
  template <class Store>
  __device__ void attend(int task, int num_positions, const Store& store) const {
    const int lane = opaque(lane_idx()), kv_head = task / Dims::kHeadsPerKv;
    float scores[kRounds];  // lane l has the score of position 4 round + l / 8
    score(scores, queries[task], keys[kv_head][0], num_positions, lane);
    float maximum = -INFINITY, total = 0;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) maximum = fmaxf(maximum, scores[round]);
    maximum = warp_max(maximum);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      scores[round] = expf(scores[round] - maximum);
      total += scores[round];
    }
    const float scale = kScoreLanes / warp_sum(total);

    // From here on lane l holds elements 4l .. 4l+3.
#pragma unroll
    for (int first = 0; first < kHeadDim; first += 4 * kWarpSize) {
      const int element = first + 4 * lane;
      float4 mixed = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
      for (int position = 0; position < kPositions; ++position) {
        if (position < num_positions) {
          const float weight = __shfl_sync(0xffffffffu, scores[position / kScoreRows],
                                           position % kScoreRows * kScoreLanes);
          if (element < kHeadDim) {
            const float4 v = *reinterpret_cast<const float4*>(&values[kv_head][position][element]);
            mixed = make_float4(mixed.x + weight * v.x, mixed.y + weight * v.y,
                                mixed.z + weight * v.z, mixed.w + weight * v.w);
          }
        }
      }
      if (element < kHeadDim) {
        store(task, element,
              make_float4(mixed.x * scale, mixed.y * scale, mixed.z * scale, mixed.w * scale));
      }
    }
  }

 private:
  // A warp scores four positions at a time, with eight lanes each.
  static constexpr int kScoreLanes = 8, kScoreRows = kWarpSize / kScoreLanes;
  static constexpr int kRounds = (kPositions + kScoreRows - 1) / kScoreRows;

  // Scaled scores of all positions, -inf where a position does not exist.
  __device__ static void score(float (&scores)[kRounds], const float* query, const float* keys,
                               int num_positions, int lane) {
    const float scale = rsqrtf(static_cast<float>(kHeadDim));
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int position = kScoreRows * round + lane / kScoreLanes;
      float sum = 0;
#pragma unroll 1
      for (int i = lane % kScoreLanes * 4; i < kHeadDim; i += 4 * kScoreLanes) {
        if (position >= num_positions) break;
        const float4 q = *reinterpret_cast<const float4*>(query + i);
        const float4 k = *reinterpret_cast<const float4*>(keys + position * kHeadDim + i);
        sum += q.x * k.x + q.y * k.y + q.z * k.z + q.w * k.w;
      }
#pragma unroll
      for (int distance = 1; distance < kScoreLanes; distance <<= 1) {
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
      }
      scores[round] = position < num_positions ? sum * scale : -INFINITY;
    }
  }
};

#else

template <class Dims>
struct ShortContext {
  static constexpr int kHeadDim = Dims::kHeadDim;
  static constexpr int kHeadsPerKv = Dims::kHeadsPerKv;
  // A warp mixes the values of 64 elements for all query heads of one key/value head.
  static constexpr int kParts = (kHeadDim + kTileCols - 1) / kTileCols;
  static constexpr int kHeadTasks = kParts;           // of a key/value head; one warp does one
  static constexpr int kRow = kHeadRow<kHeadDim>;     // elements from position to position
  static constexpr int kQueryRow = row_stride(kRow);  // words from head to head
  static constexpr int kSteps =
      (Dims::kMaxPositions + 15) / 16;  // of 16 positions, one product each
  static constexpr int kPositions = 16 * kSteps;

  alignas(16) float queries[Dims::kNumHeads][kQueryRow];  // in the layout of store_activations
  alignas(16) bf16 keys[Dims::kNumKvHeads][kPositions][kRow];
  alignas(16) bf16 values[Dims::kNumKvHeads][kPositions][kRow];

  // The address of an element of a position; a vector, or a part of one, starts there.
  __device__ bf16* key(int head, int position, int element) {
    return &keys[head][position][key_place(position, element)];
  }
  __device__ bf16* value(int head, int position, int element) {
    return &values[head][position][value_place(position, element)];
  }
  template <int kCount>
  __device__ void store_query(int head, int element, const float (&query)[kCount]) {
    store_query_words(&queries[head][element], query);
  }
  // Attention of the query heads that share a key/value head to positions [0, num_positions), for
  // 64 elements of the result. All lanes of a warp call this. `task` chooses the key/value head and
  // the 64 elements.
  //   store  (query head, element, float4)
  template <class Store>
  __device__ void attend(int task, int num_positions, const Store& store) const {
    static_assert(kHeadsPerKv <= 8, "hi and lo of their queries are the rows of one product");
    const int kv_head = task / kParts, part = task % kParts;
    float weights[kSteps][4];
    score_positions<kHeadDim>(weights, queries[kv_head * kHeadsPerKv], kHeadsPerKv,
                              keys[kv_head][0], num_positions,
                              [&](int position) { return position < num_positions; });
    float maximum = -INFINITY, total = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) maximum = fmaxf(maximum, weights[step][i]);
    }
    maximum = quad_max(maximum);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[step][i] = exp2f(weights[step][i] - maximum);
        total += weights[step][i];
      }
    }
    const float scale = 1.0f / quad_sum(total);
    float sums[8][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[step][i] *= scale;
      mix_positions<kRow>(sums, weights[step], &values[kv_head][16 * step][part * kTileCols]);
    }
    const int head = opaque(lane_idx()) / 4;
    store_mixed(sums, 1.0f, [&](int i, float4 v) {
      const int element = part * kTileCols + i;
      if (head < kHeadsPerKv && element < kHeadDim) {
        store(kv_head * kHeadsPerKv + head, element, v);
      }
    });
  }
};

#endif

}  // namespace qwen_tts
