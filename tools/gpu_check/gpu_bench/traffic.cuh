// What a frame pays for a barrier and for a trip to L2: with stores in front of the barrier, for
// which its release has to wait, and with copies out of memory under way, behind which both may
// queue. barriers.cuh measures a barrier with nothing in its way, which flatters it.
#pragma once
#include <algorithm>
#include <cstdio>
#include <vector>

#include "barriers.cuh"

namespace qwen_tts {

constexpr int kWarpThreads = 32;
constexpr int kIdleThread =
    kThreads - kWarpThreads;  // first of the last warp, which copies nothing

// Copies out of memory to the block's shared memory, by all warps but the last.
struct Copies {
  const unsigned char* data;
  size_t num_bytes;  // of data; far more than L2 holds
  int block_bytes;   // of one block and round; 0: none

  // All threads call this. Earlier copies to the same place have been waited for.
  //   place  byte offset in the block's shared memory; `block_bytes` fit there
  __device__ void start(int round, int place = 0) const {
    const size_t first = size_t(block_bytes) * (size_t(round) * num_blocks() + block_idx());
    const unsigned char* from = data + first % (num_bytes - block_bytes) / 16 * 16;
    for (int at = thread_idx() * 16; at < block_bytes && thread_idx() < kIdleThread;
         at += kIdleThread * 16) {
      copy_async(dynamic_smem() + place + at, from + at);
    }
    copy_async_commit();
  }
};

// The cycles of one block in all rounds together, and the same time in nanoseconds.
struct BlockTimes {
  uint64_t arriving, waiting;
  uint64_t cycles, ns;
};

class BlockClock {
 public:
  __device__ BlockClock() : cycles_(clock_cycles()), ns_(clock_ns()) {}
  __device__ BlockTimes stop(uint64_t arriving, uint64_t waiting) const {
    return {arriving, waiting, clock_cycles() - cycles_, clock_ns() - ns_};
  }

