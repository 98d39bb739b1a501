// Chooses the next fiber. It is compiled without sanitizers and reports its switches to TSan, ASan.
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "internal.h"

// Saves the callee-saved registers of one fiber and loads another's.
#if defined(__x86_64__)
asm(R"(
.text
.globl emulation_swap_context
.type emulation_swap_context, @function
emulation_swap_context:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulation_swap_context, .-emulation_swap_context
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl emulation_swap_context
emulation_swap_context:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#else
#error "emulation_swap_context is written for x86-64 and aarch64"
#endif

namespace emulation {

Fiber* current = nullptr;
BlockView* view = nullptr;
Settings settings;
bool lazy_copies = false;

namespace {
Fiber main_fiber;
uint64_t random_state = 0;
// A host write at the n-th progress event, for tests of flags that the host sets during a launch.
uint64_t inject_at = 0;
unsigned* inject_address = nullptr;
unsigned inject_value = 0;

void set_runnable(Fiber* fiber, bool runnable) {
  Warp& warp = fiber->block->warps[fiber->warp];
  const uint32_t bit = 1u << fiber->lane;
  const bool was = warp.runnable & bit;
  if (runnable != was) {
    warp.runnable ^= bit;
    fiber->block->num_runnable += runnable ? 1 : -1;
  }
  warp.paused &= ~bit;
}

int pick_lane(const Warp& warp, int after, bool skip_paused) {
  uint32_t lanes = warp.runnable & (skip_paused ? ~warp.paused : ~0u);
  if (!lanes) return -1;
  if (settings.shuffled) {
    for (int skip = random_bits() % __builtin_popcount(lanes); skip > 0; --skip) lanes &= lanes - 1;
    return __builtin_ctz(lanes);
  }
  const uint32_t later = after >= 31 ? 0 : lanes & (~0u << (after + 1));
  return __builtin_ctz(later ? later : lanes);
}

Fiber* next_in_grid(Grid* grid, Block* except, int start) {
  const int num_blocks = static_cast<int>(grid->blocks.size());
  for (int i = 0; i < num_blocks; ++i) {
    Block* block = grid->blocks[(start + i) % num_blocks].get();
    if (block == except || !block->num_live) continue;
    if (Fiber* fiber = next_in_block(block, nullptr, false)) {
      grid->current_block = block->index;
      return fiber;
    }
  }
  return nullptr;
}

// Runs another block, because every runnable thread of this block is spinning.
void yield_block(Fiber* fiber) {
  Block* block = fiber->block;
  Grid* grid = block->grid;
  const uint64_t progress_now = grid->progress.load(std::memory_order_relaxed);
  if (progress_now != block->seen_progress) {
    block->seen_progress = progress_now;
    block->idle_rounds = 0;
  } else if (++block->idle_rounds > settings.spin_rounds) {
    std::string report = "grid deadlock: no block makes progress\n";
    for (auto& each : grid->blocks) report += describe(each.get());
    fail("%s", report.c_str());
  }
  for (Warp& warp : block->warps) warp.paused = 0;
  const int num_blocks = static_cast<int>(grid->blocks.size());
  const int start =
      (settings.shuffled ? static_cast<int>(random_bits() % num_blocks) : grid->current_block + 1) %
      num_blocks;
  Fiber* next = next_in_grid(grid, block, start);
  if (!next) next = next_in_block(block, fiber, false);
  if (next && next != fiber) switch_to(fiber, next);
  leave_if_failed(fiber);
}
}  // namespace

uint64_t random_bits() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

uint64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int environment(const char* name, int fallback) {
  const char* value = getenv(name);
  return value && *value ? atoi(value) : fallback;
}

void release(void* tsan_variable) {
  if (__tsan_release) __tsan_release(tsan_variable);
}

void acquire(void* tsan_variable) {
  if (__tsan_acquire) __tsan_acquire(tsan_variable);
}

// TSan sees fibers as threads; a switch does not synchronise them.
void switch_to(Fiber* from, Fiber* to, bool synchronise) {
  current = to;
  if (to->block) view = &to->block->view;
  if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(to->tsan_fiber, synchronise ? 0 : 1);
  if (__sanitizer_start_switch_fiber) {
    __sanitizer_start_switch_fiber(from->done ? nullptr : &from->asan_fake_stack, to->stack,
                                   to->stack_bytes);
  }
  emulation_swap_context(&from->stack_pointer, to->stack_pointer);
  if (__sanitizer_finish_switch_fiber) {
    __sanitizer_finish_switch_fiber(from->asan_fake_stack, nullptr, nullptr);
  }
}

Fiber* next_in_block(Block* block, Fiber* from, bool skip_paused) {
  if (!block->num_runnable) return nullptr;
  const bool here = from && from->block == block;
  int first = here ? from->warp : block->cursor;
  if (settings.shuffled && random_bits() % 4 == 0) first = random_bits() % block->num_warps;
  for (int i = 0; i < block->num_warps; ++i) {
    const int idx = (first + i) % block->num_warps;
    const int after = here && i == 0 && from->warp == idx ? from->lane : -1;
    const int lane = pick_lane(block->warps[idx], after, skip_paused);
    if (lane >= 0) {
      block->cursor = idx;
      return &block->fibers[idx * 32 + lane];
    }
  }
  return nullptr;
}

void to_main(Fiber* fiber) {
  switch_to(fiber, &main_fiber, fiber->done);
  abort();  // no fiber switches back to this one
}

std::string describe(Block* block) {
  std::string report;
  int num_lines = 0;
  for (size_t i = 0; i < block->fibers.size();) {
    const Fiber& first = block->fibers[i];
    size_t end = i + 1;
    while (end < block->fibers.size() && block->fibers[end].where.line == first.where.line &&
           block->fibers[end].done == first.done) {
      ++end;
    }
    if (!first.done && num_lines++ < 8) {
      char line[256];
      snprintf(line, sizeof line, "    block %d: %zu thread(s) from %d %s at %s:%d\n", block->index,
               end - i, first.linear_idx, first.state, first.where.file, first.where.line);
      report += line;
    }
    i = end;
  }
  return report;
}

void fail(const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  Fiber* fiber = current;
  if (!fiber || !fiber->block) {
    fprintf(stderr, "emulation: %s\n", text);
    abort();
  }
  Grid* grid = fiber->block->grid;
  if (!grid->failed) {
    char who[64];
    snprintf(who, sizeof who, "block %d thread %d: ", fiber->block->index, fiber->linear_idx);
    grid->message = std::string(who) + text;
    grid->failed = true;
  }
  to_main(fiber);
}

void wait_here(const char* state) {
  Fiber* fiber = current;
  set_runnable(fiber, false);
  fiber->state = state;
  // The next fiber is nearly always the next lane of the same warp.
  const Warp& warp = fiber->block->warps[fiber->warp];
  const uint32_t later = fiber->lane == 31 ? 0 : warp.runnable & (~0u << (fiber->lane + 1));
  Fiber* next = later && !settings.shuffled ? fiber + (__builtin_ctz(later) - fiber->lane)
                                            : next_in_block(fiber->block, fiber, false);
  if (!next) {
    fail("block deadlock: no runnable thread (divergent barrier or collective?)\n%s",
         describe(fiber->block).c_str());
  }
  switch_to(fiber, next);
  leave_if_failed(fiber);
  fiber->state = "runs";
}

void wake(Block* block, int warp_idx, uint32_t lanes) {
  Warp& warp = block->warps[warp_idx];
  block->num_runnable += __builtin_popcount(lanes & ~warp.runnable);
  warp.runnable |= lanes;
  warp.paused &= ~lanes;
}

void shuffle_partner(Fiber* fiber) {
  if (!settings.shuffled || random_bits() % 2) return;
  Fiber* next = next_in_block(fiber->block, fiber, false);
  if (next && next != fiber) {
    switch_to(fiber, next);
    leave_if_failed(fiber);
  }
}

void pause(Where where) {
  Fiber* fiber = current;
  leave_if_failed(fiber);
  fiber->where = where;
  fiber->state = "spins";
  Warp& warp = fiber->block->warps[fiber->warp];
  warp.paused |= 1u << fiber->lane;
  Fiber* next = next_in_block(fiber->block, fiber, true);
  if (next && next != fiber) {
    switch_to(fiber, next);
    leave_if_failed(fiber);
  } else {
    yield_block(fiber);
  }
  warp.paused &= ~(1u << fiber->lane);
  fiber->state = "runs";
}

void preempt(Where where) {
  if (settings.shuffled && random_bits() % 2) pause(where);
}

void progress() {
  Fiber* fiber = current;
  if (!fiber || !fiber->block) return;
  const uint64_t count = fiber->block->grid->progress.fetch_add(1, std::memory_order_relaxed);
  if (inject_address && count >= inject_at) {
    __atomic_store_n(inject_address, inject_value, __ATOMIC_RELAXED);
    inject_address = nullptr;
  }
}

// The entry point of every fiber: runs the kernel, then switches to a thread that still has work.
void fiber_main() {
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
  Fiber* fiber = current;
  Block* block = fiber->block;
  Grid* grid = block->grid;
  (*grid->body)();
  if (drop_async_copies(fiber)) fail("a thread returns with cp.async copies in flight");
  release(&grid->tsan_end);  // the end of every thread happens before the launch returns
  set_runnable(fiber, false);
  block->warps[fiber->warp].live &= ~(1u << fiber->lane);
  fiber->done = true;
  progress();
  if (--block->num_live > 0) {
    Fiber* next = next_in_block(block, fiber, false);
    if (!next) {
      fiber->done = false;
      fail("block deadlock: the other threads wait for threads that returned\n%s",
           describe(block).c_str());
    }
    switch_to(fiber, next);
    abort();
  }
  if (--grid->num_live > 0) {
    Fiber* next = next_in_grid(grid, nullptr, block->index + 1);
    if (next) {
      switch_to(fiber, next);
      abort();
    }
  }
  to_main(fiber);
}

// Runs the grid from the OS thread that called launch().
void enter_grid(Block* first, uint64_t seed) {
  random_state = seed * 0x9E3779B97F4A7C15ull + 1;
  if (__tsan_get_current_fiber) main_fiber.tsan_fiber = __tsan_get_current_fiber();
  main_fiber.block = nullptr;
  main_fiber.done = false;
  switch_to(&main_fiber, next_in_block(first, nullptr, false), true);
  current = nullptr;
  view = nullptr;
  inject_address = nullptr;
}

}  // namespace emulation

// At the `after`-th progress event of the next launch the host writes `value` to `address`.
extern "C" void emulation_inject(unsigned long long after, unsigned* address, unsigned value) {
  emulation::inject_at = after;
  emulation::inject_address = address;
  emulation::inject_value = value;
}
