// One weight pass: y[row] = W x[row] for 1..16 rows. It reads the weights once.
//
// In bf16 a tile of 8 weight rows is the B operand of a tensor-core product and the rows are A.
// Activations are split into hi + lo bf16, which keeps 16 bits of mantissa: the residual error is
// 2^-17 per factor instead of 2^-9. The hi of eight rows are rows 0..7 of A, their lo are rows
// 8..15; nine rows and more take a second product. In float32 the products are plain FMAs.
#pragma once
#include <type_traits>

#include "stage_times.cuh"
#include "weights.cuh"

namespace qwen_tts {

// The number of columns that one warp loads at once.
constexpr int kSegment = 4 * kWarpSize;
constexpr int kMaxSegments = (kMaxHidden + kSegment - 1) / kSegment;

// The distance in words between rows of activations in shared memory. A tensor-core fragment reads
// 16 of every 32 bytes of two rows at once; this distance puts them in different banks.
__device__ __forceinline__ constexpr int row_stride(int num_cols) { return num_cols + 4; }

// The place of a row's partial sums within a row tile. Half a warp reads one row of four tiles at
// once; this permutation puts them in different banks.
__device__ __forceinline__ constexpr int partials_row(int tile, int row) { return row ^ tile; }
static_assert((kMaxRows & (kMaxRows - 1)) == 0 && kRoundTiles <= kMaxRows);

struct MatvecSmem {
  // [rows][stride] f32, or bf16 in the layout of store_activations
  alignas(16) float activations[kMaxRows * row_stride(kChunkCols)];
  alignas(16) float partials[kNumWarps][kRoundTiles][kMaxRows][kTileRows];
  float sum_squares[kMaxRows][kMaxSegments];
  float norm_scale[kMaxRows];
};

// The rows that a pass reads.
template <bool kNormed_, int kMostRows_ = kMaxRows>
struct InputRows {
  static constexpr bool kNormed = kNormed_;  // whether RMSNorm is applied to them
  static constexpr int kMostRows = kMostRows_;
  const float* x;                       // [num_rows], global, visible to this block
  size_t stride;                        // floats from row to row
  int num_rows;                         // 1 .. kMostRows
  const Weight* norm_weight = nullptr;  // [columns], if kNormed
  float norm_eps = 0;
  bool loaded = false;  // whether shared memory already has all columns, as load_rows stores them
};
using Rows = InputRows<false>;
using NormedRows = InputRows<true>;

__device__ __forceinline__ float4 load_weight_vector4(const float* address) {
  return __ldg(reinterpret_cast<const float4*>(address));
}
__device__ __forceinline__ float4 load_weight_vector4(const bf16* address) {
  const uint2 pairs = __ldg(reinterpret_cast<const uint2*>(address));
  return make_float4(lower_bf16(pairs.x), upper_bf16(pairs.x), lower_bf16(pairs.y),
                     upper_bf16(pairs.y));
}

// Stores four activations of one row to shared memory in the product's layout. In bf16, a lane
// reads row g of A, which is hi, and row g + 8, which is lo, next to each other: one load of 16
// bytes serves one product.
__device__ __forceinline__ void store_activations(float* target, float4 v) {
#if WEIGHTS_F32
  *reinterpret_cast<float4*>(target) = v;
#else
  const uint2 first = split_bf16(v.x, v.y), second = split_bf16(v.z, v.w);
  *reinterpret_cast<uint4*>(target) = make_uint4(first.x, first.y, second.x, second.y);
#endif
}

// Copies columns [begin, end) of every row to shared memory, multiplied by the norm weight, and
// stores each row's sum of squares. Columns that fill up tiles are zero. RMSNorm's scale is one
// factor per row, which matvec() applies to the finished sums, so no thread waits for it here.
template <class Matrix, class Input>
__device__ __forceinline__ void load_rows(const Input& rows, int begin, int end, MatvecSmem& smem) {
  constexpr int kAtOnce = 4;  // segments that a warp loads from L2 at the same time
  const int num_segments = (end - begin + kSegment - 1) / kSegment;
  const int stride = row_stride(end - begin);
  const float4 zeros = make_float4(0.f, 0.f, 0.f, 0.f);
  const int lane_col = begin + 4 * opaque(lane_idx());
  const auto exists = [&](int col) {
    return col < end && (Matrix::kPaddedIn == Matrix::kIn || col < Matrix::kIn);
  };
  struct Place {
    int row, segment;
  };
  const auto carried = [&](Place place) {  // cheaper than a division
#pragma unroll 1
    for (; place.segment >= num_segments; place.segment -= num_segments) ++place.row;
    return place;
  };
  float4 weight = zeros;
  int weight_segment = -1;
  const auto load_weight = [&](int segment) {  // successive segments of a warp mostly share columns
    if (!Input::kNormed || segment == weight_segment) return;
    const int col = lane_col + segment * kSegment;
    weight = exists(col) ? load_weight_vector4(rows.norm_weight + col) : zeros;
    weight_segment = segment;
  };
#pragma unroll 1
  for (Place place = carried({0, opaque(warp_idx())}); place.row < rows.num_rows;) {
    load_weight(place.segment);
    float4 xs[kAtOnce] = {};
    Place ahead = place;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (ahead.row >= rows.num_rows) break;
      const int col = lane_col + ahead.segment * kSegment;
      xs[i] = exists(col) ? load_activation4(rows.x + ahead.row * rows.stride + col) : zeros;
      ahead = carried({ahead.row, ahead.segment + kNumWarps});
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (place.row >= rows.num_rows) break;
      float4 v = xs[i];
      if constexpr (Input::kNormed) {
        load_weight(place.segment);
        const float squares = warp_sum(v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w));
        const int index = begin / kSegment + place.segment;
        if (lane_idx() == 0) smem.sum_squares[place.row][index] = squares;
        v = make_float4(v.x * weight.x, v.y * weight.y, v.z * weight.z, v.w * weight.w);
      }
      const int col = lane_col + place.segment * kSegment;
      if (col < end) {
        store_activations(smem.activations + place.row * stride + (col - begin), v);
      }
      place = carried({place.row, place.segment + kNumWarps});
    }
  }
}

