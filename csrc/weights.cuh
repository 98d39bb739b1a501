// How a block walks through its share of a packed matrix, and how the bytes arrive in time.
//
// A block owns a contiguous run of 8-row tiles. Its warps share every row of tiles: warp w takes
// the column tiles w, w + kNumWarps, ... So the matrix alone decides which warp adds which
// products, never the grid, and a sum has the same bits on every GPU of one build.
//
// Weights do not change during a launch, so fetching them ignores barriers: after the last tile of
// a matrix the stream continues with the tiles of the next two, while the grid still works and
// waits. Every lane copies exactly the bytes that it will use itself, so threads need not
// synchronise to exchange them.
#pragma once
#include "common.cuh"

namespace qwen_tts {

constexpr int kVectorsOfWeight = kTileRows * kTileCols * sizeof(Weight) / (16 * kWarpSize);
constexpr int kRoundTiles = ROUND_TILES;  // row tiles between reductions
constexpr int kChunkCols = CHUNK_COLS;    // columns of activations held at once
static_assert(kChunkCols % (kTileCols * kNumWarps) == 0, "tiles of a chunk for every warp alike");

// A packed matrix [kOut, kIn]; columns that fill up the last tile are zero.
template <int kOut_, int kIn_, bool kInt8_ = false>
struct PackedMatrix {
  static constexpr int kOut = kOut_, kIn = kIn_;
  static constexpr bool kInt8 = kInt8_;
  static constexpr int kColTiles = (kIn + kTileCols - 1) / kTileCols;
  static constexpr int kPaddedIn = kColTiles * kTileCols;
  static constexpr int kLaneVectors = kInt8 ? 1 : kVectorsOfWeight;
  static constexpr size_t kBytes = size_t{kOut} * kPaddedIn * (kInt8 ? 1 : sizeof(Weight));
  static_assert(kOut % kTileRows == 0 && kIn % 4 == 0, "whole tiles, whole vectors of activations");

  const void* tiles;              // 16-byte aligned
  const float* scales = nullptr;  // [kOut], if kInt8; in units of 2^-6 (widen_int8)
};

template <int kVectors>
struct LaneTile {  // one lane's 16-byte pieces of a tile (packing.py)
  uint4 vector[kVectors];
};

// A packed matrix as the stream sees it: all of it, or the rows of tiles that one block owns.
struct alignas(16) TileGrid {
  const uint4* tiles = nullptr;
  int num_rows = 0;         // of tiles
  int signed_num_cols = 0;  // of tiles; negative if the tiles are int8, which saves a word

  __device__ bool is_int8() const { return kAnyInt8 && signed_num_cols < 0; }
  __device__ int num_cols() const { return is_int8() ? -signed_num_cols : signed_num_cols; }
  __device__ int lane_vectors() const { return is_int8() ? 1 : kVectorsOfWeight; }
  // 16-byte pieces of one tile, and of a row of tiles
  __device__ int tile_vectors() const { return lane_vectors() * kWarpSize; }
  __device__ int row_vectors() const { return num_cols() * tile_vectors(); }

  __device__ TileGrid rows(BlockRange range) const {
    return {tiles + static_cast<size_t>(range.begin) * row_vectors(), range.end - range.begin,
            signed_num_cols};
  }
};

template <class Matrix>
__device__ TileGrid tile_grid(const Matrix& matrix) {
  static_assert(kAnyInt8 || !Matrix::kInt8);
  return {static_cast<const uint4*>(matrix.tiles), Matrix::kOut / kTileRows,
          Matrix::kInt8 ? -Matrix::kColTiles : Matrix::kColTiles};
}

// A warp's place in a block's share of a matrix. The warp reads tiles in this order: rounds of
// kRoundTiles row tiles; within a round every kNumWarps-th column tile; within a column tile the
// row tiles of the round, called a run. The loops of matvec.cuh have the same order. The warp takes
// a step for every tile, so a step inside a run consists of additions alone.
struct WeightCursor {
  const uint4* address;  // of this lane's first piece of the current tile
  int run_left;          // tiles left in the run, with the current one; 0: all have been read
  int rows_left;         // row tiles of the share from the first one of the run on
  int col;               // column tile of the run
  int signed_num_cols;   // of the share

