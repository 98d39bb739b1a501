// Grouped-query attention over a short context: the code predictor's, the codes of one frame.
//
// It is little work. If the pass has one sequence, every block does all of it: o_proj finds
// its rows in the block's own shared memory, and the grid need not meet in between. Otherwise
// the blocks take items (sequence, key/value head) in turn. The result has the same bits either
// way.
#pragma once
#include "kv_cache.cuh"
#include "norm_rope.cuh"
#include "short_context.cuh"

namespace qwen_tts {

constexpr int kRowsEverywhere = 2;  // most rows to which every block attends: positions 0 and 1

// Columns of attention as o_proj reads them, in whole tiles.
template <class Dims>
constexpr int kOProjCols = PackedMatrix<Dims::kHidden, Dims::kQSize, Dims::kInt8>::kPaddedIn;

template <class Dims>
struct ShortAttentionSmem {
  // The input of o_proj, at its place in MatvecSmem. By then the rest is free again.
  alignas(16) float activations[kRowsEverywhere * row_stride(kOProjCols<Dims>)];
  ShortContext<Dims> context;
};

template <class Dims>
class ShortAttention {
 public:
  // See Attention.
  __device__ ShortAttention(const Stack& stack, int layer, const Weight* head_norms,
                            const Pass& pass, const Workspace& workspace,
                            ShortAttentionSmem<Dims>& smem)
      : stack_(stack),
        cache_(stack, layer),
        head_norms_(head_norms),
        pass_(pass),
        workspace_(workspace),
        smem_(smem) {}

  // Whether every block does all the work; the result is then in shared memory, not the workspace.
  __device__ bool everywhere() const {
    return pass_.sequence_rows == pass_.num_rows && pass_.num_rows <= kRowsEverywhere;
  }

  // Prefetches the cache of a layer, which the weights of a frame have pushed out of L2: one layer
  // ahead of prefetch_cache(), or for the next pass, which has one position more. One block does it
  // for a sequence, and not the block that draws.
  __device__ static void prefetch_to_l2(const Stack& stack, int layer, const Pass& pass) {
    constexpr int kLineElements = 128 / sizeof(Cache);
    constexpr int kHeadLines = (Dims::kMaxPositions * kHeadDim + kLineElements - 1) / kLineElements;
    const KvCache<Dims> cache(stack, layer);
    for (int row = 0; row < pass.num_rows; ++row) {
      if (!owns_row(num_blocks() - 1 - row % num_blocks())) continue;
      const PassRow& own = pass.rows[row];
#pragma unroll 1
      for (int i = opaque(thread_idx()); i < Dims::kNumKvHeads * kHeadLines; i += kNumThreads) {
        const int head = i / kHeadLines, element = i % kHeadLines * kLineElements;
        if (element >= (own.position + 1) * kHeadDim) continue;
        prefetch_l2(cache.keys(own.slot, head) + element);
        prefetch_l2(cache.values(own.slot, head) + element);
      }
    }
  }

  // Copies the cache for the block's first item. It needs nothing that the pass writes.
  __device__ void prefetch_cache() const {
    const Item item(*this, first_item());
    if (item.first_row < pass_.num_rows) fetch(item);
  }

  // All threads of all blocks call this after prefetch_cache(). It reads workspace.qkv and writes
  // workspace.attention, or, if everywhere(), smem.activations, which is complete on return.
  __device__ void run() const {
    const bool is_everywhere = everywhere();
    const int begin = first_item();
#pragma unroll 1
    for (int i = begin; i == begin || !is_everywhere; i += num_blocks()) {
      const Item item(*this, i);
      if (item.first_row >= pass_.num_rows) break;
      if (i != begin) {
        __syncthreads();  // the block has read what the previous item needed
        fetch(item);
        __syncthreads();  // prepare() writes where fetch() left zeros
      }
#pragma unroll 1
      for (int row = item.first_row; row < item.end_row; ++row) {
        if (row != item.first_row) __syncthreads();  // the block has read the previous queries
        prepare(item, row, !is_everywhere || block_idx() == num_blocks() - 1);
        __syncthreads();
        const auto store = [&](int head, int element, float4 v) {
          this->store(row, head * kHeadDim + element, v, is_everywhere);
        };
#pragma unroll 1
        for (int task = opaque(warp_idx()); task < item.num_heads * Context::kHeadTasks;
             task += kNumWarps) {
          smem_.context.attend(item.first_head * Context::kHeadTasks + task,
                               pass_.rows[row].position + 1, store);
        }
      }
    }
    if (is_everywhere) __syncthreads();
  }

 private:
  static constexpr int kHeadDim = Dims::kHeadDim;
  static constexpr int kQkvSize = Dims::kQkvSize;
  static constexpr int kStride = row_stride(kOProjCols<Dims>);
  static constexpr int kLaneDims = HeadLanes<kHeadDim>::kLaneDims;
  using Context = ShortContext<Dims>;

  // The key/value heads of a sequence that one block takes: one; if everywhere(), all.
  struct Item {
    int first_row, end_row;  // within the pass
    int first_head, num_heads;

