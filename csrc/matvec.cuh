// One weight pass: y[row] = W x[row] for 1..16 rows, weights read once.
//
// In bf16 a tile of 8 weight rows is the B operand of a tensor-core product and the rows are A.
// Activations are split into hi + lo bf16, which keeps 16 bits of mantissa: the residual error is
// 2^-17 per factor, not 2^-9. Up to 8 rows, hi and lo share one product (lo fills the idle rows
// 8..15); from 9 rows on there are two. Sums have the same bits either way, so a stream's result
// does not depend on how many others there are. In float32 the products are plain FMAs.
#pragma once
#include <type_traits>

#include "weights.cuh"

namespace qwen_tts {

constexpr int kSegment = 4 * kWarpSize;               // columns that one warp loads at once
constexpr int kChunkStride = kChunkCols + kTileCols;  // columns plus padding (row_stride)
constexpr int kMaxSegments = (kMaxHidden + kSegment - 1) / kSegment;

struct MatvecSmem {
  // f32 [rows][stride], or bf16 in pairs of rows (num_stored_rows)
  alignas(16) float activations[kMaxRows * kChunkStride];
  alignas(16) float partials[kNumWarps][kRoundTiles][kMaxRows][kTileRows];
  float sum_squares[kMaxRows][kMaxSegments];
  float norm_scale[kMaxRows];
};

// Where a pass reads its rows.
template <bool kNormed_>
struct InputRows {
  static constexpr bool kNormed = kNormed_;  // do they pass through RMSNorm on the way?
  const float* x;                            // [num_rows], global, visible to this block
  size_t stride;                             // floats from row to row
  int num_rows;                              // 1 .. kMaxRows
  const Weight* norm_weight = nullptr;       // [columns], if kNormed
  float norm_eps = 0;
};
using Rows = InputRows<false>;
using NormedRows = InputRows<true>;

// Words from row to row of activations in shared memory. A tensor-core fragment reads 16 of every
// 32 bytes of two rows at once: they lie in different banks.
__device__ __forceinline__ int row_stride(int num_cols) { return num_cols + 4; }

#if WEIGHTS_F32
__device__ __forceinline__ int num_stored_rows(int num_rows) { return num_rows; }
#else
// A fragment of A has rows g and g + 8. What a lane brings of both lies side by side, so that one
// load of 16 bytes is what one product wants: columns 4i, 4i+1 of the first row, then of the
// second, then columns 4i+2, 4i+3 likewise. Up to 8 rows, first and second are hi and lo of the
// same row; from 9 rows on they are rows g and g + 8, in eight pairs of hi and then eight of lo.
constexpr int kMostPairs = kMaxRows / 2;
__device__ __forceinline__ bool is_one_product(int num_rows) { return num_rows <= kMostPairs; }
__device__ __forceinline__ int num_stored_rows(int num_rows) {
  return is_one_product(num_rows) ? num_rows : 2 * kMostPairs;
}
#endif

__device__ __forceinline__ float4 load_weight_vector4(const float* address) {
  return __ldg(reinterpret_cast<const float4*>(address));
}
__device__ __forceinline__ float4 load_weight_vector4(const bf16* address) {
  const uint2 pairs = __ldg(reinterpret_cast<const uint2*>(address));
  return make_float4(lower_bf16(pairs.x), upper_bf16(pairs.x), lower_bf16(pairs.y),
                     upper_bf16(pairs.y));
}

// Four activations of one row to shared memory, in the form that the product wants.
__device__ __forceinline__ void store_activations(float* activations, float4 v, int row, int col,
                                                  int stride, [[maybe_unused]] int num_rows) {
#if WEIGHTS_F32
  *reinterpret_cast<float4*>(&activations[row * stride + col]) = v;
#else
  const uint2 hi = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
  const uint2 lo = make_uint2(pack_bf16(v.x - lower_bf16(hi.x), v.y - upper_bf16(hi.x)),
                              pack_bf16(v.z - lower_bf16(hi.y), v.w - upper_bf16(hi.y)));
  if (is_one_product(num_rows)) {
    *reinterpret_cast<uint4*>(&activations[row * stride + col]) =
        make_uint4(hi.x, lo.x, hi.y, lo.y);
  } else {
    const int pair = row % kMostPairs, second = row / kMostPairs;
    unsigned* words = reinterpret_cast<unsigned*>(activations) + col + second;
    words[pair * stride] = hi.x;
    words[pair * stride + 2] = hi.y;
    words[(kMostPairs + pair) * stride] = lo.x;
    words[(kMostPairs + pair) * stride + 2] = lo.y;
  }
#endif
}

// Copies columns [begin, end) of every row to shared memory, times the norm weight, and keeps the
// sum of squares of the columns. Columns that fill up tiles are zero. RMSNorm's scale is one factor
// per row: it is applied to the sums at the end, and nobody waits for it here.
template <class Matrix, class Input>
__device__ void load_rows(const Input& rows, int begin, int end, MatvecSmem& smem) {
  const int num_segments = (end - begin + kSegment - 1) / kSegment;
  const int stride = row_stride(end - begin);
#pragma unroll 1
  for (int item = warp_idx(); item < rows.num_rows * num_segments; item += kNumWarps) {
    const int row = item / num_segments;
    const int col = begin + item % num_segments * kSegment + 4 * lane_idx();
    const bool inside = col < end;
    const bool exists = inside && (Matrix::kPaddedIn == Matrix::kIn || col < Matrix::kIn);
    float4 v = exists ? load_activation4(rows.x + row * rows.stride + col)
                      : make_float4(0.f, 0.f, 0.f, 0.f);
    if constexpr (Input::kNormed) {
      // Asked for before the sum: both loads wait for L2 together.
      const float4 weight =
          exists ? load_weight_vector4(rows.norm_weight + col) : make_float4(0.f, 0.f, 0.f, 0.f);
      const float squares = warp_sum(v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w));
      if (lane_idx() == 0) smem.sum_squares[row][col / kSegment] = squares;
      v = make_float4(v.x * weight.x, v.y * weight.y, v.z * weight.z, v.w * weight.w);
    }
    if (inside) store_activations(smem.activations, v, row, col - begin, stride, rows.num_rows);
  }
}

