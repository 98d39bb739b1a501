// Where threads meet: warp collectives, block barriers, asynchronous copies.
#include <cstdlib>
#include <cstring>

#include "internal.h"

namespace emulation {
namespace {

float as_float(const unsigned char* bytes) {
  float value;
  std::memcpy(&value, bytes, 4);
  return value;
}

// Adds in the order of five __shfl_xor_sync steps (16, 8, 4, 2, 1), as port.cuh does on the GPU.
void reduce(Fiber* lanes, bool is_sum) {
  float value[32], next[32];
  for (int lane = 0; lane < 32; ++lane) value[lane] = as_float(lanes[lane].deposit);
  for (int distance = 16; distance; distance >>= 1) {
    for (int lane = 0; lane < 32; ++lane) {
      const float mine = value[lane], other = value[lane ^ distance];
      next[lane] = is_sum ? mine + other : (mine > other ? mine : other);
    }
    std::memcpy(value, next, sizeof value);
  }
  for (int lane = 0; lane < 32; ++lane) std::memcpy(lanes[lane].result, &value[lane], 4);
}

float lower_half(uint32_t pair) {
  const uint32_t bits = pair << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
float upper_half(uint32_t pair) {
  const uint32_t bits = pair & 0xffff0000u;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Types of four columns: the compiler does not see by itself that columns are independent. A CPU
// without wider vectors would keep those in memory.
using Columns = float __attribute__((vector_size(16)));
using ColumnBits = uint32_t __attribute__((vector_size(16)));

// Executes two mma.sync.m16n8k16, bf16 in, f32 out, one after the other into the same sums;
// port.cuh describes the layout. Lanes deposit addresses. Rows of `a` that are all zero are
// skipped: with one stream most of the 16 are.
void multiply(Fiber* lanes) {
  MmaOperands of[32];
  for (int lane = 0; lane < 32; ++lane) std::memcpy(&of[lane], lanes[lane].deposit, sizeof of[0]);
  Columns b[2][16][2];  // [instruction][k]: columns 0 .. 3 and 4 .. 7
  for (int pair = 0; pair < 4; ++pair) {
    for (int reg = 0; reg < 4; ++reg) {
      Columns(*rows)[2] = &b[reg / 2][2 * pair + reg % 2 * 8];
      for (int half = 0; half < 2; ++half) {
        const MmaOperands* lane = &of[16 * half + pair];
        const ColumnBits pairs = {lane[0].b[reg], lane[4].b[reg], lane[8].b[reg], lane[12].b[reg]};
        rows[0][half] = reinterpret_cast<Columns>(pairs << 16);
        rows[1][half] = reinterpret_cast<Columns>(pairs & 0xffff0000u);
      }
    }
  }
  for (int row = 0; row < 16; ++row) {
    const MmaOperands* quad = &of[row % 8 * 4];
    const int half = row / 8;
    uint32_t any = 0;
    for (int pair = 0; pair < 4; ++pair) {
      for (const uint32_t* regs : quad[pair].a) any |= regs[half] | regs[half + 2];
    }
    if (!any) continue;
    for (int step = 0; step < 2; ++step) {
      Columns left = {}, right = {};
      for (int k = 0; k < 16; ++k) {
        const uint32_t bits = quad[k % 8 / 2].a[step][k / 8 * 2 + half];
        const float a = k % 2 ? upper_half(bits) : lower_half(bits);
        left += a * b[step][k][0];
        right += a * b[step][k][1];
      }
      for (int pair = 0; pair < 4; ++pair) {
        const Columns& sum = pair < 2 ? left : right;
        quad[pair].d[2 * half] += sum[2 * pair % 4];
        quad[pair].d[2 * half + 1] += sum[2 * pair % 4 + 1];
      }
    }
  }
}

void complete(Fiber* lanes, Collective kind) {
  switch (kind) {
    case Collective::kSyncWarp:
      break;
    case Collective::kShuffle:  // deposit: the value (8 bytes), then the source lane
      for (int lane = 0; lane < 32; ++lane) {
        int source;
        std::memcpy(&source, lanes[lane].deposit + 8, 4);
        std::memcpy(lanes[lane].result, lanes[source].deposit, 8);
      }
      break;
    case Collective::kSum:
    case Collective::kMax:
      reduce(lanes, kind == Collective::kSum);
      break;
    case Collective::kMaxUnsigned: {
      uint32_t most = 0, value;
      for (int lane = 0; lane < 32; ++lane) {
        std::memcpy(&value, lanes[lane].deposit, 4);
        if (value > most) most = value;
      }
      for (int lane = 0; lane < 32; ++lane) std::memcpy(lanes[lane].result, &most, 4);
      break;
    }
    case Collective::kQuadSum:
      for (int lane = 0; lane < 32; lane += 4) {
        float value[4];
        for (int i = 0; i < 4; ++i) value[i] = as_float(lanes[lane + i].deposit);
        const float sum = (value[0] + value[1]) + (value[2] + value[3]);
        for (int i = 0; i < 4; ++i) std::memcpy(lanes[lane + i].result, &sum, 4);
      }
      break;
    case Collective::kMma:
      multiply(lanes);
      break;
    case Collective::kCall:
      void (*call)(Fiber*);
      std::memcpy(&call, lanes[0].deposit, sizeof call);
      call(lanes);
      break;
  }
}

struct AsyncCopy {
  void* shared;
  const void* global;
  int bytes, group;
};
struct AsyncCopies {
  std::vector<AsyncCopy> pending;
  int group = 0;  // the group of the next copy
};

void finish(const AsyncCopy& copy) {
  if (__tsan_read_range) {
    __tsan_read_range(const_cast<void*>(copy.global), copy.bytes);
    __tsan_write_range(copy.shared, copy.bytes);
  }
  std::memcpy(copy.shared, copy.global, copy.bytes);
}

}  // namespace

void warp_collective(Collective kind, Where where) {
  Fiber* fiber = current;
  leave_if_failed(fiber);
  Block* block = fiber->block;
  Warp& warp = block->warps[fiber->warp];
  Meeting& meeting = warp.collective;
  fiber->where = where;
  if (warp.live != ~0u) {
    fail("collective at %s:%d after lanes of the warp returned", where.file, where.line);
  }
  if (!meeting.arrived) {
    warp.kind = kind;
    meeting.where = where;
  } else if (warp.kind != kind || meeting.where.line != where.line) {
    fail("lanes of one warp meet at %s:%d and %s:%d", meeting.where.file, meeting.where.line,
         where.file, where.line);
  }
  // Only __syncwarp orders memory; shuffles and reductions do not.
  char* tsan = &meeting.tsan[meeting.generation & 1];
  if (kind == Collective::kSyncWarp) release(tsan);
  if (++meeting.arrived == 32) {
    if ((++block->num_collectives & 63) == 0) progress();
    meeting.arrived = 0;
    ++meeting.generation;
    complete(&block->fibers[fiber->warp * 32], kind);
    wake(block, fiber->warp, ~(1u << fiber->lane));
    shuffle_partner(fiber);
  } else {
    wait_here("waits in a warp collective");
  }
  if (kind == Collective::kSyncWarp) acquire(tsan);
}

void warp_call(void (*call)(Fiber* lanes), void* operands, Where where) {
  std::memcpy(current->deposit, &call, sizeof call);
  std::memcpy(current->deposit + 8, &operands, sizeof operands);
  warp_collective(Collective::kCall, where);
}

void block_barrier(Where where) {
  Fiber* fiber = current;
  leave_if_failed(fiber);
  Block* block = fiber->block;
  Meeting& meeting = block->barrier;
  fiber->where = where;
  if (block->num_live != block->num_threads) {
    fail("__syncthreads at %s:%d after %d thread(s) of the block returned", where.file, where.line,
         block->num_threads - block->num_live);
  }
  if (!meeting.arrived) {
    meeting.where = where;
  } else if (meeting.where.line != where.line) {
    fail("divergent barrier: threads of one block wait at %s:%d and %s:%d", meeting.where.file,
         meeting.where.line, where.file, where.line);
  }
  char* tsan = &meeting.tsan[meeting.generation & 1];
  release(tsan);
  if (++meeting.arrived == block->num_threads) {
    meeting.arrived = 0;
    ++meeting.generation;
    for (int warp = 0; warp < block->num_warps; ++warp) {
      wake(block, warp, block->at_barrier[warp]);
      block->at_barrier[warp] = 0;
    }
    progress();
    shuffle_partner(fiber);
  } else {
    block->at_barrier[fiber->warp] |= 1u << fiber->lane;
    wait_here("waits in __syncthreads");
  }
  acquire(tsan);
}

// With lazy copies the target holds NaNs until the thread waits, which reveals a missing wait.
void async_copy(void* shared, const void* global, int bytes) {
  if (reinterpret_cast<uintptr_t>(shared) % bytes || reinterpret_cast<uintptr_t>(global) % bytes) {
    fail("cp.async of %d bytes is misaligned", bytes);
  }
  if (!lazy_copies) return finish({shared, global, bytes, 0});
  if (!current->async_copies) current->async_copies = new AsyncCopies;
  AsyncCopies* copies = static_cast<AsyncCopies*>(current->async_copies);
  if (__tsan_write_range) __tsan_write_range(shared, bytes);
  std::memset(shared, 0xff, bytes);
  copies->pending.push_back({shared, global, bytes, copies->group});
}

void async_commit() {
  if (current->async_copies) ++static_cast<AsyncCopies*>(current->async_copies)->group;
}

void async_wait(int groups_left) {
  AsyncCopies* copies = static_cast<AsyncCopies*>(current->async_copies);
  if (!copies) return;
  auto& pending = copies->pending;
  size_t num_done = 0;
  while (num_done < pending.size() && pending[num_done].group < copies->group - groups_left) {
    finish(pending[num_done++]);
  }
  pending.erase(pending.begin(), pending.begin() + num_done);
}

bool drop_async_copies(Fiber* fiber) {
  AsyncCopies* copies = static_cast<AsyncCopies*>(fiber->async_copies);
  if (!copies) return false;
  const bool any = !copies->pending.empty();
  delete copies;
  fiber->async_copies = nullptr;
  return any;
}

}  // namespace emulation