    __device__ Item(const ShortAttention& a, int index) {
      first_row = index / Dims::kNumKvHeads * a.pass_.sequence_rows;
      end_row = first_row + a.pass_.sequence_rows;
      first_head = index % Dims::kNumKvHeads;
      num_heads = a.everywhere() ? Dims::kNumKvHeads : 1;
    }
  };
  __device__ int first_item() const { return everywhere() ? 0 : block_idx(); }

  // Copies cached keys and values of a sequence to shared memory, and zeros where nothing is
  // cached: values are multiplied by zero there, and a NaN would remain one. A thread copies the
  // same vector of the same position for some of the heads.
  __device__ void fetch(const Item& item) const {
    constexpr int kVectorCaches = sizeof(uint4) / sizeof(Cache);
    constexpr int kVectors = kHeadDim / kVectorCaches;            // of a head and position
    constexpr int kHeadVectors = Context::kPositions * kVectors;  // of a head
    constexpr int kStep = kNumThreads > kHeadVectors ? kNumThreads / kHeadVectors : 1;
    constexpr int kAtOnce = 4;  // keys, and as many values, that a thread loads from L2 at once
    const PassRow& first = pass_.rows[item.first_row];
#pragma unroll 1
    for (int i = opaque(thread_idx()); i < kStep * kHeadVectors; i += kNumThreads) {
      const int position = i / kVectors % Context::kPositions;
      const int element = i % kVectors * kVectorCaches;
      const int source = position * kHeadDim + element;
#pragma unroll 1
      for (int begin = i / kHeadVectors; begin < item.num_heads; begin += kAtOnce * kStep) {
        uint4 key[kAtOnce], value[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int head = begin + j * kStep;
          const bool is_cached = head < item.num_heads && position < first.position;
          const auto load = [&](const Cache* from) {
            return is_cached ? __ldcg(reinterpret_cast<const uint4*>(from + source)) : uint4{};
          };
          key[j] = load(cache_.keys(first.slot, item.first_head + head));
          value[j] = load(cache_.values(first.slot, item.first_head + head));
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int head = begin + j * kStep;
          if (head >= item.num_heads) continue;
          Cache* to_key = smem_.context.key(item.first_head + head, position, element);
          Cache* to_value = smem_.context.value(item.first_head + head, position, element);
          *reinterpret_cast<uint4*>(to_key) = key[j];
          *reinterpret_cast<uint4*>(to_value) = value[j];
        }
      }
    }
  }

  // Stores normalised, rotated queries of a row, and its keys and values, rounded as in the cache.
  __device__ void prepare(const Item& item, int row, bool appends) const {
    const PassRow& own = pass_.rows[row];
    const float* qkv = workspace_.qkv + static_cast<size_t>(row) * kQkvSize;
    using Head = RotatedHead<kHeadDim, Dims::kQkNorm, 1>;
#pragma unroll 1
    for (int i = opaque(warp_idx()); i < item.num_heads * Dims::kHeadsPerKv; i += kNumWarps) {
      const int query_head = item.first_head * Dims::kHeadsPerKv + i;
      const Head query(qkv + query_head * kHeadDim, head_norms_, own.rope_position(), stack_);
      if (i < item.num_heads) {
        const int head = item.first_head + i;
        const float* k = qkv + Dims::kQSize + head * kHeadDim;
        const int lane_element = opaque(lane_idx()) * kLaneDims;
        float value[kLaneDims] = {};
        if (lane_element < kHeadDim) load_elements(value, k + Dims::kKvSize + lane_element);
        const int own_first = own.position * kHeadDim;
        Cache* keys = cache_.keys(own.slot, head) + own_first;
        Head(k, head_norms_ + kHeadDim, own.rope_position(), stack_)
            .finish(stack_, [&](int first, const auto& x) {
              store_elements(smem_.context.key(head, own.position, first), x);
              if (appends) store_elements(keys + first, x);
            });
        if (lane_element < kHeadDim) {
          store_elements(smem_.context.value(head, own.position, lane_element), value);
          Cache* values = cache_.values(own.slot, head) + own_first;
          if (appends) store_elements(values + lane_element, value);
        }
      }
      query.finish(stack_, [&](int first, const auto& x) {
        smem_.context.store_query(query_head, first, x);
      });
    }
  }

  // Stores four elements of a row of the result.
  __device__ void store(int row, int first, float4 v, bool is_everywhere) const {
    if (is_everywhere) {
      store_activations(smem_.activations + row * kStride + first, v);
      // Zeroes the columns that fill up the last tile.
      constexpr int kPadding = kOProjCols<Dims> - Dims::kQSize;
      if (kPadding && first < kPadding) {
        store_activations(smem_.activations + row * kStride + Dims::kQSize + first,
                          make_float4(0.f, 0.f, 0.f, 0.f));
      }
    } else {
      float* target = workspace_.attention + static_cast<size_t>(row) * Dims::kQSize + first;
      *reinterpret_cast<float4*>(target) = v;
    }
  }

  const Stack& stack_;
  KvCache<Dims> cache_;
  const Weight* head_norms_;
  const Pass& pass_;
  const Workspace& workspace_;
  ShortAttentionSmem<Dims>& smem_;
};

}  // namespace qwen_tts