#if WEIGHTS_F32

// partials[tile][row] += this warp's part of one chunk: lane 4g+t adds up columns 8t .. 8t+7 of
// weight row g (of int8 also 32 columns further), then the four lanes of g are summed.
template <class Matrix, class Stream>
__device__ void multiply(float (*partials)[kTileRows], Stream& weights, int num_chunk_tiles,
                         const float* activations, int stride, int num_rows, bool first_chunk) {
  float sums[kMaxRows] = {};

#pragma unroll 1
  for (int col = warp_idx(); col < num_chunk_tiles; col += kNumWarps) {
    const LaneTile<Matrix::kLaneVectors> tile = weights.template read<Matrix::kLaneVectors>();
    const float* x = activations + col * Matrix::kTileCols + lane_idx() % 4 * kLaneWeights;
    const auto add = [&](const float* w) {
#pragma unroll
      for (int row = 0; row < kMaxRows; ++row) {
        if (row < num_rows) {
          const float4 a = *reinterpret_cast<const float4*>(x + row * stride);
          const float4 b = *reinterpret_cast<const float4*>(x + row * stride + 4);
          sums[row] += w[0] * a.x + w[1] * a.y + w[2] * a.z + w[3] * a.w;
          sums[row] += w[4] * b.x + w[5] * b.y + w[6] * b.z + w[7] * b.w;
        }
      }
    };
    if constexpr (Matrix::kInt8) {
      const uint4 bytes = tile.vector[0];
#pragma unroll 1
      for (int half = 0; half < 2; ++half, x += kTileCols) {
        const uint2 a = widen_int8(half ? bytes.z : bytes.x);
        const uint2 b = widen_int8(half ? bytes.w : bytes.y);
        const float w[kLaneWeights] = {lower_bf16(a.x), upper_bf16(a.x), lower_bf16(a.y),
                                       upper_bf16(a.y), lower_bf16(b.x), upper_bf16(b.x),
                                       lower_bf16(b.y), upper_bf16(b.y)};
        add(w);
      }
    } else {
      add(reinterpret_cast<const float*>(&tile));
    }
  }
#pragma unroll
  for (int row = 0; row < kMaxRows; ++row) {
    if (row < num_rows) {
      const float sum = quad_sum(sums[row]);
      float* partial = &partials[row][lane_idx() / 4];
      if (lane_idx() % 4 == 0) *partial = first_chunk ? sum : *partial + sum;
    }
  }
}

