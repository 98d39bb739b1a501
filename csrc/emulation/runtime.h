// The runtime functions that the emulated CUDA language (cuda_emulation.h) calls.
//
// Every CUDA thread is a fiber. The lanes of a warp meet in collectives, the threads of a block in
// barriers; all blocks of a launch exist together and share one OS thread, which switches only at
// those meeting points and in spin loops. A launch is therefore deterministic; EMULATION_SEED=n
// chooses another order of lanes, warps and blocks, which is deterministic too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace emulation {

struct Block;

// The source position of a meeting point, for error reports.
struct Where {
  const char* file = "";
  int line = 0;
};
#define EMULATION_HERE ::emulation::Where where = {__builtin_FILE(), __builtin_LINE()}

struct Fiber {  // one CUDA thread
  void* stack_pointer = nullptr;
  void* stack = nullptr;
  size_t stack_bytes = 0;
  uint3 thread_idx{};
  int linear_idx = 0, lane = 0, warp = 0;
  Block* block = nullptr;
  alignas(16) unsigned char deposit[32];  // this lane's operands of the current collective
  alignas(16) unsigned char result[8];    // this lane's result of it
  Where where;                            // where the thread waits, for the deadlock report
  const char* state = "has not started";
  void* async_copies = nullptr;
  void* tsan_fiber = nullptr;
  void* asan_fake_stack = nullptr;
  bool done = false;
};

struct BlockView {  // what a thread sees of its block
  uint3 block_idx;
  dim3 block_dim, grid_dim;
  void* shared_memory;
  size_t shared_bytes;
};

// The running thread and its block. They are globals: launches run one at a time, on one OS thread.
extern Fiber* current __attribute__((visibility("hidden")));
extern BlockView* view __attribute__((visibility("hidden")));

enum class Collective { kSyncWarp, kShuffle, kSum, kMax, kMaxUnsigned, kQuadSum, kMma, kCall };

// A lane's deposit in kMma: where its operands lie and where its sums are added.
struct MmaOperands {
  const uint32_t* a[2];  // four registers of two bf16 each, for each of two instructions
  const uint32_t* b;     // four registers, two for each instruction
  float* d;              // [4]
};

// Meets the other 31 lanes; the last lane to arrive computes every lane's `result`.
void warp_collective(Collective kind, Where where);
// A collective that takes a value from each lane and returns one of the same type.
template <class T>
T warp_reduce(T value, Collective kind, Where where) {
  std::memcpy(current->deposit, &value, sizeof value);
  warp_collective(kind, where);
  std::memcpy(&value, current->result, sizeof value);
  return value;
}
// A collective with its own operation: when all 32 lanes have arrived, `call` receives them. Each
// lane's deposit holds its `operands` behind the first eight bytes.
void warp_call(void (*call)(Fiber* lanes), void* operands, Where where);
void block_barrier(Where where);
// Runs other threads; spin loops call it. Fails the launch when no thread makes progress any more.
void pause(Where where);
// A synchronising load calls this when it has read: with a seed, it sometimes runs other threads.
// Without it a late block would always see later stores too, which would hide a missing acquire.
void preempt(Where where);
// Reports that something a spinning thread may wait for has changed.
void progress();
// Ends this launch with a message; the process lives on.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Whether an asynchronous copy happens only when a thread waits for it, or else at once.
extern bool lazy_copies __attribute__((visibility("hidden")));
void async_copy(void* shared, const void* global, int bytes);
void async_commit();
void async_wait(int groups_left);

// Runs `body` as every thread of the grid. Returns 0 or a CUDA error number.
int launch(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body);
// The number of launches before this one.
extern uint64_t launch_number __attribute__((visibility("hidden")));
// The number of calls that set an attribute of a kernel or queried its occupancy.
extern uint64_t num_questions __attribute__((visibility("hidden")));
int environment(const char* name, int fallback);
uint64_t now_ns();
const char* error_message();

}  // namespace emulation
