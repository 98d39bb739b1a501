// Keys and values of a prompt in shared memory, a chunk of positions at a time. Warps run softmax
// attention on them and keep a running maximum.
//
// In bf16 a warp attends for eight queries at a time, on tensor cores (attention_tiles.cuh); in
// float32 for one row.
#pragma once
#include "attention.cuh"
#include "attention_tiles.cuh"

namespace qwen_tts {

// Positions of a chunk: 16 KiB of keys and as many of values, in whole pairs of products.
template <class Dims>
constexpr int kPromptChunk =
    larger(16384 / (Dims::kHeadDim * static_cast<int>(sizeof(Cache))) / 32, 1) * 32;

// Rows that read a chunk together.
struct PromptItem {
  int num_rows;
  int first_end;  // the first row sees positions [0, first_end), each further row one more
};

#if WEIGHTS_F32

template <class Dims>
class PromptContext {
  static constexpr int kHeadDim = Dims::kHeadDim, kHeadsPerKv = Dims::kHeadsPerKv;
  using Warp = WarpAttention<Dims>;
  static constexpr int kLaneDims = Warp::kLaneDims, kAtOnce = Warp::kAtOnce;

 public:
  static constexpr int kChunk = kPromptChunk<Dims>;
  static constexpr int kRows = kNumWarps;  // rows that read a chunk together
  static constexpr int kTasks = kRows;     // one warp does one

  alignas(16) float queries[kRows][kHeadsPerKv][kHeadDim];
  alignas(16) float keys[kChunk][kHeadDim];
  alignas(16) float values[kChunk][kHeadDim];

  // The address of an element of a position of the chunk; a vector, or a part of one, starts there.
  __device__ float* key(int position, int element) { return &keys[position][element]; }
  __device__ float* value(int position, int element) { return &values[position][element]; }
  // Stores part of a row's query, of one of the heads that share the key.
  template <int kCount>
  __device__ void store_query(int row, int head, int element, const float (&query)[kCount]) {
    store_elements(&queries[row][head][element], query);
  }

  // A warp's result for one task, from the chunks so far. The caller passes the task to every call,
  // so that no register holds it.
  class Mixed {
   public:
    // Adds positions [begin, end), which are a chunk. All lanes call this.
    __device__ void add(const PromptContext& context, int task, const PromptItem& item, int begin,
                        int end) {
      if (task >= item.num_rows) return;
      const int lane = opaque(lane_idx());
      const bool active = lane * kLaneDims < kHeadDim;
      const int element = active ? lane * kLaneDims : 0;  // idle lanes read one too; unused
      if (begin == 0 && active) {
#pragma unroll
        for (int g = 0; g < kHeadsPerKv; ++g) {
#pragma unroll
          for (int i = 0; i < kLaneDims; ++i) {
            warp_.query[g][i] = context.queries[task][g][element + i];
          }
        }
      }
      end = min(end, item.first_end + task);
#pragma unroll 1
      for (int position = begin; position < end; position += kAtOnce) {
        const int count = min(kAtOnce, end - position);
        float keys[kAtOnce][kLaneDims], values[kAtOnce][kLaneDims];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int at = position - begin + (j < count ? j : 0);
#pragma unroll
          for (int i = 0; i < kLaneDims; ++i) {
            keys[j][i] = context.keys[at][element + i];
            values[j][i] = context.values[at][element + i];
          }
        }
        warp_.add(keys, values, count);
      }
    }

    //   store  (row, head, element, float[..])
    template <class Store>
    __device__ void finish(int task, const PromptItem& item, const Store& store) {
      if (task >= item.num_rows) return;
      const int lane = opaque(lane_idx());
      const float total = warp_.whole_total();
#pragma unroll
      for (int g = 0; g < kHeadsPerKv; ++g) {
        const float scale = 1.0f / __shfl_sync(0xffffffffu, total, g * Warp::kLanesOfHead);
#pragma unroll
        for (int i = 0; i < kLaneDims; ++i) warp_.mixed[g][i] *= scale;
        if (lane * kLaneDims < kHeadDim) store(task, g, lane * kLaneDims, warp_.mixed[g]);
      }
    }

