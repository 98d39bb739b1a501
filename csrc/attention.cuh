// Grouped-query attention of a weight pass, with the append to the KV cache.
//
// The blocks take items (row, key/value head, split of the context) in turn. How a context is split
// depends on its length alone, so the result has the same bits on every grid. A block does not read
// from the cache what this pass adds, because another block may be writing it, but computes it
// again from qkv: so a pass may hold several positions of a sequence without another barrier. For
// prompts, which have many, prompt_attention.cuh does less work.
#pragma once
#include "kv_cache.cuh"
#include "norm_rope.cuh"

namespace qwen_tts {

constexpr int kSplitBits = 6;  // 64 positions a split, unless that makes more than kMaxSplits
constexpr int kMaxSplits = 64;

// The number of positions in one item of a row, as a power of two.
__device__ __forceinline__ int split_bits(int num_positions) {
  int bits = kSplitBits;
  while (kMaxSplits << bits < num_positions) ++bits;
  return bits;
}

// What one warp has gathered from the positions it has seen: the values, weighted with exp(score -
// maximum), for all query heads that share them. The warp adds several positions at once, so that
// one reduction serves all their scores and the running maximum moves once.
template <class Dims>
class WarpAttention {
  __device__ static constexpr int padded_heads() {  // rounded up to a power of two
    int heads = 1;
    while (heads < Dims::kHeadsPerKv) heads *= 2;
    return heads;
  }

 public:
  static constexpr int kLaneDims = HeadLanes<Dims::kHeadDim>::kLaneDims;
  static constexpr int kLanesOfHead = kWarpSize / padded_heads();  // lanes with its maximum and sum
  static_assert(kLanesOfHead >= 1);
  static constexpr int kAtOnce = kLanesOfHead < 4 ? kLanesOfHead : 4;  // positions in one add()

  float query[Dims::kHeadsPerKv][kLaneDims] = {}, mixed[Dims::kHeadsPerKv][kLaneDims] = {};
  float maximum = -INFINITY;  // of the scores of head lane / kLanesOfHead
  float total = 0;            // of this lane's weights; the head's total is the sum over its lanes

  // Adds positions [0, count), at least one; keys and values of the others must be finite numbers.
  template <int kPositions>
  __device__ __forceinline__ void add(const float (&keys)[kPositions][kLaneDims],
                                      const float (&values)[kPositions][kLaneDims], int count) {
    constexpr int kScores = padded_heads() * kPositions;  // [head][position]
    constexpr int kLanesOfScore = kWarpSize / kScores;
    float scores[kScores] = {};
#pragma unroll
    for (int g = 0; g < Dims::kHeadsPerKv; ++g) {
#pragma unroll
      for (int j = 0; j < kPositions; ++j) {
#pragma unroll
        for (int i = 0; i < kLaneDims; ++i) scores[g * kPositions + j] += query[g][i] * keys[j][i];
      }
    }
    const int lane = opaque(lane_idx());
    float score = warp_sums(scores) * rsqrtf(static_cast<float>(Dims::kHeadDim));
    if (lane / kLanesOfScore % kPositions >= count) score = -INFINITY;
    float new_maximum = fmaxf(maximum, score);
#pragma unroll
    for (int distance = kLanesOfHead / 2; distance >= kLanesOfScore; distance /= 2) {
      new_maximum = fmaxf(new_maximum, __shfl_xor_sync(0xffffffffu, new_maximum, distance));
    }
    const float shrink = expf(maximum - new_maximum), weight = expf(score - new_maximum);
    total = total * shrink + (lane % kLanesOfScore == 0 ? weight : 0.f);
    maximum = new_maximum;
#pragma unroll
    for (int g = 0; g < Dims::kHeadsPerKv; ++g) {
      const float head_shrink = __shfl_sync(0xffffffffu, shrink, g * kLanesOfHead);
#pragma unroll
      for (int i = 0; i < kLaneDims; ++i) mixed[g][i] *= head_shrink;
#pragma unroll
      for (int j = 0; j < kPositions; ++j) {
        const float position_weight =
            __shfl_sync(0xffffffffu, weight, (g * kPositions + j) * kLanesOfScore);
#pragma unroll
        for (int i = 0; i < kLaneDims; ++i) mixed[g][i] += position_weight * values[j][i];
      }
    }
  }

