// All blocks write a vector together, and each reads all of it. This is what lies between two
// products of a frame, in three ways:
//
//   barrier   stores, a grid barrier, loads: as in the kernel
//   sentinel  a reader polls the words that it needs anyway, until none of them is NaN. 3 buffers
//             take turns: a block that has read round r knows that all have read round r - 1, and
//             sets its own words of that one to NaN again
//   flagged   each word carries the number of its round, so none has to be set to NaN again, at
//             twice the bytes
//
// Only time orders a sentinel's NaN before later stores of its block: `wrong` counts words that
// came from an earlier round.
#pragma once
#include <cstdio>

#include "traffic.cuh"

namespace qwen_tts {

enum class Exchange { kBarrier, kSentinel, kFlagged };

constexpr unsigned kSentinelWord = 0xffffffffu;
constexpr int kMostPolls = 1 << 22;  // of one word; more means an error
constexpr int kMostFloats = 4096;
constexpr int kLoadsAtOnce = 4;  // vectors of a thread that wait for L2 together
static_assert(kMostFloats <= 2 * kLoadsAtOnce * kThreads, "pairs of a vector for each thread");

struct ExchangeParams {
  Copies copies;
  int num_floats;  // a multiple of 4
  int rounds;
  void* buffers;  // 3 of kMostFloats words of 8 bytes
  BarrierWords* words;
  unsigned* wrong;
};

__device__ inline unsigned value_of(int round, int i) { return (unsigned(round) << 13 | i) >> 1; }

// The pairs [begin, end) that this block writes.
struct PairShare {
  int begin, end;
  __device__ explicit PairShare(int num_floats) {
    const int num_pairs = num_floats / 2;
    begin = static_cast<int>(int64_t{num_pairs} * block_idx() / num_blocks());
    end = static_cast<int>(int64_t{num_pairs} * (block_idx() + 1) / num_blocks());
  }
};

// Loads this thread's vectors, all of them before it looks at the first, and loads again those that
// have not arrived.
//   load(i), is_there(vector), use(i, vector) of vector i
template <class Vector, class Load, class IsThere, class Use>
__device__ void poll_vectors(int num_vectors, const Load& load, const IsThere& is_there,
                             const Use& use) {
  Vector vectors[kLoadsAtOnce];
#pragma unroll
  for (int j = 0; j < kLoadsAtOnce; ++j) {
    const int i = thread_idx() + j * kThreads;
    if (i < num_vectors) vectors[j] = load(i);
  }
#pragma unroll
  for (int j = 0; j < kLoadsAtOnce; ++j) {
    const int i = thread_idx() + j * kThreads;
    if (i >= num_vectors) break;
    for (int polls = 0; !is_there(vectors[j]) && polls < kMostPolls; ++polls) {
      hot_spin();
      vectors[j] = load(i);
    }
    use(i, vectors[j]);
  }
}

template <Exchange kHow>
__global__ void __launch_bounds__(kThreads, 1) exchange(ExchangeParams p) {
  const PairShare share(p.num_floats);
  constexpr int kTurns = kHow == Exchange::kSentinel ? 3 : 2;
  unsigned wrong = 0;
  unsigned* rows = reinterpret_cast<unsigned*>(dynamic_smem() + p.copies.block_bytes);
  for (int round = 1; round <= p.rounds; ++round) {
    p.copies.start(round);
    const auto check = [&](int i, unsigned value) {
      rows[i] = value;
      wrong += value != value_of(round, i);
    };
    if constexpr (kHow == Exchange::kFlagged) {
      auto* words = static_cast<WordPair*>(p.buffers) + round % kTurns * kMostFloats / 2;
      const auto word = [&](int i) { return uint64_t(round) << 32 | value_of(round, i); };
      for (int pair = share.begin + thread_idx(); pair < share.end; pair += kThreads) {
        store_relaxed(words + pair, {word(2 * pair), word(2 * pair + 1)});
      }
      poll_vectors<WordPair>(
          p.num_floats / 2, [&](int i) { return load_relaxed(words + i); },
          [&](const WordPair& v) {
            return v.first >> 32 == unsigned(round) && v.second >> 32 == unsigned(round);
          },
          [&](int i, const WordPair& v) {
            check(2 * i, static_cast<unsigned>(v.first));
            check(2 * i + 1, static_cast<unsigned>(v.second));
          });
    } else {
      const auto buffer = [&](int of_round) {
        return static_cast<uint2*>(p.buffers) + (of_round + kTurns) % kTurns * kMostFloats / 2;
      };
      uint2* words = buffer(round);
      const auto* vectors = reinterpret_cast<const uint4*>(words);
      for (int pair = share.begin + thread_idx(); pair < share.end; pair += kThreads) {
        const uint2 v = make_uint2(value_of(round, 2 * pair), value_of(round, 2 * pair + 1));
        if constexpr (kHow == Exchange::kSentinel) {
          store_relaxed(words + pair, v);
        } else {
          words[pair] = v;
        }
      }
      if constexpr (kHow == Exchange::kBarrier) {
        sync_grid<Barrier::kCounterPause>(p.words, round);
      }
      poll_vectors<uint4>(
          p.num_floats / 4,
          [&](int i) {
            if constexpr (kHow == Exchange::kBarrier) return __ldcg(vectors + i);
            return load_relaxed(vectors + i);
          },
          [&](const uint4& v) {
            return kHow == Exchange::kBarrier || (v.x != kSentinelWord && v.y != kSentinelWord &&
                                                  v.z != kSentinelWord && v.w != kSentinelWord);
          },
          [&](int i, const uint4& v) {
            check(4 * i, v.x), check(4 * i + 1, v.y), check(4 * i + 2, v.z), check(4 * i + 3, v.w);
          });
      if constexpr (kHow == Exchange::kSentinel) {
        __syncthreads();  // the whole block has read this round, so all blocks the one before
        for (int pair = share.begin + thread_idx(); pair < share.end; pair += kThreads) {
          store_relaxed(buffer(round - 1) + pair, make_uint2(kSentinelWord, kSentinelWord));
        }
      }
    }
    __syncthreads();  // rows are complete
    copy_async_wait<0>();
  }
  if (wrong) atomicAdd(p.wrong, wrong);
  if (p.rounds && rows[thread_idx()] == kSentinelWord) atomicAdd(p.wrong, 1u);  // keeps the stores
}

inline void measure_exchange(const Machine& m) {
  const int rounds = kEmulated ? 12 : 4000;
  constexpr size_t kBufferBytes = size_t{3} * kMostFloats * sizeof(uint64_t);
  void* buffers = device_memory(kBufferBytes);
  auto* words = static_cast<BarrierWords*>(device_memory(sizeof(BarrierWords)));
  auto* wrong = static_cast<unsigned*>(device_memory(sizeof(unsigned)));
  for (int kib : {0, 16, 48, 112}) {
    const int smem_bytes = (kib << 10) + kMostFloats * static_cast<int>(sizeof(float));
    if (smem_bytes > m.smem_bytes) continue;
    for (int num_floats : {1024, 3072, 4096}) {
      unsigned num_wrong = 0;
      const auto spent = [&](auto kernel, bool has_sentinels) {
        const auto ms = [&](int count) {
          const ExchangeParams params{
              {m.data, m.num_bytes, kib << 10}, num_floats, count, buffers, words, wrong};
          return best_ms([&] {
            clear(words, sizeof(BarrierWords));
            clear(buffers, kBufferBytes, has_sentinels ? 0xff : 0);
            run(kernel, m.blocks, smem_bytes, params);
          });
        };
        const double nothing = ms(0);
        const double us = (ms(rounds) - nothing) * 1000 / rounds;
        unsigned found;
        copy_out(&found, wrong, sizeof found);
        clear(wrong, sizeof found);
        num_wrong += found;
        return us;
      };
      std::printf("{\"kind\": \"exchange\", \"in_flight_kb\": %d, \"floats\": %d", kib, num_floats);
      std::printf(", \"barrier_us\": %.3f", spent(exchange<Exchange::kBarrier>, false));
      std::printf(", \"sentinel_us\": %.3f", spent(exchange<Exchange::kSentinel>, true));
      std::printf(", \"flagged_us\": %.3f", spent(exchange<Exchange::kFlagged>, false));
      std::printf(", \"wrong\": %u}\n", num_wrong);
    }
  }
}

}  // namespace qwen_tts
