// Both products of attention on tensor cores, for eight queries, by one warp. Keys are the weights;
// queries, and then probabilities, are the activations, split into hi + lo as in matvec.cuh. Lane
// 4g+t works on query g.
#pragma once
#include "matvec.cuh"

#if !WEIGHTS_F32
namespace qwen_tts {

// Row length of keys and values in shared memory, in whole tiles. Each row orders its 16-byte
// vectors differently, so that vectors that a product reads together lie in different banks.
template <int kHeadDim>
constexpr int kHeadRow = (kHeadDim + kTileCols - 1) / kTileCols * kTileCols;
__device__ __forceinline__ int key_place(int position, int element) {
  return element ^ position % 2 * (kTileCols / 2);
}
__device__ __forceinline__ int value_place(int position, int element) {
  return element ^ position / 2 % 4 * 16;
}

// Stores part of a query in the layout of store_activations.
template <int kCount>
__device__ __forceinline__ void store_query_words(float* words, const float (&query)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    *reinterpret_cast<uint2*>(words + i) = split_bf16(query[i], query[i + 1]);
  }
}

// Scaled scores as powers of two: scores[s] holds positions 2t, 2t + 1, 2t + 8, 2t + 9 of the s-th
// sixteen positions.
//   queries        [num_queries][row_stride(kHeadRow)] words
//   keys           [16 kSteps][kHeadRow]
//   num_positions  no query sees a key from here on, so no score is computed
//   is_seen        (position) -> bool; if false, the score is -inf
template <int kHeadDim, int kSteps, class IsSeen>
__device__ __forceinline__ void score_positions(float (&scores)[kSteps][4], const float* queries,
                                                int num_queries, const bf16* keys,
                                                int num_positions, const IsSeen& is_seen) {
  constexpr int kRow = kHeadRow<kHeadDim>;
  const int lane = opaque(lane_idx()), g = lane / 4, t = lane % 4;
  const float factor = rsqrtf(static_cast<float>(kHeadDim)) * 1.44269504f;  // log2(e)
  const bf16* own = keys + g * kRow + 8 * t;
  const int left = g % 2 * (kTileCols / 2), right = kTileCols / 2 - left;
  float sums[2 * kSteps][4] = {};
#pragma unroll
  for (int col = 0; col < kHeadDim; col += kTileCols) {
    ActivationColumns columns = load_columns(queries + col, lane, 0, num_queries, row_stride(kRow));
    const auto exists = [&](int half) {  // whether this lane has such columns
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
      const bool is_there = is_seen(16 * step + i / 2 * 8 + 2 * t + i % 2);
      scores[step][i] = is_there ? (sum[i % 2] + sum[i % 2 + 2]) * factor : -INFINITY;
    }
  }
}

// Adds the weighted values of sixteen positions to `sums`, 64 elements of each. Tile j of the
// product holds element 8 column + j in each of its 8 columns.
//   values   [16][row], from the first of these elements on
//   weights  of the lane's four positions
template <int kRow>
__device__ __forceinline__ void mix_positions(float (&sums)[8][4], const float (&weights)[4],
                                              const bf16* values) {
  const int lane = opaque(lane_idx()), g = lane / 4, t = lane % 4;
  const uint2 near = split_bf16(weights[0], weights[1]);
  const uint2 far = split_bf16(weights[2], weights[3]);
  const uint4 rows = make_uint4(near.x, near.y, far.x, far.y);
  const bf16* own = values + 2 * t * kRow + value_place(2 * t, 8 * g);
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

// Stores this lane's elements of these sums, 16t .. 16t + 15 of the 64, times `scale`.
//   store  (element, float4)
template <class Store>
__device__ __forceinline__ void store_mixed(const float (&sums)[8][4], float scale,
                                            const Store& store) {
  const int t = opaque(lane_idx()) % 4;
#pragma unroll
  for (int i = 0; i < 16; i += 4) {
    const auto of = [&](int j) { return (sums[j % 8][j / 8] + sums[j % 8][j / 8 + 2]) * scale; };
    store(16 * t + i, make_float4(of(i), of(i + 1), of(i + 2), of(i + 3)));
  }
}

}  // namespace qwen_tts
#endif