  // The total of head lane / kLanesOfHead, summed over its lanes.
  __device__ __forceinline__ float whole_total() const {
    float sum = total;
#pragma unroll
    for (int distance = kLanesOfHead / 2; distance; distance /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    }
    return sum;
  }
};

template <class Dims>
struct AttentionSmem {
  float queries[Dims::kHeadsPerKv][Dims::kHeadDim];
  float fresh_keys[kMaxRows][Dims::kHeadDim];  // of the positions that this pass adds
  float fresh_values[kMaxRows][Dims::kHeadDim];
  float maximum[kNumWarps][Dims::kHeadsPerKv];                // of the scores that a warp saw
  float total[kNumWarps][Dims::kHeadsPerKv];                  // of the weights exp(score - maximum)
  float mixed[kNumWarps][Dims::kHeadsPerKv][Dims::kHeadDim];  // sums of the weighted values
  int is_last;
};

template <class Dims>
class Attention {
 public:
  // Reads workspace.qkv [num_rows, kQkvSize], writes workspace.attention [num_rows, kQSize].
  //   head_norms  [2, kHeadDim] RMSNorm weights of q and of k
  // It stores nothing that it can compute again: a frame has no register to spare here.
  __device__ Attention(const Stack& stack, int layer, const Weight* head_norms, const Pass& pass,
                       const Workspace& workspace, AttentionSmem<Dims>& smem)
      : stack_(stack),
        cache_(stack, layer),
        head_norms_(head_norms),
        pass_(pass),
        workspace_(workspace),
        smem_(smem) {}

  // The counterpart of ShortAttention::everywhere().
  static __device__ constexpr bool everywhere() { return false; }

  // Prefetches the cached positions that this block will read: the weights of a frame have pushed
  // them out of L2. It needs nothing that the pass writes.
  __device__ void prefetch_cache() const {
    constexpr int kLineElements = 128 / sizeof(Cache);
    for_each_item([&](int row, int head, int, int, int begin, int end) {
      const PassRow& own = pass_.rows[row];
      const int first_fresh = pass_.rows[own.first_row].position;
      const int last = min(end, first_fresh) * kHeadDim;
#pragma unroll 1
      for (int i = begin * kHeadDim + opaque(thread_idx()) * kLineElements; i < last;
           i += kNumThreads * kLineElements) {
        prefetch_l2(cache_.keys(own.slot, head) + i);
        prefetch_l2(cache_.values(own.slot, head) + i);
      }
    });
  }

  // All threads of all blocks call this. A grid barrier must follow before the results are read.
  __device__ void run() {
    for_each_item([&](int row, int head, int split, int num_splits, int begin, int end) {
      attend(row, head, split, num_splits, begin, end);
    });
  }

 private:
  static constexpr int kHeadDim = Dims::kHeadDim;
  static constexpr int kHeadsPerKv = Dims::kHeadsPerKv;
  using Warp = WarpAttention<Dims>;
  static constexpr int kLaneDims = Warp::kLaneDims;
  static constexpr int kPartialSize = kHeadDim + 2;  // maximum, total, mixed
  static constexpr int kSegments = (kHeadDim + kWarpSize - 1) / kWarpSize;

  // Calls do_item(row, head, split, num_splits, first position, end) for the items of this block.
  template <class Item>
  __device__ void for_each_item(const Item& do_item) const {
    int item = block_idx();  // of the row; the blocks take the items of all rows in turn
    for (int row = 0; row < pass_.num_rows; ++row) {
      const int num_positions = pass_.rows[row].position + 1;
      const int bits = split_bits(num_positions);
      const int num_splits = (num_positions + (1 << bits) - 1) >> bits;
      const int num_items = Dims::kNumKvHeads * num_splits;
#pragma unroll 1
      for (; item < num_items; item += num_blocks()) {
        const int split = item / Dims::kNumKvHeads;
        do_item(row, item % Dims::kNumKvHeads, split, num_splits, split << bits,
                min(num_positions, (split + 1) << bits));
      }
      item -= num_items;
    }
  }

  // Attends to positions [begin, end) for one row and the query heads of one key/value head. Ends
  // without a barrier: no thread still reads what the next item writes first.
  __device__ __forceinline__ void attend(int row, int head, int split, int num_splits, int begin,
                                         int end) {
    const int first_row = pass_.rows[row].first_row;
    const int first_fresh = max(pass_.rows[first_row].position, begin);
    prepare(row, head, first_fresh, end);
    __syncthreads();
    mix(pass_.rows[row].slot, head, begin, end, first_fresh);
    __syncthreads();
    merge_warps(row, head, split, num_splits);
    if (num_splits > 1) {
      __syncthreads();  // the whole block has written its part
      if (thread_idx() == 0) {
        unsigned* ticket = workspace_.attention_tickets + row * Dims::kNumKvHeads + head;
        smem_.is_last = add_acquire_release(ticket, 1) == static_cast<unsigned>(num_splits) - 1;
        if (smem_.is_last) store_release(ticket, 0);
      }
      __syncthreads();
      if (smem_.is_last) merge_splits(row, head, num_splits);
    }
  }