  __device__ TileGrid grid() const { return {nullptr, 0, signed_num_cols}; }
  __device__ bool inside() const { return run_left > 0; }
  __device__ void enter(const TileGrid& share) {
    signed_num_cols = share.signed_num_cols;
    col = opaque(warp_idx());
    address = share.tiles + col * share.tile_vectors() + opaque(lane_idx());
    rows_left = col < share.num_cols() ? share.num_rows : 0;
    run_left = min(kRoundTiles, rows_left);
  }
  // Steps to the next tile. Returns false at the end of a run; the caller then calls next_run().
  __device__ bool advance() {
    address += grid().row_vectors();
    return --run_left != 0;
  }
  __device__ void next_run() {
    const int run = min(kRoundTiles, rows_left);
    if (col + kNumWarps < grid().num_cols()) {  // the same rows again
      address += kNumWarps * grid().tile_vectors() - run * grid().row_vectors();
      col += kNumWarps;
    } else {
      address -= (col - warp_idx()) * grid().tile_vectors();
      col = warp_idx();
      rows_left -= run;
    }
    run_left = min(kRoundTiles, rows_left);
  }
};

// The two matrices that this block will multiply by after the current one, in this order. One alone
// may be smaller than the ring, and memory would then idle while the grid waits.
struct Forecast {
  TileGrid next, then;
};

// The state of a warp's stream between two matrices, in shared memory.
struct WeightStreamState {
  TileGrid forecast[2];     // this block's shares of the two matrices after the last one opened
  const void* expected[2];  // the addresses of these matrices
  WeightCursor cursor;      // lane 0's, at the first tile that is not in the ring
  int cursor_in;            // the index in `forecast` of the cursor's matrix
  int head;                 // the slot of the oldest tile, counted as in WeightStream
  int num_tiles;            // in the ring
  Team team;                // whose share of a matrix this block reads
};

// One ring of tiles for every warp, in shared memory.
template <int kSlots>
struct WeightRings {
  uint4 tiles[kNumWarps][kSlots][kVectorsOfWeight][kWarpSize];
  WeightStreamState states[kNumWarps];
};

// A warp's stream of weights, one matrix after another. For each matrix the caller calls open(),
// then front() and pop() for every tile, then close(). None of them waits for other blocks, so
// open() belongs in the time during which the block waits.
//   kTeams  false: the whole grid is one team, whose size and index are not in shared memory
template <int kSlots, bool kTeams_ = false>
class WeightStream {
 public:
  static constexpr bool kTeams = kTeams_;
  // With several teams all but one read a weight from L2, which must then keep it.
  static constexpr bool kEvictFirst = !kTeams && WEIGHTS_EVICT_FIRST;

  __device__ explicit WeightStream(WeightRings<kSlots>& rings)
      : tiles_(&rings.tiles[warp_idx()][0][0][lane_idx()]), state_(rings.states[warp_idx()]) {}

  // grid      the matrix to read. The ring drops tiles of any other matrix, so a wrong forecast
  //           costs only time
  // forecast  the matrices that will probably be read after it
  __device__ void open(const TileGrid& grid, const Forecast& forecast) {
    const auto owned = [&](const TileGrid& whole) { return team().share(whole.num_rows); };
    cursor_ = state_.cursor;
    matrix_ = state_.cursor_in;
    head_ = state_.head;
    num_tiles_ = state_.num_tiles;
    rows_ = owned(grid);
    const bool as_expected = state_.expected[0] == grid.tiles &&
                             (matrix_ == 0 || state_.expected[1] == forecast.next.tiles);
    __syncwarp();  // all lanes have read the state
    if (lane_idx() == 0) {
      state_.forecast[0] = forecast.next.rows(owned(forecast.next));
      state_.forecast[1] = forecast.then.rows(owned(forecast.then));
      state_.expected[0] = forecast.next.tiles;
      state_.expected[1] = forecast.then.tiles;
    }
    __syncwarp();
    if (as_expected) {
      cursor_.address += lane_idx();
    } else {
      copy_async_wait<0>();  // otherwise dropped tiles may land on top of new ones
      matrix_ = num_tiles_ = 0;
      cursor_.enter(grid.rows(rows_));
    }
    leave_finished();
    int tail = (head_ + num_tiles_ * kSlotVectors) % kEnd;
#pragma unroll 1
    for (int tiles = num_tiles_; tiles < kSlots; ++tiles, tail = slot_after(tail)) {
      num_tiles_ += fetch(tail);
    }
  }

