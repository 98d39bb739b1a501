// Where a launch's time goes: clock stamps of every block and stage, in a library that is built
// with -DSTAGE_TIMES=1 (tools/gpu_check/stage_times.py). Every other build has none of it.
//
// A stage of a block begins when the barrier before releases it, and passes these moments. Those of
// a product are its warp 0's; of two products in one stage, the later one's.
#pragma once
#include "common.cuh"
#include "tts_kernel.h"

namespace qwen_tts {

constexpr bool kStageTimes = STAGE_TIMES != 0;

enum class Stamp {
  kRowsReady,  // the product's activations are in shared memory
  kFirstTile,  // and its first tile of weights: later only where memory is behind
  kLastTile,   // its last tile has been multiplied
  kArrived,    // at the barrier
  kPrepared,   // what the block does while it waits is done
  kReleased,   // every block has arrived
};

// Of one block: BlockSmem begins with them.
struct StageTimesSmem {
  StageRecord* header;  // the block's clocks
  StageRecord* record;  // of the stage that runs; null: not asked for, or the records are full
};

__device__ __forceinline__ StageTimesSmem& stage_times() {
  return *reinterpret_cast<StageTimesSmem*>(dynamic_smem());
}

// What stamp() takes for now. A stamp that is taken before an arrival is stored behind it: the
// arrival waits for what its thread has stored.
__device__ __forceinline__ uint64_t stage_clock() { return kStageTimes ? clock_cycles() : 0; }

// One thread of the block.
__device__ __forceinline__ void stamp(Stamp which, uint64_t cycles = stage_clock()) {
  if constexpr (kStageTimes) {
    StageRecord* record = stage_times().record;
    if (record) record->stamps[static_cast<int>(which)] = cycles;
  }
}

// Thread 0 at the start of a launch; the caller owes a __syncthreads() before the first stamp.
//   records  [num_blocks, kMaxStageRecords], zeros; or null
__device__ __forceinline__ void begin_stage_times(StageRecord* records) {
  if constexpr (kStageTimes) {
    StageTimesSmem& times = stage_times();
    times.header = records ? records + block_idx() * kMaxStageRecords : nullptr;
    times.record = records ? times.header + 1 : nullptr;
    if (!records) return;
    times.header->stamps[0] = clock_cycles();
    times.header->stamps[1] = clock_ns();
  }
}

// One thread when a stage is over; the caller owes a __syncthreads() before the next stamp.
__device__ __forceinline__ void end_stage_times(Stage stage, int layer) {
  if constexpr (kStageTimes) {
    StageTimesSmem& times = stage_times();
    if (!times.record) return;
    times.record->stage = static_cast<uint32_t>(stage);
    times.record->layer = static_cast<uint32_t>(layer);
    times.header->stamps[2] = clock_cycles();
    times.header->stamps[3] = clock_ns();
    if (++times.record == times.header + kMaxStageRecords) times.record = nullptr;
  }
}

}  // namespace qwen_tts