// The sums of one warp in a round: the products of its columns with up to kRoundTiles row tiles.
// store() writes them to smem.partials[warp].
#if WEIGHTS_F32

template <int kMostRows>
class WarpSums {
 public:
  __device__ WarpSums(MatvecSmem& smem, int num_rows, int num_tiles)
      : partials_(smem.partials[warp_idx()]), num_rows_(num_rows), num_tiles_(num_tiles) {
    for (int tile = 0; tile < num_tiles_; ++tile) {
      for (int row = 0; row < num_rows_; ++row) {
        if (lane_idx() % 4 == 0) partials_[tile][partials_row(tile, row)][lane_idx() / 4] = 0;
      }
    }
  }

  // Adds one column tile of every row tile; `activations` begins at its first column. Lane 4g+t
  // multiplies sixteen activations by weights of row g, then the four lanes of g add their sums.
  template <class Matrix, class Stream>
  __device__ void add_column(Stream& weights, const float* activations, int stride) {
#pragma unroll 1
    for (int tile = 0; tile < num_tiles_; ++tile) {
      LaneTile<Matrix::kLaneVectors> tiles[1];
      weights.front(tiles);
      const LaneTile<Matrix::kLaneVectors>& pieces = tiles[0];
#pragma unroll 1
      for (int row = 0; row < num_rows_; ++row) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float4 w = four_of_tile(pieces, i);
          const int col = Matrix::kInt8 ? i / 2 * (kTileCols / 2) + lane_idx() % 4 * 8 + i % 2 * 4
                                        : i * (kTileCols / 4) + lane_idx() % 4 * 4;
          const float4 a = *reinterpret_cast<const float4*>(activations + row * stride + col);
          sum += w.x * a.x + w.y * a.y + w.z * a.z + w.w * a.w;
        }
        sum = quad_sum(sum);
        if (lane_idx() % 4 == 0) partials_[tile][partials_row(tile, row)][lane_idx() / 4] += sum;
      }
      weights.pop();
    }
  }

  __device__ void store() const {}  // the sums are there already

 private:
  __device__ static float4 four_of_tile(const LaneTile<4>& f32, int i) {
    return reinterpret_cast<const float4&>(f32.vector[i]);
  }
  __device__ static float4 four_of_tile(const LaneTile<1>& int8, int i) {
    const uint4& bytes = int8.vector[0];
    const uint2 pairs = widen_int8(i == 0   ? bytes.x
                                   : i == 1 ? bytes.y
                                   : i == 2 ? bytes.z
                                            : bytes.w);
    return make_float4(lower_bf16(pairs.x), upper_bf16(pairs.x), lower_bf16(pairs.y),
                       upper_bf16(pairs.y));
  }

  float (&partials_)[kRoundTiles][kMaxRows][kTileRows];
  int num_rows_, num_tiles_;
};

#else

