// Where a launch spends its time: clock stamps of every block and stage, in a library that is built
// with -DSTAGE_TIMES=1 (tools/gpu_check/stage_times.py). No other build has any of this.
//
// A stage of a block begins when the barrier before it releases the block, and passes the moments
// of Stamp. Warp 0 stamps a product; of two products in a stage the later one's stamps remain.
#pragma once
#include "common.cuh"
#include "tts_kernel.h"

namespace qwen_tts {

constexpr bool kStageTimes = STAGE_TIMES != 0;

enum class Stamp {
  kRowsReady,  // the product's activations are in shared memory
  kFirstTile,  // so is its first tile of weights; it comes later only if memory is behind
  kLastTile,   // its last tile has been multiplied
  kArrived,    // the block has arrived at the barrier
  kPrepared,   // the block has finished the work that it does while it waits
  kReleased,   // every block has arrived
};

// The times of one block. BlockSmem begins with them.
struct StageTimesSmem {
  StageRecord* header;  // the block's clocks
  StageRecord* record;  // the running stage's; null: not requested, or the records are full
};

__device__ __forceinline__ StageTimesSmem& stage_times() {
  return *reinterpret_cast<StageTimesSmem*>(dynamic_smem());
}

// The present time, which stamp() takes by default. A stamp of the time before an arrival is stored
// after it, because an arrival waits for the stores of its thread.
__device__ __forceinline__ uint64_t stage_clock() { return kStageTimes ? clock_cycles() : 0; }

// One thread of the block calls this.
__device__ __forceinline__ void stamp(Stamp which, uint64_t cycles = stage_clock()) {
  if constexpr (kStageTimes) {
    StageRecord* record = stage_times().record;
    if (record) record->stamps[static_cast<int>(which)] = cycles;
  }
}

// Thread 0 calls this at a launch's start; a __syncthreads() must follow before the first stamp.
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

// One thread calls this after a stage; a __syncthreads() must follow before the next stamp.
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
