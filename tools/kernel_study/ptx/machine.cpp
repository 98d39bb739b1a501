// What the lanes of a warp, or all threads, do together. Compiled without sanitizers: its own data
// is not memory of the kernel.
#include "machine.h"

#include <vector>

namespace ptx {

namespace {
constexpr int kMaxThreads = 1024;
constexpr int kSchedulers = 4;  // of an SM; warp w belongs to scheduler w % 4

// Counts of the busiest scheduler of all blocks: before they arrived, and while they waited for
// each other.
struct Interval {
  Tally stage, waiting;
};
struct ThreadTallies {
  Tally recent;               // since the thread last met its block
  std::vector<Tally> before;  // from meeting to meeting since the block arrived
};
std::vector<std::vector<ThreadTallies>> tallies;  // [block][thread]
std::vector<size_t> num_arrivals;                 // of each block
std::vector<Interval> intervals;
u64 tallied_launch = ~u64{0};

// The most of all schedulers; tally_of(thread) is what one thread executed.
template <class TallyOf>
void raise_to_busiest(Tally& most, const TallyOf& tally_of) {
  Tally schedulers[kSchedulers];
  for (u32 first = 0; first < blockDim.x; first += 32) {
    Tally warp;  // the count of its busiest lane, for which the others wait
    for (u32 i = first; i < first + 32; ++i) {
      const Tally lane = tally_of(i);
      warp.instructions = std::max(warp.instructions, lane.instructions);
      warp.integers = std::max(warp.integers, lane.integers);
    }
    schedulers[first / 32 % kSchedulers].add(warp.instructions, warp.integers);
  }
  for (const Tally& scheduler : schedulers) {
    most.instructions = std::max(most.instructions, scheduler.instructions);
    most.integers = std::max(most.integers, scheduler.integers);
  }
}
}  // namespace

Tally& tally_of_thread() {
  if (tallied_launch != emulation::launch_number) {
    tallied_launch = emulation::launch_number;
    tallies.assign(gridDim.x, std::vector<ThreadTallies>(kMaxThreads));
    num_arrivals.assign(gridDim.x, 0);
    intervals.clear();
  }
  return tallies[blockIdx.x][threadIdx.x].recent;
}

void note_meeting() {
  if (tallied_launch != emulation::launch_number) return;  // nothing is being counted
  ThreadTallies& mine = tallies[blockIdx.x][threadIdx.x];
  mine.before.push_back(mine.recent);
  mine.recent = {};
}

void note_arrival() {
  if (tallied_launch != emulation::launch_number) return;
  std::vector<ThreadTallies>& threads = tallies[blockIdx.x];
  const size_t index = num_arrivals[blockIdx.x]++;
  if (index == intervals.size()) intervals.push_back({});
  // After an arrival every thread first meets its block when the others have arrived, too. By now
  // some threads may be further on than this one.
  const size_t num_meetings = threads[threadIdx.x].before.size(), first = index ? 1 : 0;
  raise_to_busiest(intervals[index].stage, [&](u32 thread) {
    Tally sum;
    for (size_t i = first; i < num_meetings; ++i) {
      const Tally& part = threads[thread].before[i];
      sum.add(part.instructions, part.integers);
    }
    return sum;
  });
  if (index) {
    raise_to_busiest(intervals[index - 1].waiting, [&](u32 thread) {
      // How often the arriving thread polls depends on the emulation, so it does not count.
      return thread == threadIdx.x ? Tally{} : threads[thread].before[0];
    });
  }
  for (u32 i = 0; i < blockDim.x; ++i) {
    std::vector<Tally>& before = threads[i].before;
    before.erase(before.begin(), before.begin() + num_meetings);
  }
}

// Copies up to `size` intervals of the last counted launch.
extern "C" int ptx_intervals(Interval* out, int size) {
  for (int i = 0; i < size && i < static_cast<int>(intervals.size()); ++i) out[i] = intervals[i];
  return static_cast<int>(intervals.size());
}

// Open addressing, without an allocation: thread sanitizer would see fibers share it.
void note(u64 address, size_t bytes, Access access) {
  struct Entry {
    u64 sector, launch;  // counted from 1
    u8 seen;
  };
  constexpr u64 kSector = 32, kSize = 1 << 20;
  static Entry table[kSize];
  const u64 launch = emulation::launch_number + 1;
  for (u64 sector = address / kSector; sector <= (address + bytes - 1) / kSector; ++sector) {
    u64 i = sector * 0x9E3779B97F4A7C15u >> 44, probes = 0;
    while (table[i].launch == launch && table[i].sector != sector) {
      i = (i + 1) % kSize;
      if (++probes == kSize) emulation::fail("more than %d MB are written", 32);
    }
    const u8 before = table[i].launch == launch ? table[i].seen : 0;
    table[i] = {sector, launch, static_cast<u8>(before | 1 << static_cast<int>(access))};
    if (table[i].seen == 3) {
      emulation::fail("%#llx is written and read by ld.global.nc in one launch",
                      static_cast<unsigned long long>(address));
    }
  }
}

// D[16x8] = A[16x16] B[16x8] + C, bf16 in, f32 out. With g = lane / 4 and t = lane % 4:
//   A register 0: row g, columns 2t, 2t+1; 1: row g+8; 2: row g, columns 2t+8, 2t+9; 3: row g+8
//   B register 0: rows 2t, 2t+1 of column g; 1: rows 2t+8, 2t+9
//   C, D 0, 1: row g, columns 2t, 2t+1; 2, 3: row g+8
// (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type")
void multiply(emulation::Fiber* fibers) {
  MmaLane* lanes[32];
  for (int lane = 0; lane < 32; ++lane) std::memcpy(&lanes[lane], fibers[lane].deposit + 8, 8);
  const auto half = [](u32 pair, int upper) {
    return as<f32>(upper ? pair & 0xffff0000u : pair << 16);
  };
  f32 left[16][16], right[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, k = lane % 4 * 2;
    for (int upper = 0; upper < 2; ++upper) {
      for (int i = 0; i < 4; ++i) {
        left[g + i % 2 * 8][k + i / 2 * 8 + upper] = half(lanes[lane]->a[i], upper);
      }
      for (int i = 0; i < 2; ++i) right[k + i * 8 + upper][g] = half(lanes[lane]->b[i], upper);
    }
  }
  for (int row = 0; row < 16; ++row) {
    f32 sums[8] = {};
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) sums[column] += left[row][k] * right[k][column];
    }
    for (int column = 0; column < 8; ++column) {
      MmaLane& lane = *lanes[row % 8 * 4 + column / 2];
      const int i = row / 8 * 2 + column % 2;
      lane.d[i] = lane.c[i] + sums[column];
    }
  }
}

}  // namespace ptx