#else

// The same on tensor cores. Lane 4g+t brings columns 8t .. 8t+7 of activation rows g and g+8 and of
// weight row g; it gets the sums of rows g and g+8 with weight rows 2t and 2t+1. A dot product does
// not care in which order its columns come, so both sides simply use the order of their 16-byte
// pieces. A tile of int8 is widened to two of bf16.
template <class Matrix, class Stream>
__device__ void multiply(float (*partials)[kTileRows], Stream& weights, int num_chunk_tiles,
                         const float* activations, int stride, int num_rows, bool first_chunk) {
  const int group = lane_idx() / 4, pair = lane_idx() % 4;
  const bool one_product = is_one_product(num_rows);
  const bool has_upper = group < num_rows;
  const bool has_lower = one_product ? has_upper : group + 8 < num_rows;
  const uint4* hi = reinterpret_cast<const uint4*>(activations + (has_upper ? group : 0) * stride +
                                                   pair * kLaneWeights);
  const uint4* lo = hi + kMostPairs * stride / 4;
  // What a lane without a row brings, nobody reads. For the emulation it is zero: then it is free.
  const bool is_empty = kZerosAreFree && !has_upper;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  float sums_hi[4] = {}, sums_lo[4] = {};

#pragma unroll 1
  for (int col = warp_idx(); col < num_chunk_tiles; col += kNumWarps) {
    const uint4 tile = weights.template read<1>().vector[0];
    const auto add = [&](int offset, const uint4& b) {  // offset of the 16 bytes of four columns
      mma_tile(sums_hi, is_empty ? zero : hi[offset], is_empty ? zero : hi[offset + 1], b);
      if (!one_product) mma_tile(sums_lo, lo[offset], lo[offset + 1], b);
    };
    const int offset = col * (Matrix::kTileCols / 4);
    if constexpr (Matrix::kInt8) {
      const auto widen = [](unsigned first, unsigned second) {
        const uint2 a = widen_int8(first), b = widen_int8(second);
        return make_uint4(a.x, a.y, b.x, b.y);
      };
      add(offset, widen(tile.x, tile.y));
      add(offset + kTileCols / 4, widen(tile.z, tile.w));
    } else {
      add(offset, tile);
    }
  }
  if (one_product) {
    sums_lo[0] = sums_hi[2];
    sums_lo[1] = sums_hi[3];
  }
  const auto store = [&](int row, float a, float b) {
    float2* partial = reinterpret_cast<float2*>(&partials[row][2 * pair]);
    *partial = first_chunk ? make_float2(a, b) : make_float2(partial->x + a, partial->y + b);
  };
  if (has_upper) store(group, sums_hi[0] + sums_lo[0], sums_hi[1] + sums_lo[1]);
  if (!one_product && has_lower) {
    store(group + 8, sums_hi[2] + sums_lo[2], sums_hi[3] + sums_lo[3]);
  }
}

#endif

// The epilogue that adds the product to rows: x[row][i] += y[row][i].
struct AddTo {
  float* x;  // [num_rows, stride], global
  size_t stride;
};

