// Declarations that only the translation units of the emulation runtime share.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "runtime.h"

extern "C" {  // weak: only a program that is linked with the sanitizer has these
__attribute__((weak)) void* __tsan_create_fiber(unsigned);
__attribute__((weak)) void* __tsan_get_current_fiber(void);
__attribute__((weak)) void __tsan_destroy_fiber(void*);
__attribute__((weak)) void __tsan_switch_to_fiber(void*, unsigned);
__attribute__((weak)) void __tsan_acquire(void*);
__attribute__((weak)) void __tsan_release(void*);
__attribute__((weak)) void __tsan_read_range(void*, unsigned long);
__attribute__((weak)) void __tsan_write_range(void*, unsigned long);
__attribute__((weak)) void __sanitizer_start_switch_fiber(void**, const void*, size_t);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
__attribute__((weak)) void __asan_poison_memory_region(void const volatile*, size_t);
__attribute__((weak)) void __asan_unpoison_memory_region(void const volatile*, size_t);
void emulation_swap_context(void** save, void* load);
}

namespace emulation {

// A meeting of threads. Its two TSan variables take turns: a fast thread may release the next
// meeting before a slow one has acquired this one.
struct Meeting {
  int arrived = 0;
  unsigned generation = 0;
  Where where;
  char tsan[2];
};

struct Warp {
  uint32_t live = 0, runnable = 0, paused = 0;
  Meeting collective;
  Collective kind = Collective::kSyncWarp;
};

struct Grid;

struct Block {
  BlockView view{};
  Grid* grid = nullptr;
  int index = 0, num_threads = 0, num_warps = 0, num_live = 0, num_runnable = 0;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Meeting barrier;
  std::vector<uint32_t> at_barrier;  // by warp: the lanes that wait in the block barrier
  int cursor = 0;                    // the warp that ran last
  void* shared_memory = nullptr;
  uint64_t seen_progress = 0, idle_rounds = 0, num_collectives = 0;
};

struct Grid {
  const std::function<void()>* body;
  std::vector<std::unique_ptr<Block>> blocks;
  std::atomic<uint64_t> progress{1};
  bool failed = false;
  std::string message;
  int num_live = 0, current_block = 0;
  char tsan_end = 0;
};

struct Settings {
  bool shuffled = false;
  uint64_t spin_rounds = 0;
};
extern Settings settings;
uint64_t random_bits();

void switch_to(Fiber* from, Fiber* to, bool synchronise = false);
Fiber* next_in_block(Block* block, Fiber* from, bool skip_paused);
// Marks the current fiber as not runnable and runs others until one of them wakes it.
void wait_here(const char* state);
// Wakes these lanes of one warp.
void wake(Block* block, int warp, uint32_t lanes);
[[noreturn]] void to_main(Fiber* fiber);
inline void leave_if_failed(Fiber* fiber) {
  if (__builtin_expect(fiber->block->grid->failed, 0)) to_main(fiber);
}
std::string describe(Block* block);
void release(void* tsan_variable);
void acquire(void* tsan_variable);
// Throws away unfinished copies; returns whether there were any.
bool drop_async_copies(Fiber* fiber);
void shuffle_partner(Fiber* fiber);
void fiber_main();

}  // namespace emulation
