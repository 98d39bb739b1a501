// How a block walks through its share of a packed matrix, and how it fetches the next one early.
//
// A block owns a contiguous run of 8-row tiles. Its warps share every tile: warp w takes the column
// tiles w, w + kNumWarps, ... Which warp adds which products therefore depends on the matrix alone,
// never on the grid, and a sum has the same bits on every GPU of one build.
//
// Look-ahead. Weights do not change during a launch, so the next matrix is fetched while the grid
// still works on this one and waits at its barrier. Every lane copies exactly the bytes that it
// will use, into slots of its own: no block-wide hand-over is needed. A slot is refilled as soon as
// it was read, so one buffer serves both matrices.
#pragma once
#include "common.cuh"

namespace qwen_tts {

constexpr int kLaneWeights = kTileRows * kTileCols / kWarpSize;   // of one lane in one tile
constexpr int kLaneVectors = kLaneWeights * sizeof(Weight) / 16;  // 16-byte pieces of them
constexpr int kRoundTiles = 4;                                    // tiles between reductions
constexpr int kChunkTiles = CHUNK_COLS / kTileCols;               // column tiles of one chunk
static_assert(kLaneWeights == 8 && CHUNK_COLS % kTileCols == 0);

struct LaneTile {  // one lane's share of a tile: row lane/4, columns 8 (lane%4) ..
  uint4 vector[kLaneVectors];
};

struct WeightSlice {  // a block's share of one packed matrix
  const Weight* tiles = nullptr;
  int begin = 0, end = 0;  // row tiles
  int num_col_tiles = 0;
};

template <int kOut, int kIn>
__device__ WeightSlice weight_slice(const void* packed) {
  static_assert(kOut % kTileRows == 0 && kIn % kTileCols == 0, "a matrix is whole tiles");
  const BlockRange range = block_range(kOut / kTileRows);
  return {static_cast<const Weight*>(packed), range.begin, range.end, kIn / kTileCols};
}

// The tiles of a slice that one warp reads, in the order in which it reads them: rounds of
// kRoundTiles row tiles; within a round chunks of columns; within a chunk row tiles; within a row
// tile every kNumWarps-th column tile. matvec.cuh loops in this order.
class WeightCursor {
 public:
  __device__ explicit WeightCursor(const WeightSlice& slice)
      : slice_(slice), round_(slice.begin), tile_(slice.begin), chunk_(0), col_(warp_idx()) {
    skip_empty();
  }

  __device__ bool valid() const { return tile_ < slice_.end; }

  // This lane's weights of the current tile.
  __device__ const LaneTile* address() const {
    const size_t tile = static_cast<size_t>(tile_) * slice_.num_col_tiles + col_;
    return reinterpret_cast<const LaneTile*>(slice_.tiles) + tile * kWarpSize + lane_idx();
  }

  __device__ void advance() {
    col_ += kNumWarps;
    skip_empty();
  }

 private:
  __device__ int chunk_end() const { return min(chunk_ + kChunkTiles, slice_.num_col_tiles); }
  __device__ int round_end() const { return min(round_ + kRoundTiles, slice_.end); }

  __device__ void skip_empty() {
    while (valid() && col_ >= chunk_end()) {
      if (++tile_ == round_end()) {
        chunk_ += kChunkTiles;
        if (chunk_ >= slice_.num_col_tiles) {
          chunk_ = 0;
          round_ += kRoundTiles;
        }
        tile_ = round_;
      }
      col_ = chunk_ + warp_idx();
    }
  }

  WeightSlice slice_;
  int round_, tile_, chunk_, col_;
};

// One warp's look-ahead buffer.
class WeightAhead {
 public:
  // slots: [num_slots][kLaneVectors][kWarpSize] in shared memory, of this warp alone.
  __device__ WeightAhead(uint4* slots, int num_slots)
      : slots_(slots), num_slots_(num_slots), next_(WeightSlice{}) {}

  // Starts the multiplication by `slice`; `next` is expected to follow it. A wrong expectation
  // costs time and nothing else.
  __device__ void start(const WeightSlice& slice, const WeightSlice& next) {
    copy_async_wait_all();
    num_ready_ = slice.tiles == fetched_ ? num_fetched_ : 0;
    num_fetched_ = 0;
    num_read_ = 0;
    fetched_ = next.tiles;
    next_ = WeightCursor(next);
  }

  // This lane's weights of the warp's next tile, which lies at `address`.
  __device__ LaneTile read(const LaneTile* address) {
    LaneTile tile;
    const int slot = num_read_++;
#pragma unroll
    for (int i = 0; i < kLaneVectors; ++i) {
      tile.vector[i] = slot < num_ready_ ? slot_vector(slot, i) : load_weights(&address->vector[i]);
    }
    return tile;
  }

  // Fills the slots with the first tiles of a launch.
  __device__ void prime(const WeightSlice& first) {
    start(WeightSlice{}, first);
    fetch();
  }

  // Before the thread ends.
  __device__ void drain() { copy_async_wait_all(); }

  // Refills the slots that were read. Slots behind num_ready_ are free from the start.
  __device__ void fetch() {
    const int num_free = num_read_ < num_ready_ ? num_read_ : num_slots_;
    for (; num_fetched_ < num_free && next_.valid(); ++num_fetched_, next_.advance()) {
#pragma unroll
      for (int i = 0; i < kLaneVectors; ++i) {
        copy_async(&slot_vector(num_fetched_, i), &next_.address()->vector[i]);
      }
    }
  }

 private:
  __device__ uint4& slot_vector(int slot, int i) {
    return slots_[(slot * kLaneVectors + i) * kWarpSize + lane_idx()];
  }

  uint4* slots_;
  int num_slots_;
  WeightCursor next_;
  const Weight* fetched_ = nullptr;  // the matrix that the slots are being filled from
  int num_ready_ = 0, num_fetched_ = 0, num_read_ = 0;
};

}  // namespace qwen_tts
