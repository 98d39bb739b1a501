// How a block walks through its share of a packed matrix, and how the bytes get there in time.
//
// A block owns a contiguous run of 8-row tiles. Its warps share every tile: warp w takes the column
// tiles w, w + kNumWarps, ... Which warp adds which products therefore depends on the matrix alone,
// never on the grid, and a sum has the same bits on every GPU of one build.
//
// Weights do not change during a launch, so they are fetched without regard to barriers: behind the
// last tile of a matrix the stream goes on with the tiles of the next two, while the grid still
// works and waits. Every lane copies exactly the bytes that it will use itself, so nobody has to
// hand anything over.
#pragma once
#include "common.cuh"

namespace qwen_tts {

constexpr int kLaneWeights = kTileRows * kTileCols / kWarpSize;   // of one lane in one tile
constexpr int kLaneVectors = kLaneWeights * sizeof(Weight) / 16;  // 16-byte pieces of them
constexpr int kRoundTiles = ROUND_TILES;                          // tiles between reductions
constexpr int kChunkCols = CHUNK_COLS;                            // of activations held at once
static_assert(kLaneWeights == 8 && kChunkCols % kInt8TileCols == 0);

// A packed matrix [kOut, kIn]. The tiles of int8 are twice as wide; columns that fill up the last
// one are zero.
template <int kOut_, int kIn_, bool kInt8_ = false>
struct PackedMatrix {
  static constexpr int kOut = kOut_, kIn = kIn_;
  static constexpr bool kInt8 = kInt8_;
  static constexpr int kTileCols = kInt8 ? kInt8TileCols : qwen_tts::kTileCols;
  static constexpr int kColTiles = (kIn + kTileCols - 1) / kTileCols;
  static constexpr int kPaddedIn = kColTiles * kTileCols;
  static constexpr int kChunkTiles = kChunkCols / kTileCols;
  static constexpr int kLaneVectors = kInt8 ? 1 : qwen_tts::kLaneVectors;
  static constexpr size_t kBytes = size_t{kOut} * kPaddedIn * (kInt8 ? 1 : sizeof(Weight));
  static_assert(kOut % kTileRows == 0 && kIn % qwen_tts::kTileCols == 0, "whole tiles");

  const void* tiles;              // 16-byte aligned
  const float* scales = nullptr;  // [kOut], if kInt8; of units of 2^-6 (widen_int8)
};

template <int kVectors>
struct LaneTile {  // one lane's share of a tile: row lane/4, columns 8 (lane%4) ..
  uint4 vector[kVectors];
};

// A block's share of one packed matrix.
struct WeightSlice {
  const void* tiles = nullptr;
  int begin = 0, end = 0;  // row tiles
  // Less than zero: of int8. A word for that alone would be a register too many.
  int signed_num_col_tiles = 0;

  __device__ bool is_int8() const { return kAnyInt8 && signed_num_col_tiles < 0; }
  __device__ int num_col_tiles() const {
    return is_int8() ? -signed_num_col_tiles : signed_num_col_tiles;
  }
  __device__ int chunk_tiles() const {  // column tiles of one chunk
    return kChunkCols / (is_int8() ? kInt8TileCols : kTileCols);
  }
  __device__ int lane_vectors() const { return is_int8() ? 1 : kLaneVectors; }
};

template <class Matrix>
__device__ WeightSlice weight_slice(const Matrix& matrix) {
  static_assert(kAnyInt8 || !Matrix::kInt8);
  const BlockRange range = block_range(Matrix::kOut / kTileRows);
  return {matrix.tiles, range.begin, range.end,
          Matrix::kInt8 ? -Matrix::kColTiles : Matrix::kColTiles};
}

// The tiles of a slice that one warp reads, in the order in which it reads them: rounds of
// kRoundTiles row tiles; within a round chunks of columns; within a chunk row tiles; within a row
// tile every kNumWarps-th column tile. matvec.cuh loops in this order. Every tile costs a step, so
// a step inside a chunk is additions alone; what needs the shape is done once for each chunk.
struct WeightCursor {
  const uint4* address;     // of the current tile; the same for all lanes, as everything here
  int num_cols, cols_left;  // of this warp in a row tile of the chunk: all, and still to be read
  int rows_left;            // row tiles of the chunk, with the current one; 0: the slice is read
  int round, chunk;         // first row tile and first column tile of the chunk

  __device__ void enter(const WeightSlice& slice) {
    round = slice.begin;
    chunk = 0;
    find_tiles(slice);
  }
  __device__ bool inside() const { return rows_left > 0; }
  __device__ void advance(const WeightSlice& slice) {
    int step = kNumWarps;
    if (--cols_left == 0) {
      cols_left = num_cols;
      step = slice.num_col_tiles() - (num_cols - 1) * kNumWarps;
      if (--rows_left == 0) {
        next_chunk(slice);
        find_tiles(slice);
        return;
      }
    }
    address += step * kWarpSize * slice.lane_vectors();
  }

 private:
  __device__ void next_chunk(const WeightSlice& slice) {
    chunk += slice.chunk_tiles();
    if (chunk >= slice.num_col_tiles()) {
      chunk = 0;
      round += kRoundTiles;
    }
  }

