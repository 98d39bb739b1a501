// One launch: allocates stacks and blocks, runs them, and returns the result.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "internal.h"

namespace emulation {

void enter_grid(Block* first, uint64_t seed);

namespace {
constexpr int kErrorLaunchFailure = 719;  // cudaErrorLaunchFailure
constexpr size_t kStacksPerMap = 64;      // the OS limits the number of mappings
std::mutex launch_mutex;
std::vector<void*> free_stacks;
std::string last_message;

// Under AddressSanitizer, stack frames are several times larger.
size_t stack_bytes() { return (__sanitizer_start_switch_fiber ? 512 : 64) * 1024; }

void* take_stack() {
  if (free_stacks.empty()) {
    char* map =
        static_cast<char*>(mmap(nullptr, stack_bytes() * kStacksPerMap, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (map == MAP_FAILED) {
      perror("emulation: mmap of fiber stacks");
      abort();
    }
    for (size_t i = 0; i < kStacksPerMap; ++i) free_stacks.push_back(map + i * stack_bytes());
  }
  void* stack = free_stacks.back();
  free_stacks.pop_back();
  return stack;
}

// Gives stacks different offsets: they are a power of two apart and would share cache sets.
void* prepare_stack(void* stack, int thread) {
  uint64_t* top =
      reinterpret_cast<uint64_t*>(static_cast<char*>(stack) + stack_bytes() - thread % 31 * 128);
#if defined(__x86_64__)
  std::memset(top - 8, 0, 64);
  top[-2] = reinterpret_cast<uint64_t>(&fiber_main);
  return top - 8;
#else
  uint64_t* frame = top - 20;
  std::memset(frame, 0, 160);
  frame[11] = reinterpret_cast<uint64_t>(&fiber_main);
  return frame;
#endif
}

void set_up(Grid* grid, Block* block, int index, dim3 grid_dim, dim3 block_dim, size_t bytes) {
  block->grid = grid;
  block->index = index;
  block->num_threads = block->num_live = block->num_runnable = block_dim.x;
  block->num_warps = block_dim.x / 32;
  // Shared memory starts as NaNs and ends in a poisoned zone.
  block->shared_memory = aligned_alloc(1024, (bytes + 2047) / 1024 * 1024);
  std::memset(block->shared_memory, 0xff, bytes);
  if (__asan_poison_memory_region) {
    __asan_poison_memory_region(static_cast<char*>(block->shared_memory) + bytes, 512);
  }
  block->view = {
      {static_cast<unsigned>(index), 0, 0}, block_dim, grid_dim, block->shared_memory, bytes};
  block->fibers.resize(block->num_threads);
  block->warps.resize(block->num_warps);
  block->at_barrier.assign(block->num_warps, 0);
  for (int i = 0; i < block->num_threads; ++i) {
    Fiber& fiber = block->fibers[i];
    fiber.block = block;
    fiber.linear_idx = i;
    fiber.lane = i % 32;
    fiber.warp = i / 32;
    fiber.thread_idx = {static_cast<unsigned>(i), 0, 0};
    fiber.stack = take_stack();
    fiber.stack_bytes = stack_bytes();
    fiber.stack_pointer = prepare_stack(fiber.stack, i);
    if (__tsan_create_fiber) fiber.tsan_fiber = __tsan_create_fiber(0);
  }
  for (Warp& warp : block->warps) warp.live = warp.runnable = ~0u;
}

void tear_down(Block* block) {
  for (Fiber& fiber : block->fibers) {
    if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(fiber.stack, stack_bytes());
    free_stacks.push_back(fiber.stack);
    if (fiber.tsan_fiber) __tsan_destroy_fiber(fiber.tsan_fiber);
    drop_async_copies(&fiber);
  }
  if (__asan_unpoison_memory_region) {
    __asan_unpoison_memory_region(block->shared_memory, block->view.shared_bytes + 512);
  }
  free(block->shared_memory);
}
}  // namespace

uint64_t launch_number = 0, num_questions = 0;

const char* error_message() { return last_message.c_str(); }

int launch(dim3 grid_dim, dim3 block_dim, size_t bytes, const std::function<void()>& body) {
  std::lock_guard<std::mutex> lock(launch_mutex);
  const uint64_t seed = environment("EMULATION_SEED", 0);
  settings.shuffled = seed != 0;
  lazy_copies = environment("EMULATION_LAZY_COPIES", 0);
  settings.spin_rounds = environment("EMULATION_SPIN_ROUNDS", 2000000);
  Grid grid;
  grid.body = &body;
  grid.num_live = grid_dim.x;
  for (unsigned i = 0; i < grid_dim.x; ++i) {
    grid.blocks.push_back(std::make_unique<Block>());
    set_up(&grid, grid.blocks.back().get(), i, grid_dim, block_dim, bytes);
  }
  const uint64_t first = settings.shuffled ? seed * 2654435761u % grid_dim.x
                                           : environment("EMULATION_FIRST_BLOCK", 0) % grid_dim.x;
  grid.current_block = static_cast<int>(first);
  enter_grid(grid.blocks[first].get(), seed);
  ++launch_number;
  acquire(&grid.tsan_end);
  for (auto& block : grid.blocks) tear_down(block.get());
  last_message = grid.message;
  return grid.failed ? kErrorLaunchFailure : 0;
}

}  // namespace emulation

extern "C" {
const char* emulation_error_message() { return emulation::error_message(); }
unsigned long long emulation_num_questions() { return emulation::num_questions; }
}