 private:
  uint64_t cycles_, ns_;
};

// Microseconds of one of `count` times, of the median block.
inline double median_us(const std::vector<BlockTimes>& times, uint64_t BlockTimes::* part,
                        double count) {
  std::vector<double> us;
  for (const BlockTimes& block : times) {
    us.push_back(static_cast<double>(block.*part) * block.ns / block.cycles / 1000 / count);
  }
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}

inline std::vector<BlockTimes> times_of(const Machine& m, const BlockTimes* times) {
  std::vector<BlockTimes> found(m.blocks);
  copy_out(found.data(), times, sizeof(BlockTimes) * m.blocks);
  return found;
}

// ---- barriers

struct TrafficParams {
  Copies copies;
  uint2* stores;        // one for each warp, in two turns; null: no stores
  int arriving_thread;  // the thread that arrives and polls; -1: there is no barrier
  int rounds;
  BarrierWords* words;
  BlockTimes* times;  // [num_blocks]
};

__global__ void __launch_bounds__(kThreads, 1) barriers_in_traffic(TrafficParams p) {
  const int warp = thread_idx() / kWarpThreads, num_warps = kThreads / kWarpThreads;
  const int arriving_thread = p.arriving_thread < 0 ? 0 : p.arriving_thread;
  uint64_t arriving = 0, waiting = 0;
  const BlockClock clock;
  for (int round = 1; round <= p.rounds; ++round) {
    p.copies.start(round);
    if (p.stores && thread_idx() % kWarpThreads == 0) {
      const int turn = round % 2 * num_blocks();
      p.stores[(turn + block_idx()) * num_warps + warp] = make_uint2(round, warp);
    }
    __syncthreads();
    if (thread_idx() == p.arriving_thread) {
      const uint64_t before = clock_cycles();
      add_release(p.words->counter, 1);
      const uint64_t arrived = clock_cycles();
      const unsigned goal = static_cast<unsigned>(round) * num_blocks();
      while (static_cast<int>(load_acquire(p.words->counter) - goal) < 0) pause();
      arriving += arrived - before;
      waiting += clock_cycles() - arrived;
    }
    __syncthreads();
    copy_async_wait<0>();
  }
  if (thread_idx() == arriving_thread) p.times[block_idx()] = clock.stop(arriving, waiting);
}

// Prints a row for each number of bytes in flight, arriving warp, and with stores or without.
//   arrival_us  the time of the arriving thread's arrival, which is its fence
//   wait_us     from there until it has seen all blocks
//   us          of a round; copies_us: of a round without a barrier, which is the copies' own time
inline void measure_barriers_in_traffic(const Machine& m) {
  const int rounds = kEmulated ? 10 : 2000;
  constexpr int kStores = 2 * kThreads / kWarpThreads;
  auto* words = static_cast<BarrierWords*>(device_memory(sizeof(BarrierWords)));
  auto* times = static_cast<BlockTimes*>(device_memory(sizeof(BlockTimes) * m.blocks));
  auto* stores = static_cast<uint2*>(device_memory(sizeof(uint2) * m.blocks * kStores));
  for (int kib : {0, 16, 48, 112}) {
    if (kib << 10 > m.smem_bytes) continue;
    const Copies copies{m.data, m.num_bytes, kib << 10};
    const auto spent = [&](int arriving_thread, bool has_stores) {
      const auto ms = [&](int count) {
        const TrafficParams params{
            copies, has_stores ? stores : nullptr, arriving_thread, count, words, times};
        return best_ms([&] {
          clear(words, sizeof(BarrierWords));
          run(barriers_in_traffic, m.blocks, kib << 10, params);
        });
      };
      const double nothing = ms(0);
      return (ms(rounds) - nothing) * 1000 / rounds;
    };
    const double copies_us = spent(-1, true);
    for (int arriving_thread : {0, kIdleThread}) {
      for (bool has_stores : {false, true}) {
        const double us = spent(arriving_thread, has_stores);
        const std::vector<BlockTimes> found = times_of(m, times);
        std::printf(
            "{\"kind\": \"barrier_in_traffic\", \"in_flight_kb\": %d, \"arriving_warp\": \"%s\", "
            "\"stores\": %s, \"us\": %.3f, \"arrival_us\": %.3f, \"wait_us\": %.3f, "
            "\"copies_us\": %.3f}\n",
            kib, arriving_thread ? "idle" : "copying", has_stores ? "true" : "false", us,
            median_us(found, &BlockTimes::arriving, rounds),
            median_us(found, &BlockTimes::waiting, rounds), copies_us);
      }
    }
  }
}

// ---- a trip to L2

constexpr int kGroups = 4;  // of copies: when the oldest lands the next one starts
constexpr int kHotLines = 256, kLineWords = 32;

struct LatencyParams {
  Copies copies;        // of one group
  const unsigned* hot;  // [kHotLines * kLineWords] a line begins with the index of the next one
  int num_hops;
  unsigned* out;
  BlockTimes* times;  // waiting: of all hops; arriving: groups that a thread copied meanwhile
};

// The last warp follows a chain through L2, the others stream until it has ended.
__global__ void __launch_bounds__(kThreads, 1) l2_latency(LatencyParams p) {
  constexpr int kMostGroups = 1 << 20;
  const int place_bytes = (kGroups + 1) * p.copies.block_bytes;
  volatile int* is_done = reinterpret_cast<int*>(dynamic_smem() + place_bytes);
  if (thread_idx() == 0) *is_done = 0;
  __syncthreads();
  const BlockClock clock;
  if (thread_idx() < kIdleThread) {
    int group = 0;
    for (; group < kMostGroups && p.copies.block_bytes && !*is_done; ++group) {
      p.copies.start(group, group % (kGroups + 1) * p.copies.block_bytes);
      copy_async_wait<kGroups - 1>();
      hot_spin();
    }
    copy_async_wait<0>();
    if (thread_idx() == 0) p.times[block_idx()].arriving = group;
  } else if (thread_idx() == kIdleThread) {
    unsigned at = block_idx() % kHotLines * kLineWords;
    for (int hop = 0; hop < kHotLines; ++hop) at = __ldcg(p.hot + at);  // puts the lines into L2
    const uint64_t before = clock_cycles();
    for (int hop = 0; hop < p.num_hops; ++hop) {
      at = __ldcg(p.hot + at);
      hot_spin();
    }
    const BlockTimes times = clock.stop(0, clock_cycles() - before);
    *is_done = 1;
    if (at == 1) *p.out = at;  // no line begins there: keeps the loads alive
    p.times[block_idx()].waiting = times.waiting;
    p.times[block_idx()].cycles = times.cycles;
    p.times[block_idx()].ns = times.ns;
  }
}

inline void measure_l2_latency(const Machine& m) {
  const int hops = kEmulated ? 40 : 4000;
  std::vector<unsigned> chain(kHotLines * kLineWords, 1);
  for (int line = 0; line < kHotLines; ++line) {  // an odd step reaches every line
    chain[line * kLineWords] = (line + 97) % kHotLines * kLineWords;
  }
  void* hot = device_memory(chain.size() * sizeof(unsigned));
  copy_in(hot, chain.data(), chain.size() * sizeof(unsigned));
  auto* times = static_cast<BlockTimes*>(device_memory(sizeof(BlockTimes) * m.blocks));
  for (int kib : {0, 16, 48, 112}) {
    const int group_bytes = (kib << 10) / kGroups;
    const int smem_bytes = (kGroups + 1) * group_bytes + 16;
    if (smem_bytes > m.smem_bytes) continue;
    const LatencyParams params{
        {m.data, m.num_bytes, group_bytes}, static_cast<const unsigned*>(hot), hops, m.out, times};
    best_ms([&] { run(l2_latency, m.blocks, smem_bytes, params); });
    const std::vector<BlockTimes> found = times_of(m, times);
    double gb_per_s = 0;
    for (const BlockTimes& block : found) {
      gb_per_s += static_cast<double>(block.arriving) * group_bytes / block.ns;
    }
    std::printf(
        "{\"kind\": \"l2_latency\", \"in_flight_kb\": %d, \"us\": %.3f, \"gb_per_s\": %.0f}\n", kib,
        median_us(found, &BlockTimes::waiting, hops), gb_per_s);
  }
}

}  // namespace qwen_tts