  // The block's row tiles of the current matrix.
  __device__ BlockRange rows() const { return rows_; }

  // Every slot, filled or left empty, is one group of copies, in the order of the slots, and every
  // pop() adds one more. So at least kSlots - kCount groups are newer than the oldest kCount.
  template <int kCount = 1>
  __device__ void wait_for_front() const {
    copy_async_wait<kSlots - kCount>();
  }

  // Reads this lane's weights of the warp's next tiles. After use the caller calls pop() for each.
  template <int kVectors, int kCount>
  __device__ void front(LaneTile<kVectors> (&tiles)[kCount]) {
    static_assert(kCount <= kSlots);
    wait_for_front<kCount>();
    int slot = head_;
#pragma unroll
    for (int tile = 0; tile < kCount; ++tile, slot = slot_after(slot)) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) tiles[tile].vector[i] = piece(slot, i);
    }
  }

  // Copies the next tile to the slot of the oldest one; while tiles remain to be fetched, the ring
  // is full. The caller must have used the oldest tile: the copy could overtake a load from shared
  // memory that is still in flight.
  __device__ void pop() {
    if (!fetch(head_)) --num_tiles_;
    head_ = slot_after(head_);
  }

  // All lanes call this at the end of a matrix; the ring has, or is receiving, the tiles after it.
  __device__ void close() {
    if (lane_idx() == 0) {
      state_.cursor = cursor_;
      state_.cursor_in = matrix_ - 1;
      state_.head = head_;
      state_.num_tiles = num_tiles_;
    }
    __syncwarp();
  }

 private:
  __device__ Team team() const {
    if (kTeams) return state_.team;
    return {block_idx(), num_blocks(), state_.team.inverse};
  }

  // If the cursor's matrix is finished, enters the next forecast one that has tiles for this warp.
  __device__ void leave_finished() {
#pragma unroll 1
    while (matrix_ < 2 && !cursor_.inside()) cursor_.enter(state_.forecast[matrix_++]);
  }

  // Starts copying the next tile into a free slot. Returns false, and leaves the slot empty, when
  // the forecast has no further tile.
  __device__ bool fetch(int slot) {
    const bool exists = cursor_.inside();
    if (exists) {
#pragma unroll
      for (int i = 0; i < kVectorsOfWeight; ++i) {
        if (i < cursor_.grid().lane_vectors()) {
          copy_async<kEvictFirst>(&piece(slot, i), cursor_.address + i * kWarpSize);
        }
      }
      if (!cursor_.advance()) {
        cursor_.next_run();
        leave_finished();
      }
    }
    copy_async_commit();
    return exists;
  }

  // Slots are numbered in vectors from the start of the ring, so an address takes one addition.
  static constexpr int kSlotVectors = kVectorsOfWeight * kWarpSize, kEnd = kSlots * kSlotVectors;
  __device__ uint4& piece(int slot, int i) const { return tiles_[slot + i * kWarpSize]; }
  __device__ static int slot_after(int slot) {
    return slot + kSlotVectors == kEnd ? 0 : slot + kSlotVectors;
  }

  uint4* tiles_;  // this lane's first piece in the warp's ring
  WeightStreamState& state_;
  BlockRange rows_;
  WeightCursor cursor_;
  int matrix_;     // 0: the current matrix is being fetched; 1, 2: the first, the second forecast
  int head_;       // the slot of the oldest tile
  int num_tiles_;  // number of tiles in the ring
};

// Empties the rings at the start of a launch, and starts fetching the first matrices.
template <bool kTeams = false, int kSlots>
__device__ void prime(WeightRings<kSlots>& rings, const Team& team, const Forecast& first) {
  WeightStreamState& state = rings.states[warp_idx()];
  if (lane_idx() == 0) {
    state = {};
    state.team = team;
  }
  __syncwarp();
  WeightStream<kSlots, kTeams> stream(rings);
  stream.open({}, first);
  stream.close();
}

}  // namespace qwen_tts
