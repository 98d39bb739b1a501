// Grouped-query attention of a prompt, with the append to the KV cache: many rows of one sequence.
//
// The blocks take items (some rows, key/value head) in turn. All rows of an item read keys and
// values in shared memory, a chunk of positions at a time. A block does not read from the cache
// what this pass adds, because another block may be writing it, but computes it again from qkv. The
// order in which a row sees positions depends on the positions alone, so its result has the same
// bits however a prompt is cut into passes, and on every grid.
#pragma once
#include "prompt_context.cuh"

namespace qwen_tts {

// The rows of a pass: consecutive positions of one sequence.
struct PromptRows {
  int slot;
  int first_position, num_rows;
  const int32_t* rope_positions;  // of row 0: time, height, width; null: the cache positions
  int rope_stride;                // from axis to axis
};

template <class Dims>
class PromptAttention {
 public:
  // See Attention; workspace.qkv and workspace.attention have prompt.num_rows rows.
  __device__ PromptAttention(const Stack& stack, int layer, const Weight* head_norms,
                             const PromptRows& prompt, const Workspace& workspace,
                             PromptContext<Dims>& smem)
      : stack_(stack),
        cache_(stack, layer),
        head_norms_(head_norms),
        prompt_(prompt),
        workspace_(workspace),
        smem_(smem) {}

  // All threads of all blocks call this. A grid barrier must follow before the results are read.
  __device__ __forceinline__ void run() {
    const auto num_groups = [&] { return (prompt_.num_rows + kRows - 1) / kRows; };
#pragma unroll 1
    for (int item = block_idx(); item < num_groups() * Dims::kNumKvHeads * kRounds;
         item += num_blocks()) {
      if (item != block_idx()) __syncthreads();  // the block has read the previous item
      // The last rows see most positions: they come first, so that no block starts them late.
      const int group = num_groups() - 1 - item / kRounds / Dims::kNumKvHeads;
      attend(group * kRows, item / kRounds % Dims::kNumKvHeads, item % kRounds);
    }
  }

 private:
  static constexpr int kHeadDim = Dims::kHeadDim;
  static constexpr int kHeadsPerKv = Dims::kHeadsPerKv;
  using Context = PromptContext<Dims>;
  static constexpr int kChunk = Context::kChunk, kRows = Context::kRows;
  static constexpr int kRounds = (Context::kTasks + kNumWarps - 1) / kNumWarps;
  static constexpr int kLaneDims = HeadLanes<kHeadDim>::kLaneDims;

  // Attends for up to kRows rows from `first` on and the query heads of one key/value head. A round
  // does kNumWarps of their tasks.
  __device__ __forceinline__ void attend(int first, int head, int round) {
    const int num_rows = min(kRows, prompt_.num_rows - first);
    const PromptItem rows{num_rows, prompt_.first_position + first + 1};
    const int end = rows.first_end + num_rows - 1;
    const auto task = [&] { return round * kNumWarps + opaque(warp_idx()); };
    typename Context::Mixed mixed;
#pragma unroll 1
    for (int begin = 0; begin < end; begin += kChunk) {
      if (begin) __syncthreads();  // the block has read the previous chunk
      const int chunk_end = min(end, begin + kChunk);
      fetch(head, begin, min(chunk_end, prompt_.first_position));
      prepare(head, first, num_rows, begin, chunk_end, round == 0);
      clear(begin, chunk_end);
      __syncthreads();
      if (task() < Context::kTasks) mixed.add(smem_, task(), rows, begin, chunk_end);
    }
    if (task() < Context::kTasks) {
      mixed.finish(task(), rows, [&](int row, int query_head, int element, const auto& values) {
        store_elements(workspace_.attention + static_cast<size_t>(first + row) * Dims::kQSize +
                           (head * kHeadsPerKv + query_head) * kHeadDim + element,
                       values);
      });
    }
  }

