// Kinds of grid barriers, and what one costs undisturbed: no block has written anything and no copy
// is under way. traffic.cuh measures what the kernel pays.
#pragma once
#include <cstdio>

#include "machine.cuh"
#if defined(__CUDACC__)
#include <cooperative_groups.h>
#endif

namespace qwen_tts {

enum class Barrier { kCounter, kCounterPause, kReleaseWord, kSlots, kEightCounters, kGridSync };
constexpr const char* kBarrierNames[] = {"counter", "counter_pause",  "release_word",
                                         "slots",   "eight_counters", "grid_sync"};

struct BarrierWords {  // zero before a launch; words that are polled apart lie 32 bytes apart
  unsigned counter[32];
  unsigned released[32];
  unsigned slots[1024 * 8];
};

// Returns once every block has called it `round` times. All threads of all blocks call this.
template <Barrier kKind>
__device__ void sync_grid(BarrierWords* words, unsigned round) {
  const unsigned blocks = num_blocks(), me = thread_idx();
  const auto before = [](unsigned value, unsigned goal) {
    return static_cast<int>(value - goal) < 0;
  };
  if constexpr (kKind == Barrier::kGridSync) {
#if defined(__CUDACC__)
    cooperative_groups::this_grid().sync();
#endif
    return;
  }
  __syncthreads();
  if constexpr (kKind == Barrier::kCounter || kKind == Barrier::kCounterPause) {
    if (me == 0) {
      add_release(words->counter, 1);
      while (before(load_acquire(words->counter), round * blocks)) {
        kKind == Barrier::kCounter ? hot_spin() : pause();
      }
    }
  } else if constexpr (kKind == Barrier::kReleaseWord) {
    if (me == 0) {
      if (add_acquire_release(words->counter, 1) == round * blocks - 1) {
        store_release(words->released, round);
      } else {
        while (before(load_acquire(words->released), round)) hot_spin();
      }
    }
  } else if constexpr (kKind == Barrier::kSlots) {  // a word for each block; every block reads all
    if (me == 0) store_release(words->slots + block_idx() * 8, round);
    for (unsigned block = me; block < blocks; block += kThreads) {
      while (before(load_acquire(words->slots + block * 8), round)) pause();
    }
  } else if constexpr (kKind == Barrier::kEightCounters) {
    if (me == 0) add_release(words->slots + block_idx() % 8 * 8, 1);
    if (me < 8) {
      const unsigned arrivals = (blocks + 7 - me) / 8;  // at counter `me`, each round
      while (before(load_acquire(words->slots + me * 8), round * arrivals)) pause();
    }
  }
  __syncthreads();
}

template <Barrier kKind>
__global__ void __launch_bounds__(kThreads, 1) barriers(BarrierWords* words, int rounds) {
  for (int round = 1; round <= rounds; ++round) sync_grid<kKind>(words, round);
}

template <Barrier kKind>
void measure_barrier(const Machine& m) {
  auto* words = static_cast<BarrierWords*>(device_memory(sizeof(BarrierWords)));
  const int rounds = kEmulated ? 20 : 4000;
  const auto spent = [&](int count) {
    return best_ms([&] {
      clear(words, sizeof(BarrierWords));
      run(barriers<kKind>, m.blocks, 0, words, count);
    });
  };
  std::printf("{\"kind\": \"barrier\", \"how\": \"%s\", \"blocks\": %d, \"us\": %.3f}\n",
              kBarrierNames[static_cast<int>(kKind)], m.blocks,
              (spent(rounds) - spent(0)) * 1000 / rounds);
}

}  // namespace qwen_tts
