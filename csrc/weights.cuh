// How a block walks through its share of a packed matrix, and how the bytes get there in time.
//
// A block owns a contiguous run of 8-row tiles. Its warps share every tile: warp w takes the column
// tiles w, w + kNumWarps, ... Which warp adds which products therefore depends on the matrix alone,
// never on the grid, and a sum has the same bits on every GPU of one build.
//
// Weights do not change during a launch, so they are fetched without regard to barriers: behind the
// last tile of a matrix the stream goes on with the first tiles of the next, while the grid still
// works and waits. Every lane copies exactly the bytes that it will use itself, so nobody has to
// hand anything over.
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
struct WeightCursor {
  int round, tile, chunk, col;

  __device__ void enter(const WeightSlice& slice) {
    round = tile = slice.begin;
    chunk = 0;
    col = warp_idx();
    skip_empty(slice);
  }
  __device__ bool inside(const WeightSlice& slice) const { return tile < slice.end; }
  __device__ void advance(const WeightSlice& slice) {
    col += kNumWarps;
    skip_empty(slice);
  }

  // This lane's weights of the current tile.
  __device__ const LaneTile* address(const WeightSlice& slice) const {
    const size_t index = static_cast<size_t>(tile) * slice.num_col_tiles + col;
    return reinterpret_cast<const LaneTile*>(slice.tiles) + index * kWarpSize + lane_idx();
  }

 private:
  __device__ void skip_empty(const WeightSlice& slice) {
    while (inside(slice) && col >= min(chunk + kChunkTiles, slice.num_col_tiles)) {
      if (++tile == min(round + kRoundTiles, slice.end)) {
        chunk += kChunkTiles;
        if (chunk >= slice.num_col_tiles) {
          chunk = 0;
          round += kRoundTiles;
        }
        tile = round;
      }
      col = chunk + warp_idx();
    }
  }
};

// What a warp remembers of its stream between two matrices, in shared memory.
struct WeightStreamState {
  const Weight* tiles;  // the matrix that tiles were fetched of; null: none
  WeightCursor cursor;  // its first tile that is not in the ring
  int head;             // slot of its first tile
  int num_fetched;      // tiles of it in the ring
  WeightSlice next;     // while a matrix is read: what comes after it
};

// One ring of tiles for every warp, in shared memory.
template <int kSlots>
struct WeightRings {
  uint4 tiles[kNumWarps][kSlots][kLaneVectors][kWarpSize];
  WeightStreamState states[kNumWarps];
};

// A warp's stream of weights while one matrix is read. save() hands over to the next one.
template <int kSlots>
class WeightStream {
 public:
  // slice  what will be read; tiles that were fetched of another matrix are dropped: a wrong
  //        expectation costs time and nothing else
  // next   what is expected to be read after it
  __device__ WeightStream(WeightRings<kSlots>& rings, const WeightSlice& slice,
                          const WeightSlice& next)
      : ring_(rings.tiles[warp_idx()]),
        state_(rings.states[warp_idx()]),
        from_(slice),
        cursor_(state_.cursor),
        head_(state_.head) {
    if (state_.tiles == slice.tiles) {
      num_used_ = state_.num_fetched;
    } else {
      copy_async_wait<0>();  // or the dropped tiles may land on top of the new ones
      cursor_.enter(slice);
    }
    if (lane_idx() == 0) state_.next = next;
    __syncwarp();
    while (num_used_ < kSlots) fetch();
  }

  // This lane's weights of the warp's next tile; its slot is filled again at once.
  __device__ LaneTile read() {
    // Every slot, with a tile or left empty, is one group of copies, in the order of the slots, and
    // every read starts one more: behind the oldest slot there are at least kSlots - 1 groups.
    copy_async_wait<kSlots - 1>();
    LaneTile tile;
#pragma unroll
    for (int i = 0; i < kLaneVectors; ++i) tile.vector[i] = vector(head_, i);
    head_ = head_ + 1 == kSlots ? 0 : head_ + 1;
    --num_used_;
    fetch();
    return tile;
  }

  // All lanes, when the whole slice has been read.
  __device__ void save() {
    __syncwarp();  // the other lanes may still have to turn to state_.next
    if (lane_idx() == 0) {
      state_ = {state_.next.tiles, cursor_, head_, num_of_next_, WeightSlice{}};
    }
    __syncwarp();
  }

 private:
  // Starts copying the next tile into the next free slot; past the last one the slot stays empty.
  __device__ void fetch() {
    if (num_of_next_ < 0 && !cursor_.inside(from_)) {
      num_of_next_ = 0;
      from_ = state_.next;
      cursor_.enter(from_);
    }
    if (cursor_.inside(from_)) {
      const int slot = (head_ + num_used_) % kSlots;
      const LaneTile* tile = cursor_.address(from_);
#pragma unroll
      for (int i = 0; i < kLaneVectors; ++i) copy_async(&vector(slot, i), &tile->vector[i]);
      cursor_.advance(from_);
      num_of_next_ += num_of_next_ >= 0;
    }
    copy_async_commit();
    ++num_used_;
  }

  __device__ uint4& vector(int slot, int i) { return ring_[slot][i][lane_idx()]; }

  uint4 (&ring_)[kSlots][kLaneVectors][kWarpSize];  // of this warp alone
  WeightStreamState& state_;
  WeightSlice from_;  // what is being fetched: the slice, then the next one
  WeightCursor cursor_;
  int head_;
  int num_used_ = 0;      // slots with a tile, or left empty at the end
  int num_of_next_ = -1;  // tiles of the next matrix in the ring; -1: the slice is not all fetched
};

// Empties the rings at the start of a launch, and fetches what will be read first.
template <int kSlots>
__device__ void prime(WeightRings<kSlots>& rings, const WeightSlice& first) {
  if (lane_idx() == 0) rings.states[warp_idx()] = {};
  __syncwarp();
  WeightStream<kSlots>(rings, WeightSlice{}, first).save();
}

}  // namespace qwen_tts