  // Copies cached positions [begin, end) to the chunk that starts at `begin`.
  __device__ __forceinline__ void fetch(int head, int begin, int end) const {
    constexpr int kVectorCaches = sizeof(uint4) / sizeof(Cache);
    const size_t first = static_cast<size_t>(begin) * kHeadDim;
    const Cache* keys = cache_.keys(prompt_.slot, head) + first;
    const Cache* values = cache_.values(prompt_.slot, head) + first;
#pragma unroll 1
    for (int i = opaque(thread_idx()) * kVectorCaches; i < (end - begin) * kHeadDim;
         i += kNumThreads * kVectorCaches) {
      const uint4 key = __ldcg(reinterpret_cast<const uint4*>(keys + i));
      const uint4 value = __ldcg(reinterpret_cast<const uint4*>(values + i));
      const int position = i / kHeadDim, element = i % kHeadDim;
      *reinterpret_cast<uint4*>(smem_.key(position, element)) = key;
      *reinterpret_cast<uint4*>(smem_.value(position, element)) = value;
    }
  }

  // Zeroes the values between the chunk's last position and the end of its product: they are
  // multiplied by zero, and a NaN there would remain one.
  __device__ __forceinline__ void clear(int begin, int end) const {
    constexpr int kProduct = 16;
    const int first = end - begin, last = (first + kProduct - 1) / kProduct * kProduct;
#pragma unroll 1
    for (int i = first * kHeadDim + opaque(thread_idx()) * 2; i < last * kHeadDim;
         i += kNumThreads * 2) {
      const float zeros[2] = {};
      store_elements(smem_.value(i / kHeadDim, i % kHeadDim), zeros);
    }
  }

  // Stores keys and values of the pass's positions in [begin, end), rounded as in the cache, to the
  // chunk that starts at `begin`; with the first chunk also the queries of the item's rows.
  // With `appends` it also appends the positions of these rows to the cache.
  __device__ __forceinline__ void prepare(int head, int first, int num_rows, int begin, int end,
                                          bool appends) {
    const int num_queries = begin == 0 ? num_rows * kHeadsPerKv : 0;
    const int first_fresh = max(begin, prompt_.first_position);
    const int num_tasks = num_queries + max(end - first_fresh, 0);
    const int lane_element = opaque(lane_idx()) * kLaneDims;
#pragma unroll 1
    for (int task = opaque(warp_idx()); task < num_tasks; task += kNumWarps) {
      const bool is_query = task < num_queries;
      const int position = is_query ? prompt_.first_position + first + task / kHeadsPerKv
                                    : first_fresh + task - num_queries;
      const int row = position - prompt_.first_position, query_head = task % kHeadsPerKv;
      const float* source = workspace_.qkv + static_cast<size_t>(row) * Dims::kQkvSize +
                            (is_query ? (head * kHeadsPerKv + query_head) * kHeadDim
                                      : Dims::kQSize + head * kHeadDim);
      // These loads come first, so that everything a head needs waits for L2 at once.
      const bool has_value = !is_query && lane_element < kHeadDim;
      float value[kLaneDims] = {};
      if (has_value) load_elements(value, source + Dims::kKvSize + lane_element);
      const auto rope_position = [&](int axis) {
        return prompt_.rope_positions ? prompt_.rope_positions[axis * prompt_.rope_stride + row]
                                      : position;
      };
      const RotatedHead<kHeadDim, Dims::kQkNorm, 3> rotated(
          source, is_query ? head_norms_ : head_norms_ + kHeadDim, rope_position, stack_);
      const bool is_appended = appends && row >= first && row < first + num_rows;
      const size_t own_first = static_cast<size_t>(position) * kHeadDim;
      rotated.finish(stack_, [&](int i, const auto& x) {
        if (is_query) {
          smem_.store_query(row - first, query_head, i, x);
        } else {
          store_elements(smem_.key(position - begin, i), x);
          if (is_appended) store_elements(cache_.keys(prompt_.slot, head) + own_first + i, x);
        }
      });
      if (has_value) {
        store_elements(smem_.value(position - begin, lane_element), value);
        if (is_appended) {
          store_elements(cache_.values(prompt_.slot, head) + own_first + lane_element, value);
        }
      }
    }
  }

  const Stack& stack_;
  KvCache<Dims> cache_;
  const Weight* head_norms_;
  const PromptRows& prompt_;
  const Workspace& workspace_;
  Context& smem_;
};

}  // namespace qwen_tts
