// Keys and values of a short context in shared memory, and softmax attention on them by one warp.
//
// In bf16 both products are tensor-core products, as in matvec.cuh: keys are the weights, queries
// and then probabilities are activations, split into hi + lo. In float32 they are plain FMAs.
#pragma once
#include "matvec.cuh"

namespace qwen_tts {

#if WEIGHTS_F32

template <class Dims>
struct ShortContext {
  static constexpr int kHeadDim = Dims::kHeadDim, kPositions = Dims::kMaxPositions;
  static constexpr int kHeadTasks = Dims::kHeadsPerKv;  // of a key/value head, for one warp each

  alignas(16) float queries[Dims::kNumHeads][kHeadDim];
  alignas(16) float keys[Dims::kNumKvHeads][kPositions][kHeadDim];
  alignas(16) float values[Dims::kNumKvHeads][kPositions][kHeadDim];

  // Where elements of a position lie that are whole vectors, or a part of one, from `element` on.
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

  // Attention of query head `task` to positions [0, num_positions). All lanes of a warp.
  //   store  (query head, element, float4)
  template <class Store>
  __device__ void attend(int task, int num_positions, const Store& store) const {
    const int lane = opaque(lane_idx()), kv_head = task / Dims::kHeadsPerKv;
    float scores[kRounds];  // lane l: of position 4 round + l / 8
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
  // A warp scores four positions at a time, eight lanes each.
  static constexpr int kScoreLanes = 8, kScoreRows = kWarpSize / kScoreLanes;
  static constexpr int kRounds = (kPositions + kScoreRows - 1) / kScoreRows;

  // Scaled scores of all positions, -inf where there is none.
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
  static constexpr int kHeadTasks = kParts;           // of a key/value head, for one warp each
  static constexpr int kRow = kParts * kTileCols;     // elements from position to position
  static constexpr int kQueryRow = row_stride(kRow);  // words from head to head
  static constexpr int kSteps =
      (Dims::kMaxPositions + 15) / 16;  // of 16 positions, one product each
  static constexpr int kPositions = 16 * kSteps;

  alignas(16) float queries[Dims::kNumHeads][kQueryRow];  // as store_activations leaves them
  // Vectors of 16 bytes lie in another order in every row, so that those which a product reads at
  // once are in different banks.
  alignas(16) bf16 keys[Dims::kNumKvHeads][kPositions][kRow];
  alignas(16) bf16 values[Dims::kNumKvHeads][kPositions][kRow];

  // Where elements of a position lie that are a vector, or a part of one, from `element` on.
  __device__ bf16* key(int head, int position, int element) {
    return &keys[head][position][element ^ position % 2 * (kTileCols / 2)];
  }
  __device__ bf16* value(int head, int position, int element) {
    return &values[head][position][element ^ position / 2 % 4 * 16];
  }
  template <int kCount>
  __device__ void store_query(int head, int element, const float (&query)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      *reinterpret_cast<uint2*>(&queries[head][element + i]) = split_bf16(query[i], query[i + 1]);
    }
  }
  // Attention of the query heads that share a key/value head to positions [0, num_positions), 64
  // elements of the result. All lanes of a warp.
  //   task   key/value head, which 64 elements
  //   store  (query head, element, float4)
  template <class Store>
  __device__ void attend(int task, int num_positions, const Store& store) const {
    static_assert(kHeadsPerKv <= 8, "hi and lo of their queries are the rows of one product");
    const int kv_head = task / kParts, part = task % kParts;
    const int lane = opaque(lane_idx()), g = lane / 4, t = lane % 4;
    // Of lane 4g+t: query head g, positions 2t, 2t + 1, 2t + 8, 2t + 9 of every step.
    float weights[kSteps][4];
    score(weights, kv_head, num_positions, lane);
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

    // Tile j of the product has element 8 column + j of the part in each of its 8 columns.
    float sums[8][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const float (&w)[4] = weights[step];
      const uint2 near = split_bf16(w[0] * scale, w[1] * scale);
      const uint2 far = split_bf16(w[2] * scale, w[3] * scale);
      const uint4 rows = make_uint4(near.x, near.y, far.x, far.y);
      const bf16* own = &values[kv_head][16 * step + 2 * t][part * kTileCols + (8 * g ^ 16 * t)];
      const auto vector = [&](int position) {
        return *reinterpret_cast<const uint4*>(own + position * kRow);
      };
      const uint4 a = vector(0), b = vector(1), c = vector(8), d = vector(9);
      const auto add = [&](int first, unsigned a2, unsigned b2, unsigned c2, unsigned d2) {
        mma(sums[first], rows, __byte_perm(a2, b2, 0x5410), __byte_perm(c2, d2, 0x5410));
        mma(sums[first + 1], rows, __byte_perm(a2, b2, 0x7632), __byte_perm(c2, d2, 0x7632));
      };
      add(0, a.x, b.x, c.x, d.x);
      add(2, a.y, b.y, c.y, d.y);
      add(4, a.z, b.z, c.z, d.z);
      add(6, a.w, b.w, c.w, d.w);
    }
    const int element = part * kTileCols + 16 * t;
    if (g < kHeadsPerKv && element < kHeadDim) {
#pragma unroll
      for (int i = 0; i < 16; i += 4) {
        const auto of = [&](int j) { return sums[j % 8][j / 8] + sums[j % 8][j / 8 + 2]; };
        store(kv_head * kHeadsPerKv + g, element + i,
              make_float4(of(i), of(i + 1), of(i + 2), of(i + 3)));
      }
    }
  }

 private:
  // Scaled scores as powers of two, -inf where there is no such position.
  __device__ void score(float (&scores)[kSteps][4], int kv_head, int num_positions,
                        int lane) const {
    const int g = lane / 4, t = lane % 4;
    const float* rows = queries[kv_head * kHeadsPerKv];
    const float factor = rsqrtf(static_cast<float>(kHeadDim)) * 1.44269504f;  // log2(e)
    const bf16* own = &keys[kv_head][g][8 * t];
    const int left = g % 2 * (kTileCols / 2), right = kTileCols / 2 - left;
    float sums[2 * kSteps][4] = {};
#pragma unroll
    for (int col = 0; col < kHeadDim; col += kTileCols) {
      ActivationColumns columns = load_columns(rows + col, 0, kHeadsPerKv, kQueryRow);
      const auto exists = [&](int half) {  // do such columns of this lane?
        return kRow == kHeadDim || col + half * (kTileCols / 2) + 8 * t < kHeadDim;
      };
      if (!exists(0)) columns.left[0] = columns.left[1] = uint4{};
      if (!exists(1)) columns.right[0] = columns.right[1] = uint4{};
#pragma unroll
      for (int tile = 0; tile < 2 * kSteps; ++tile) {
        if (kTileRows * tile < num_positions) {
          const bf16* vectors = own + tile * kTileRows * kRow + col;
          const auto vector = [&](int half, int at) {
            return exists(half) ? *reinterpret_cast<const uint4*>(vectors + at) : uint4{};
          };
          mma_tile(sums[tile], columns.left[0], columns.left[1], vector(0, left));
          mma_tile(sums[tile], columns.right[0], columns.right[1], vector(1, right));
        }
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float (&sum)[4] = sums[2 * step + i / 2];
        const bool is_there = 16 * step + i / 2 * 8 + 2 * t + i % 2 < num_positions;
        scores[step][i] = is_there ? (sum[i % 2] + sum[i % 2 + 2]) * factor : -INFINITY;
      }
    }
  }
};

#endif

}  // namespace qwen_tts