   private:
    Warp warp_;
  };
};

#else

template <class Dims>
class PromptContext {
  static constexpr int kHeadDim = Dims::kHeadDim, kHeadsPerKv = Dims::kHeadsPerKv;
  static constexpr int kQueries = 8;               // of one product
  static constexpr int kRow = kHeadRow<kHeadDim>;  // elements from position to position
  static constexpr int kParts = kRow / kTileCols;  // a warp mixes 64 elements of the values
  static constexpr int kMostQueries = larger(kNumWarps / kParts, 1) * kQueries;

 public:
  static constexpr int kChunk = kPromptChunk<Dims>;
  // Rows that read a chunk together: so many that their queries, row by row, occupy all warps.
  static constexpr int kRows =
      larger(kMostQueries / kHeadsPerKv < 16 ? kMostQueries / kHeadsPerKv : 16, 1);
  static constexpr int kQueryTiles = (kRows * kHeadsPerKv + kQueries - 1) / kQueries;
  static constexpr int kTasks = kQueryTiles * kParts;  // one warp does one

  alignas(16) float queries[kQueryTiles * kQueries][row_stride(kRow)];  // bf16 pairs
  alignas(16) bf16 keys[kChunk][kRow];
  alignas(16) bf16 values[kChunk][kRow];

  // As in the float32 class.
  __device__ bf16* key(int position, int element) {
    return &keys[position][key_place(position, element)];
  }
  __device__ bf16* value(int position, int element) {
    return &values[position][value_place(position, element)];
  }
  template <int kCount>
  __device__ void store_query(int row, int head, int element, const float (&query)[kCount]) {
    store_query_words(&queries[row * kHeadsPerKv + head][element], query);
  }

  // As in the float32 class; a task is a tile of queries and 64 elements of the values.
  class Mixed {
   public:
    __device__ void add(const PromptContext& context, int task, const PromptItem& item, int begin,
                        int end) {
      const int row = query_of(task) / kHeadsPerKv;
      // Queries of rows that do not exist read position 0; their results are not used.
      const int seen_end = row < item.num_rows ? item.first_end + row : 1;
      const int part = task % kParts;
#pragma unroll 1
      for (int first = begin; first < end; first += kAtOnce) {
        float weights[kSteps][4];
        score_positions<kHeadDim>(weights, context.queries[task / kParts * kQueries], kQueries,
                                  context.keys[first - begin], end - first,
                                  [&](int position) { return first + position < seen_end; });
        float maximum = maximum_;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
          for (int i = 0; i < 4; ++i) maximum = fmaxf(maximum, weights[step][i]);
        }
        maximum = quad_max(maximum);
        const float shrink = exp2f(maximum_ - maximum);
        maximum_ = maximum;
        total_ *= shrink;
#pragma unroll
        for (int tile = 0; tile < 8; ++tile) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums_[tile][i] *= shrink;
        }
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          if (first + 16 * step >= end) break;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            weights[step][i] = exp2f(weights[step][i] - maximum);
            total_ += weights[step][i];
          }
          mix_positions<kRow>(sums_, weights[step],
                              &context.values[first - begin + 16 * step][part * kTileCols]);
        }
      }
    }

    template <class Store>
    __device__ void finish(int task, const PromptItem& item, const Store& store) {
      const float scale = 1.0f / quad_sum(total_);
      const int query = query_of(task);
      store_mixed(sums_, scale, [&](int i, float4 v) {
        const int row = query / kHeadsPerKv, element = task % kParts * kTileCols + i;
        const float four[4] = {v.x, v.y, v.z, v.w};
        if (row < item.num_rows && element < kHeadDim) {
          store(row, query % kHeadsPerKv, element, four);
        }
      });
    }

   private:
    static constexpr int kSteps = 2, kAtOnce = 16 * kSteps;  // positions
    static_assert(kChunk % kAtOnce == 0);
    __device__ static int query_of(int task) {
      return task / kParts * kQueries + opaque(lane_idx()) / 4;
    }

    float maximum_ = -INFINITY, total_ = 0;  // of the positions that this lane saw
    float sums_[8][4] = {};
  };
};

#endif

}  // namespace qwen_tts