// A lane's share of 64 columns of up to eight rows: four columns in each vector.
struct ActivationColumns {
  uint4 left[2], right[2];  // of the first 32 columns, of the other 32
};
//   activations  of these columns, in shared memory
//   num_rows     a lane beyond the last row reads row 0, and no code uses the resulting sums; in
//                the emulation it returns zeros, which cost nothing there.
__device__ __forceinline__ ActivationColumns load_columns(const float* activations, int lane,
                                                          int first_row, int num_rows, int stride) {
  constexpr int kHalf = kTileCols / 2 / 4;
  int row = first_row + lane / 4;
  if (row >= num_rows) {
    if (kZerosAreFree) return {};
    row = 0;
  }
  const uint4* four = reinterpret_cast<const uint4*>(activations + row * stride + lane % 4 * 8);
  return {{four[0], four[1]}, {four[kHalf], four[kHalf + 1]}};
}

template <int kMostRows>
class WarpSums {
 public:
  __device__ WarpSums(MatvecSmem& smem, int num_rows, int num_tiles)
      : partials_(smem.partials[warp_idx()]), num_rows_(num_rows), num_tiles_(num_tiles) {}

  // Adds one column tile of every row tile, on tensor cores; `activations` begins at its first
  // column. Lane 4g+t reads columns 8t .. 8t+7 of each half of a tile, of activation row g and of
  // weight row g; it gets the sums of row g with weight rows 2t and 2t+1. The order of columns does
  // not matter to a dot product, so both sides use the order of their 16-byte pieces.
  template <class Matrix, class Stream>
  __device__ void add_column(Stream& weights, const float* activations, int stride) {
    const auto columns_of = [&](int first_row) {
      // A prompt's stages have no register left to hold the address at which a lane reads.
      const int lane = Stream::kTeams ? opaque(lane_idx()) : lane_idx();
      return load_columns(activations, lane, first_row, num_rows_, stride);
    };
    const ActivationColumns first = columns_of(0);
#pragma unroll
    for (int tile = 0; tile < kRoundTiles; tile += kTilesAtOnce) {
      const int count = min(num_tiles_ - tile, kTilesAtOnce);
      if (count <= 0) break;
      if (count == kTilesAtOnce) {
        add_tiles<Matrix, kTilesAtOnce>(weights, tile, first, columns_of);
      } else {
        add_tiles<Matrix, 1>(weights, tile, first, columns_of);
      }
      weights.pop();
      if (count == kTilesAtOnce) weights.pop();
    }
  }

  __device__ void store() {
#pragma unroll
    for (int tile = 0; tile < kRoundTiles; ++tile) {
      if (tile < num_tiles_) {
        const auto store_row = [&](int row, const float (&sums)[4]) {  // adds hi and lo
          if (row < num_rows_) {
            *reinterpret_cast<float2*>(
                &partials_[tile][partials_row(tile, row)][lane_idx() % 4 * 2]) =
                make_float2(sums[0] + sums[2], sums[1] + sums[3]);
          }
        };
        store_row(lane_idx() / 4, sums_[tile]);
        if constexpr (kMostRows > kFewRows) {
          store_row(lane_idx() / 4 + kFewRows, more_sums_[tile]);
        }
      }
    }
  }

 private:
  static constexpr int kTilesAtOnce = 2;  // row tiles whose products do not wait for each other
  static_assert(kTilesAtOnce == 2 && kRoundTiles % kTilesAtOnce == 0);

  // Adds `kCount` row tiles from `tile` on, each in the same order of columns.
  template <class Matrix, int kCount, class Stream, class ColumnsOf>
  __device__ __forceinline__ void add_tiles(Stream& weights, int tile,
                                            const ActivationColumns& first,
                                            const ColumnsOf& columns_of) {
    using Pieces = LaneTile<Matrix::kLaneVectors>;
    Pieces pieces[kCount];
    weights.front(pieces);
    const auto add = [&](float (*sums)[4], const ActivationColumns& rows) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4(&columns)[2] = half ? rows.right : rows.left;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          mma_tile(sums[i], columns[0], columns[1], half_of_tile(pieces[i], half));
        }
      }
    };
    add(sums_ + tile, first);
    if constexpr (kMostRows > kFewRows) {
      // Every tile reads these columns again: a frame has no registers to keep them.
      if (num_rows_ > kFewRows) add(more_sums_ + tile, columns_of(kFewRows));
    }
  }

  __device__ static uint4 half_of_tile(const LaneTile<2>& bf16, int half) {
    return bf16.vector[half];
  }
  __device__ static uint4 half_of_tile(const LaneTile<1>& int8, int half) {
    const uint4& bytes = int8.vector[0];
    const uint2 a = widen_int8(half ? bytes.z : bytes.x), b = widen_int8(half ? bytes.w : bytes.y);
    return make_uint4(a.x, a.y, b.x, b.y);
  }

  float (&partials_)[kRoundTiles][kMaxRows][kTileRows];
  int num_rows_, num_tiles_;
  float sums_[kRoundTiles][4] = {};                                  // rows 0..7
  float more_sums_[kMostRows > kFewRows ? kRoundTiles : 1][4] = {};  // rows 8..15
};