// For every output row o of this block's slice and every input row r:
//   epilogue(r, o, (y[r][o], y[r][o + 1])) for even o, by one thread of the block; or AddTo.
// All threads. No grid barrier inside: what the epilogue writes is visible to other blocks after
// the caller's GridBarrier::sync().
//   matrix  W
//   after   this block's shares of what it will multiply by next
template <class Matrix, class Input, class Epilogue, int kSlots>
__device__ void matvec(const Matrix& matrix, const Forecast& after, const Input& rows,
                       const Epilogue& epilogue, MatvecSmem& smem, WeightRings<kSlots>& rings) {
  constexpr int kIn = Matrix::kIn, kPaddedIn = Matrix::kPaddedIn, kColTiles = Matrix::kColTiles;
  constexpr int kChunkTiles = Matrix::kChunkTiles;
  static_assert(!Input::kNormed || kIn <= kMaxHidden);
  const WeightSlice slice = weight_slice(matrix);
  // Everything at once where the rows fit; else chunk by chunk, again for every round.
  const bool resident =
      num_stored_rows(rows.num_rows) * row_stride(kPaddedIn) <= kMaxRows * kChunkStride;
  bool loaded = false;
  WeightStream<kSlots> weights(rings, slice, after);
#pragma unroll 1
  for (int round = slice.begin; round < slice.end; round += kRoundTiles) {
    const int num_tiles = min(kRoundTiles, slice.end - round);
#pragma unroll 1
    for (int chunk = 0; chunk < kColTiles; chunk += kChunkTiles) {
      const int chunk_end = min(chunk + kChunkTiles, kColTiles);
      const int begin = resident ? 0 : chunk * Matrix::kTileCols;
      const int end = resident ? kPaddedIn : chunk_end * Matrix::kTileCols;
      if (!loaded) {
        __syncthreads();  // the previous chunk has been read
        load_rows<Matrix>(rows, begin, end, smem);
        __syncthreads();
        loaded = resident;
        if constexpr (Input::kNormed) {
          if (end == kPaddedIn && thread_idx() < rows.num_rows) {
            float squares = 0;
            for (int i = 0; i < (kIn + kSegment - 1) / kSegment; ++i) {
              squares += smem.sum_squares[thread_idx()][i];
            }
            smem.norm_scale[thread_idx()] = rsqrtf(squares / kIn + rows.norm_eps);
          }
        }
      }
      const float* activations =
          smem.activations + chunk * Matrix::kTileCols - begin;  // columns in front of this chunk
#pragma unroll 1
      for (int tile = 0; tile < num_tiles; ++tile) {
        multiply<Matrix>(smem.partials[warp_idx()][tile], weights, chunk_end - chunk, activations,
                         row_stride(end - begin), rows.num_rows, chunk == 0);
      }
    }
    __syncthreads();  // partials and norm_scale are complete
    // As many as if the round were full: a division by num_tiles takes longer than the sums.
    constexpr int kRowItems = kRoundTiles * kTileRows / 2;
#pragma unroll 1
    for (int item = thread_idx(); item < rows.num_rows * kRowItems; item += kNumThreads) {
      const int pair = item % (kTileRows / 2);
      const int tile = item / (kTileRows / 2) % kRoundTiles;
      const int row = item / kRowItems;
      if (tile >= num_tiles) continue;
      const int out = (round + tile) * kTileRows + 2 * pair;
      constexpr bool kAdds = std::is_same_v<Epilogue, AddTo>;
      [[maybe_unused]] float2 old, *target, row_scale;
      if constexpr (kAdds) {  // on its way while the parts are summed
        target = reinterpret_cast<float2*>(epilogue.x + row * epilogue.stride + out);
        old = __ldcg(target);
      }
      if constexpr (Matrix::kInt8) {  // likewise
        row_scale = __ldg(reinterpret_cast<const float2*>(matrix.scales + out));
      }
      float2 sum = make_float2(0.f, 0.f);
#pragma unroll 8
      for (int warp = 0; warp < kNumWarps; ++warp) {
        const float2 partial =
            *reinterpret_cast<const float2*>(&smem.partials[warp][tile][row][2 * pair]);
        sum = make_float2(sum.x + partial.x, sum.y + partial.y);
      }
      if constexpr (Input::kNormed) {
        const float scale = smem.norm_scale[row];
        sum = make_float2(sum.x * scale, sum.y * scale);
      }
      if constexpr (Matrix::kInt8) {
        sum = make_float2(sum.x * row_scale.x, sum.y * row_scale.y);
      }
      if constexpr (kAdds) {
        *target = make_float2(old.x + sum.x, old.y + sum.y);
      } else {
        epilogue(row, out, sum);
      }
    }
    __syncthreads();  // partials have been read
  }
  weights.save();
}

}  // namespace qwen_tts