  // Stores normalised, rotated queries; and the fresh keys and values of [first_fresh, end),
  // rounded as in the cache. The item with the row's own position appends it to the cache.
  __device__ __forceinline__ void prepare(int row, int head, int first_fresh, int end) {
    const PassRow& own = pass_.rows[row];
    const int num_fresh = max(end - first_fresh, 0);
    for (int task = opaque(warp_idx()); task < kHeadsPerKv + num_fresh; task += kNumWarps) {
      const bool is_query = task < kHeadsPerKv;
      const int fresh = task - kHeadsPerKv;
      const int position = is_query ? own.position : first_fresh + fresh;
      const int source_row = row - (own.position - position);
      const float* source =
          workspace_.qkv + static_cast<size_t>(source_row) * Dims::kQkvSize +
          (is_query ? (head * kHeadsPerKv + task) * kHeadDim : Dims::kQSize + head * kHeadDim);
      // These loads come first, so that everything a head needs waits for L2 at once.
      const int element = opaque(lane_idx()) * kLaneDims;
      const bool has_value = !is_query && element < kHeadDim;
      float value[kLaneDims] = {};
      if (has_value) load_elements(value, source + Dims::kKvSize + element);
      const size_t own_first = static_cast<size_t>(position) * kHeadDim;
      const bool appends = position == own.position;
      RotatedHead<kHeadDim, Dims::kQkNorm, 3>(source,
                                              is_query ? head_norms_ : head_norms_ + kHeadDim,
                                              pass_.rows[source_row].rope_position(), stack_)
          .finish(stack_, [&](int i, const auto& x) {
            if (is_query) {
              store_elements(smem_.queries[task] + i, x);
            } else {
              keep(smem_.fresh_keys[fresh] + i, cache_.keys(own.slot, head) + own_first + i, x,
                   appends);
            }
          });
      if (has_value) {
        keep(smem_.fresh_values[fresh] + element,
             cache_.values(own.slot, head) + own_first + element, value, appends);
      }
    }
  }

  // Stores part of a fresh key or value with the cache's rounding.
  template <int kCount>
  __device__ static void keep(float* fresh, Cache* cached, const float (&values)[kCount],
                              bool appends) {
    float rounded[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) rounded[i] = to_float(from_float<Cache>(values[i]));
    store_elements(fresh, rounded);
    if (appends) store_elements(cached, rounded);
  }

  // Each warp takes every kNumWarps-th position; the softmax keeps a running maximum.
  __device__ __forceinline__ void mix(int slot, int head, int begin, int end, int first_fresh) {
    constexpr int kAtOnce = Warp::kAtOnce;  // cached positions that wait for L2 together
    const int lane = opaque(lane_idx());
    const bool active = lane * kLaneDims < kHeadDim;
    const int element = active ? lane * kLaneDims : 0;  // idle lanes read element 0, unused
    Warp warp;
    if (active) {
#pragma unroll
      for (int g = 0; g < kHeadsPerKv; ++g) {
#pragma unroll
        for (int i = 0; i < kLaneDims; ++i) warp.query[g][i] = smem_.queries[g][element + i];
      }
    }
    int position = begin + opaque(warp_idx());
    const int end_of_cached = min(end, first_fresh);
#pragma unroll 1
    while (position < end_of_cached) {
      const int count = min(kAtOnce, (end_of_cached - position + kNumWarps - 1) / kNumWarps);
      float keys[kAtOnce][kLaneDims], values[kAtOnce][kLaneDims];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int from = (position + (j < count ? j * kNumWarps : 0)) * kHeadDim + element;
        load_elements(keys[j], cache_.keys(slot, head) + from);
        load_elements(values[j], cache_.values(slot, head) + from);
      }
      warp.add(keys, values, count);
      position += count * kNumWarps;
    }
#pragma unroll 1
    for (; position < end; position += kNumWarps) {
      float key[1][kLaneDims], value[1][kLaneDims];
#pragma unroll
      for (int i = 0; i < kLaneDims; ++i) {
        key[0][i] = smem_.fresh_keys[position - first_fresh][element + i];
        value[0][i] = smem_.fresh_values[position - first_fresh][element + i];
      }
      warp.add(key, value, 1);
    }
    const float total = warp.whole_total();
#pragma unroll
    for (int g = 0; g < kHeadsPerKv; ++g) {
      if (active) {
#pragma unroll
        for (int i = 0; i < kLaneDims; ++i) {
          smem_.mixed[warp_idx()][g][element + i] = warp.mixed[g][i];
        }
      }
      if (lane == g * Warp::kLanesOfHead) {
        smem_.maximum[warp_idx()][g] = warp.maximum;
        smem_.total[warp_idx()][g] = total;
      }
    }
  }

