// GridBarrier: the only way in which blocks wait for each other.
//
// Promise. Everything that any thread of any block wrote before sync() is visible to every thread
// of every block after it. The order in which blocks arrive does not matter. No wait is endless:
// when a block does not arrive within the time limit, or a block has reported an error, sync()
// returns false in every block, the blocks leave through their ordinary ends, and the host finds
// the error in the control block, with the stage and layer of the wait. The last block to leave
// clears the counters, so every launch starts from zero without a memset; after an error the host
// clears the control block before using it again.
//
// The barrier is one counter that only grows within a launch: there is no sense flag and no reset
// that an early block could overtake. The counter's uppermost bit reports an error, so a block that
// sees all arrivals sees the error too, without reading another word from L2 at every barrier.
// Every launch has a control block of its own: a launch that fails does not affect the next one,
// which is already enqueued behind it.
#pragma once
#include "stage_times.cuh"

namespace qwen_tts {

// Packs Control::error: which wait failed and why. `layer` is the code group in a predictor's head.
__host__ __device__ inline unsigned pack_error(LaunchStatus status, Stage stage, int layer) {
  return static_cast<unsigned>(status) << 24 | static_cast<unsigned>(stage) << 16 |
         (static_cast<unsigned>(layer) & 0xffffu);
}

// The state of a block's barrier in shared memory. Only GridBarrier uses it.
struct BarrierSmem {
  uint64_t timeout_ns;  // only kWaiter uses these two; members would occupy registers all frame
  unsigned target;      // arrivals of this launch once every block has reached the barrier
  int verdict;
};

class GridBarrier {
 public:
  __device__ GridBarrier(Control* control, uint64_t timeout_ns, BarrierSmem& smem)
      : control_(control), smem_(smem) {
    if (thread_idx() == kWaiter) {
      smem_.timeout_ns = timeout_ns;
      smem_.target = 0;
    }
  }

  // All threads of all blocks call this. If it returns false, the caller leaves without another
  // sync(). `meanwhile` runs while other blocks arrive: this barrier does not make its results
  // visible to them, and it must not use theirs.
  template <class Meanwhile>
  __device__ bool sync(Stage stage, int layer, const Meanwhile& meanwhile) {
    __syncthreads();
    if (thread_idx() == kWaiter) {
      const uint64_t arrived = stage_clock();
      add_release(&control_->arrived, 1);
      smem_.target += gridDim.x;
      stamp(Stamp::kArrived, arrived);
    }
    meanwhile();
    if (thread_idx() == kWaiter) {
      stamp(Stamp::kPrepared);
      smem_.verdict = wait(stage, layer);
      stamp(Stamp::kReleased);
      end_stage_times(stage, layer);
    }
    __syncthreads();
    return smem_.verdict != 0;
  }

  __device__ bool sync(Stage stage, int layer) {
    return sync(stage, layer, [] {});
  }

  // Stops the launch at the next sync() of every block. The first report wins.
  __device__ void report(LaunchStatus status, Stage stage, int layer) {
    if (atomicCAS(&control_->error, 0u, pack_error(status, stage, layer)) == 0) {
      add_release(&control_->arrived, kStopped);
    }
  }

  // All threads call this once, after the last sync(), whatever that returned.
  __device__ void leave() {
    __syncthreads();
    if (thread_idx() != 0 || load_relaxed(&control_->error)) return;
    if (add_acquire_release(&control_->left, 1) == gridDim.x - 1) {
      store_release(&control_->left, 0);
      store_release(&control_->arrived, 0);
    }
  }

 private:
  // The thread that arrives for its block and polls. By default it belongs to the last warp, which
  // has the least other work: loops over few items occupy only the first warps.
  static constexpr int kWaiter = FIRST_WARP_WAITS ? 0 : kNumThreads - kWarpSize;

  __device__ bool wait(Stage stage, int layer) {
    const unsigned target = smem_.target;
    uint64_t deadline = 0;
    for (unsigned polls = 1;; ++polls) {
      const unsigned arrived = load_acquire(&control_->arrived);
      if (arrived >= target) return arrived < kStopped;
      if (polls % kPollsPerCheck == 0) {
        const uint64_t now = clock_ns();
        if (!deadline) deadline = now + smem_.timeout_ns;
        if (now > deadline) {
          report(LaunchStatus::kTimeout, stage, layer);
          return false;
        }
      }
      pause();
    }
  }

  static constexpr unsigned kStopped = 1u << 31;  // a bit of Control::arrived that no count reaches
  static constexpr unsigned kPollsPerCheck = 64;  // polls between readings of the clock
  Control* control_;
  BarrierSmem& smem_;
};

}  // namespace qwen_tts