#endif

// The epilogue that adds the product to a residual: x[row][i] += y[row][i].
struct AddTo {
  float* x;  // [num_rows, stride], global
  size_t stride;
};

// Computes y = W x. For every even output row o of this block's share and every input row r, one
// thread calls epilogue(r, o, (y[r][o], y[r][o + 1])), unless the epilogue is AddTo.
// All threads call this when none still uses `smem`. There is no grid barrier inside: other blocks
// see what the epilogue writes, and `smem` is free, after the caller's GridBarrier::sync().
//   weights  a WeightStream, opened for W and not yet closed
//   matrix   W
template <class Matrix, class Input, class Epilogue, class Stream>
__device__ __forceinline__ void matvec(Stream& weights, const Matrix& matrix, const Input& rows,
                                       const Epilogue& epilogue, MatvecSmem& smem) {
  constexpr int kIn = Matrix::kIn, kPaddedIn = Matrix::kPaddedIn;
  static_assert(!Input::kNormed || kIn <= kMaxHidden);
  // If all columns of the rows fit, they are loaded once; otherwise in chunks, by every round.
  const bool resident = kPaddedIn <= kChunkCols ||
                        rows.num_rows * row_stride(kPaddedIn) <= kMaxRows * row_stride(kChunkCols);
  bool loaded = rows.loaded;
  const BlockRange share = weights.rows();
#pragma unroll 1
  for (int round = share.begin; round < share.end; round += kRoundTiles) {
    const int num_tiles = min(kRoundTiles, share.end - round);
    WarpSums<Input::kMostRows> sums(smem, rows.num_rows, num_tiles);
#pragma unroll 1
    for (int begin = 0, end; begin < kPaddedIn; begin = end) {
      end = resident ? kPaddedIn : min(begin + kChunkCols, kPaddedIn);
      if (!loaded) {
        if (begin || round != share.begin) __syncthreads();  // the previous chunk has been read
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
      if (kStageTimes && round == share.begin && begin == 0) {
        if (thread_idx() == 0) stamp(Stamp::kRowsReady);
        weights.wait_for_front();
        if (thread_idx() == 0) stamp(Stamp::kFirstTile);
      }
#pragma unroll 1
      for (int col = begin + warp_idx() * kTileCols; col < end; col += kNumWarps * kTileCols) {
        sums.template add_column<Matrix>(weights, smem.activations + (col - begin),
                                         row_stride(end - begin));
      }
    }
    if (thread_idx() == 0) stamp(Stamp::kLastTile);
    sums.store();
    __syncthreads();  // partials and norm_scale are complete
    // The count of a full round, because a division by num_tiles would take longer than the sums.
    constexpr unsigned kTilePairs = kTileRows / 2;
    const unsigned num_items = rows.num_rows * kRoundTiles * kTilePairs;
#pragma unroll 1
    for (unsigned item = thread_idx(); item < num_items; item += kNumThreads) {
      const int pair = item % kTilePairs;
      const int tile = item / kTilePairs % kRoundTiles;
      const int row = item / kTilePairs / kRoundTiles;
      if (tile >= num_tiles) continue;
      const int out = (round + tile) * kTileRows + 2 * pair;
      constexpr bool kAdds = std::is_same_v<Epilogue, AddTo>;
      [[maybe_unused]] float2 old, *target, row_scale;
      if constexpr (kAdds) {  // this load runs while the parts are summed
        target = reinterpret_cast<float2*>(epilogue.x + row * epilogue.stride + out);
        old = __ldcg(target);
      }
      if constexpr (Matrix::kInt8) {  // so does this one
        row_scale = __ldg(reinterpret_cast<const float2*>(matrix.scales + out));
      }
      float2 sum = make_float2(0.f, 0.f);
#pragma unroll
      for (int warp = 0; warp < kNumWarps; ++warp) {
        const float2 partial = *reinterpret_cast<const float2*>(
            &smem.partials[warp][tile][partials_row(tile, row)][2 * pair]);
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
    if (round + kRoundTiles < share.end) __syncthreads();  // the block has read the partials
  }
  weights.close();
}

}  // namespace qwen_tts