  __device__ float* partial(int row, int query_head, int split) const {
    const size_t item = (static_cast<size_t>(row) * Dims::kNumHeads + query_head) * kMaxSplits;
    return workspace_.attention_partials + (item + split) * kPartialSize;
  }

  // Merges the warps' results; a warp that saw no position has maximum -inf and weight 0. A warp
  // merges 32 elements of one head at a time. Lane w computes the weight of warp w for all of them.
  __device__ __forceinline__ void merge_warps(int row, int head, int split, int num_splits) {
    const int lane = opaque(lane_idx());
#pragma unroll 1
    for (int item = warp_idx(); item < kHeadsPerKv * kSegments; item += kNumWarps) {
      const int g = item / kSegments, i = item % kSegments * kWarpSize + lane;
      const int query_head = head * kHeadsPerKv + g;
      const bool is_warp = lane < kNumWarps;
      const float own_maximum = is_warp ? smem_.maximum[lane][g] : -INFINITY;
      const float maximum = warp_max(own_maximum);
      const float own_weight = expf(own_maximum - maximum);
      const float total = warp_sum(is_warp ? smem_.total[lane][g] * own_weight : 0.f);
      float mixed = 0;
      const int element = min(i, kHeadDim - 1);  // idle lanes read the last one; unused
#pragma unroll 8
      for (int warp = 0; warp < kNumWarps; ++warp) {
        mixed += smem_.mixed[warp][g][element] * __shfl_sync(0xffffffffu, own_weight, warp);
      }
      if (i >= kHeadDim) continue;
      if (num_splits == 1) {
        store(row, query_head, i, mixed / total);
      } else {
        float* part = partial(row, query_head, split);
        if (i == 0) {
          part[0] = maximum;
          part[1] = total;
        }
        part[2 + i] = mixed;
      }
    }
  }

  // Merges the splits of a head, in the block that finishes it last. The order of the splits is
  // fixed, whichever block computed each. Lane l computes the weights of splits l and l + 32.
  __device__ __forceinline__ void merge_splits(int row, int head, int num_splits) {
    static_assert(kMaxSplits <= 2 * kWarpSize);
    constexpr int kAtOnce = 8;  // elements loaded from L2 at once, the first ones with the weights
    const int lane = opaque(lane_idx());
#pragma unroll 1
    for (int item = warp_idx(); item < kHeadsPerKv * kSegments; item += kNumWarps) {
      const int i = item % kSegments * kWarpSize + lane;
      const int query_head = head * kHeadsPerKv + item / kSegments;
      const float* parts = partial(row, query_head, 0);
      const auto load = [&](int split, int at, float otherwise) {
        return split < num_splits ? load_activation(parts + split * kPartialSize + at) : otherwise;
      };
      float elements[kAtOnce];
      const auto load_elements_of = [&](int first_split) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          elements[j] = load(first_split + j, 2 + min(i, kHeadDim - 1), 0.f);
        }
      };
      load_elements_of(0);
      const float low_maximum = load(lane, 0, -INFINITY), low_total = load(lane, 1, 0.f);
      const float high_maximum = load(lane + kWarpSize, 0, -INFINITY);
      const float high_total = load(lane + kWarpSize, 1, 0.f);
      const float maximum = warp_max(fmaxf(low_maximum, high_maximum));
      const float low_weight = expf(low_maximum - maximum);
      const float high_weight = expf(high_maximum - maximum);
      const float total = warp_sum(low_total * low_weight + high_total * high_weight);
      float mixed = 0;
#pragma unroll 1
      for (int first = 0;; load_elements_of(first)) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const float weights = first < kWarpSize ? low_weight : high_weight;
          mixed += elements[j] * __shfl_sync(0xffffffffu, weights, (first + j) % kWarpSize);
        }
        first += kAtOnce;
        if (first >= num_splits) break;
      }
      if (i < kHeadDim) store(row, query_head, i, mixed / total);
    }
  }

  __device__ void store(int row, int query_head, int i, float value) const {
    const size_t index = static_cast<size_t>(row) * Dims::kQSize + query_head * kHeadDim + i;
    workspace_.attention[index] = value;
  }

  const Stack& stack_;
  KvCache<Dims> cache_;
  const Weight* head_norms_;
  const Pass& pass_;
  const Workspace& workspace_;
  AttentionSmem<Dims>& smem_;
};

}  // namespace qwen_tts