  // From this chunk on the first one in which this warp has tiles.
  __device__ void find_tiles(const WeightSlice& slice) {
#pragma unroll 1
    for (; round < slice.end; next_chunk(slice)) {
      const int col = chunk + warp_idx();
      const int end = min(chunk + slice.chunk_tiles(), slice.num_col_tiles());
      if (col < end) {
        const size_t index = static_cast<size_t>(round) * slice.num_col_tiles() + col;
        address = static_cast<const uint4*>(slice.tiles) + index * kWarpSize * slice.lane_vectors();
        num_cols = cols_left = (end - col + kNumWarps - 1) / kNumWarps;
        rows_left = min(kRoundTiles, slice.end - round);
        return;
      }
    }
    rows_left = 0;
  }
};

// What this block will multiply by after the matrix at hand, in this order. Two matrices, because
// one of them alone may be less than the ring holds, and memory would idle while the grid waits.
struct Forecast {
  WeightSlice next, then;
};

// What a warp remembers of its stream between two matrices, in shared memory.
struct WeightStreamState {
  const void* held[2];  // the matrices that tiles were fetched of, in this order; null: none
  WeightCursor cursor;  // the first tile that is not in the ring
  int cursor_in;        // 0 or 1: which of them it is a tile of
  int head;             // slot of the oldest tile
  int num_tiles;        // in the ring
  Forecast forecast;    // while a matrix is read
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
  // slice     what will be read; tiles that were fetched of something else are dropped: a wrong
  //           expectation costs time and nothing else
  // forecast  what is expected to be read after it
  __device__ WeightStream(WeightRings<kSlots>& rings, const WeightSlice& slice,
                          const Forecast& forecast)
      : ring_(rings.tiles[warp_idx()]),
        state_(rings.states[warp_idx()]),
        from_(slice),
        cursor_(state_.cursor),
        head_(state_.head) {
    const bool as_expected = state_.held[0] == slice.tiles &&
                             (state_.cursor_in == 0 || state_.held[1] == forecast.next.tiles);
    if (as_expected) {
      num_tiles_ = state_.num_tiles;
      matrix_ = state_.cursor_in;
      if (matrix_) from_ = forecast.next;
    } else {
      copy_async_wait<0>();  // or the dropped tiles may land on top of the new ones
      cursor_.enter(slice);
    }
    tail_ = (head_ + num_tiles_) % kSlots;
    if (lane_idx() == 0) state_.forecast = forecast;
    __syncwarp();
#pragma unroll 1
    for (int slot = num_tiles_; slot < kSlots; ++slot) fetch();
  }

  // This lane's weights of the warp's next tile; its slot is filled again at once.
  template <int kVectors>
  __device__ LaneTile<kVectors> read() {
    // Every slot, with a tile or left empty, is one group of copies, in the order of the slots, and
    // every read starts one more: behind the oldest slot there are at least kSlots - 1 groups.
    copy_async_wait<kSlots - 1>();
    LaneTile<kVectors> tile;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) tile.vector[i] = vector(head_, i);
    head_ = slot_after(head_);
    --num_tiles_;
    fetch();
    return tile;
  }

  // All lanes, when the whole slice has been read.
  __device__ void save() {
    leave_finished();
    __syncwarp();  // the other lanes may still have to turn to state_.forecast
    if (lane_idx() == 0) {
      state_ = {{state_.forecast.next.tiles, state_.forecast.then.tiles},
                cursor_,
                matrix_ - 1,
                head_,
                num_tiles_,
                Forecast{}};
    }
    __syncwarp();
  }

 private:
  // Turns to the next matrix with tiles for this warp, as far as there is a forecast.
  __device__ void leave_finished() {
#pragma unroll 1
    while (matrix_ < 2 && !cursor_.inside()) {
      from_ = matrix_++ == 0 ? state_.forecast.next : state_.forecast.then;
      cursor_.enter(from_);
    }
  }

  // Starts copying the next tile into the next free slot; without a forecast the slot stays empty.
  __device__ void fetch() {
    leave_finished();
    if (cursor_.inside()) {
      const uint4* own = cursor_.address + lane_idx() * from_.lane_vectors();
#pragma unroll
      for (int i = 0; i < kLaneVectors; ++i) {
        if (i < from_.lane_vectors()) copy_async(&vector(tail_, i), &own[i]);
      }
      cursor_.advance(from_);
      tail_ = slot_after(tail_);
      ++num_tiles_;
    }
    copy_async_commit();
  }

  __device__ uint4& vector(int slot, int i) { return ring_[slot][i][lane_idx()]; }
  __device__ static int slot_after(int slot) { return slot + 1 == kSlots ? 0 : slot + 1; }

  uint4 (&ring_)[kSlots][kLaneVectors][kWarpSize];  // of this warp alone
  WeightStreamState& state_;
  WeightSlice from_;  // what is being fetched
  WeightCursor cursor_;
  int head_, tail_;    // slots of the oldest tile, and of the next one that is fetched
  int num_tiles_ = 0;  // in the ring
  int matrix_ = 0;     // 0: the slice is being fetched; 1, 2: the first, the second of the forecast
};

// Empties the rings at the start of a launch, and fetches what will be read first.
template <int kSlots>
__device__ void prime(WeightRings<kSlots>& rings, const Forecast& first) {
  if (lane_idx() == 0) rings.states[warp_idx()] = {};
  __syncwarp();
  WeightStream<kSlots>(rings, WeightSlice{}, first).save();
}

}  // namespace qwen_tts
