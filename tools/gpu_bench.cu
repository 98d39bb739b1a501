// What a GPU gives a frame kernel, measured apart from it: bandwidth by way of reading, the cost of
// a grid barrier by kind, and the skeleton of a frame (its weight slices, activation round trips
// and barriers, without the arithmetic). One JSON object a line on standard output.
//
//   nvcc -std=c++17 -O3 -arch=sm_90a tools/gpu_bench.cu -o gpu_bench && ./gpu_bench
//
// With a host compiler and csrc/emulation/*.cpp the same kernels run by emulation on a few bytes,
// which proves that they end and read what they should; those times mean nothing.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../csrc/port.cuh"
#if defined(__CUDACC__)
#include <cooperative_groups.h>

#include <cuda/barrier>
#endif

namespace qwen_tts {
namespace {

constexpr int kThreads = 512;
constexpr int kPieceBytes = 16384;  // of the copy rings
constexpr int kAsyncDepth = 4;      // pieces in flight of the cp.async ring

__device__ int thread_idx() { return static_cast<int>(threadIdx.x); }
__device__ int block_idx() { return static_cast<int>(blockIdx.x); }
__device__ int num_blocks() { return static_cast<int>(gridDim.x); }

// ---- grid barriers

enum class Barrier { kCounter, kCounterPause, kReleaseWord, kSlots, kEightCounters, kGridSync };
constexpr const char* kBarrierNames[] = {"counter", "counter_pause",  "release_word",
                                         "slots",   "eight_counters", "grid_sync"};

struct BarrierWords {  // zero before a launch; words that are polled apart lie 32 bytes apart
  unsigned counter[32];
  unsigned released[32];
  unsigned slots[1024 * 8];
};

__device__ void hot_spin() {
#if !defined(__CUDACC__)
  pause();  // emulated blocks take turns; somebody else must get one
#endif
}

// Waits until every block has called it `round` times. All threads of all blocks.
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
  } else if constexpr (kKind == Barrier::kSlots) {  // a word for each block; everybody reads all
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

// ---- reading

enum class Reading { kPlain, kAsync, kBulk };

__device__ unsigned mix(const uint4& v) { return v.x ^ v.y ^ v.z ^ v.w; }

// What each block reads: whole pieces.
__host__ __device__ size_t share_of(size_t num_bytes, int blocks) {
  return num_bytes / blocks / kPieceBytes * kPieceBytes;
}

// Reads num_bytes, cut into one run a block, `passes` times; *out keeps the loads alive.
template <Reading kHow>
__global__ void __launch_bounds__(kThreads, 1)
    read(const unsigned char* data, size_t num_bytes, int passes, [[maybe_unused]] int ring_bytes,
         unsigned* out) {
  const size_t share = share_of(num_bytes, num_blocks());
  const unsigned char* mine = data + share * block_idx();
  const int num_pieces = static_cast<int>(share / kPieceBytes);
  unsigned char* ring = dynamic_smem();
  unsigned sum = 0;
  const int offset = thread_idx() * 16;
  constexpr int kStride = kThreads * 16;
  if constexpr (kHow == Reading::kPlain) {
    constexpr int kInFlight = 8;
    for (int pass = 0; pass < passes; ++pass) {
      for (size_t at = offset; at < share; at += size_t{kStride} * kInFlight) {
        uint4 values[kInFlight] = {};
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          const size_t place = at + size_t{kStride} * i;
          if (place < share) values[i] = __ldg(reinterpret_cast<const uint4*>(mine + place));
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) sum ^= mix(values[i]);
      }
    }
  } else if constexpr (kHow == Reading::kAsync) {
    // A thread reads what it copied itself: no synchronisation.
    const int total = num_pieces * passes;
    const auto start = [&](int piece) {
      if (piece < total) {
        for (int at = offset; at < kPieceBytes; at += kStride) {
          copy_async(ring + piece % (kAsyncDepth + 1) * kPieceBytes + at,
                     mine + size_t{kPieceBytes} * (piece % num_pieces) + at);
        }
      }
      copy_async_commit();
    };
    for (int piece = 0; piece < kAsyncDepth; ++piece) start(piece);
    for (int piece = 0; piece < total; ++piece) {
      copy_async_wait<kAsyncDepth - 1>();
      for (int at = offset; at < kPieceBytes; at += kStride) {
        const unsigned char* place = ring + piece % (kAsyncDepth + 1) * kPieceBytes + at;
        sum ^= mix(*reinterpret_cast<const uint4*>(place));
      }
      start(piece + kAsyncDepth);
    }
    copy_async_wait<0>();
  } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    using BlockBarrier = cuda::barrier<cuda::thread_scope_block>;
    constexpr int kMaxPieces = 12;
    __shared__ alignas(8) unsigned char barrier_bytes[kMaxPieces][sizeof(BlockBarrier)];
    const auto full = [&](int piece, int depth) {
      return reinterpret_cast<BlockBarrier*>(barrier_bytes[piece % depth]);
    };
    const int depth = min(ring_bytes / kPieceBytes, kMaxPieces), total = num_pieces * passes;
    if (thread_idx() == 0) {
      for (int i = 0; i < depth; ++i) init(full(i, depth), 1);
      cuda::device::experimental::fence_proxy_async_shared_cta();
    }
    __syncthreads();
    const auto start = [&](int piece) {
      if (thread_idx() != 0 || piece >= total) return;
      BlockBarrier& barrier = *full(piece, depth);
      cuda::device::memcpy_async_tx(ring + piece % depth * kPieceBytes,
                                    mine + size_t{kPieceBytes} * (piece % num_pieces),
                                    cuda::aligned_size_t<16>(kPieceBytes), barrier);
      (void)cuda::device::barrier_arrive_tx(barrier, 1, kPieceBytes);
    };
    for (int piece = 0; piece < depth - 1; ++piece) start(piece);
    for (int piece = 0; piece < total; ++piece) {
      full(piece, depth)->wait_parity(piece / depth % 2);
      for (int at = offset; at < kPieceBytes; at += kStride) {
        sum ^= mix(*reinterpret_cast<const uint4*>(ring + piece % depth * kPieceBytes + at));
      }
      __syncthreads();  // the slot of piece + depth - 1 has been read
      start(piece + depth - 1);
    }
#endif
  }
  if (sum == 0x12345678u) *out = sum;
}

// ---- the skeleton of a frame

struct Phase {
  size_t weight_bytes;  // of the whole grid
  int num_activations;  // floats that every block reads back before it starts
};

struct SkeletonParams {
  const unsigned char* weights;
  size_t num_bytes;  // phases wrap around in them
  const Phase* phases;
  int num_phases;
  float* activations;
  BarrierWords* words;
  int stage_bytes;  // of one of the two staging buffers
  bool look_ahead, use_barriers, use_activations;
};

__global__ void __launch_bounds__(kThreads, 1) frame_skeleton(SkeletonParams p, unsigned* out) {
  unsigned char* staged = dynamic_smem();
  size_t position = 0;
  float sum = 0;
  const auto slice = [&](int phase, size_t from, const unsigned char*& source) {
    const size_t bytes = p.phases[phase].weight_bytes / num_blocks() / 16 * 16;
    source = p.weights + (from + bytes * block_idx()) % (p.num_bytes - bytes) / 16 * 16;
    return static_cast<int>(bytes);
  };
  const auto stage = [&](int phase, size_t from) {
    const unsigned char* source;
    const int slice_bytes = slice(phase, from, source);
    const int bytes = slice_bytes < p.stage_bytes ? slice_bytes : p.stage_bytes;
    for (int at = thread_idx() * 16; at < bytes; at += kThreads * 16) {
      copy_async(staged + phase % 2 * p.stage_bytes + at, source + at);
    }
    copy_async_commit();
  };
  if (p.look_ahead) stage(0, 0);
  for (int phase = 0; phase < p.num_phases; ++phase) {
    const unsigned char* source;
    const int bytes = slice(phase, position, source);
    const int ready = p.look_ahead ? (bytes < p.stage_bytes ? bytes : p.stage_bytes) : 0;
    const size_t next = position + p.phases[phase].weight_bytes;
    copy_async_wait<0>();  // what this thread reads below it has copied itself
    if (p.look_ahead && phase + 1 < p.num_phases) stage(phase + 1, next);
    if (p.use_activations) {
      for (int i = thread_idx(); i < p.phases[phase].num_activations; i += kThreads) {
        sum += __ldcg(p.activations + i);
      }
      sum = warp_sum(sum) * 1e-30f;
    }
    for (int at = thread_idx() * 16; at < bytes; at += kThreads * 16) {
      const uint4 v = at < ready
                          ? *reinterpret_cast<const uint4*>(staged + phase % 2 * p.stage_bytes + at)
                          : __ldg(reinterpret_cast<const uint4*>(source + at));
      const unsigned pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // unpacking, as a dot product would
        sum += __uint_as_float(pairs[i] << 16) + __uint_as_float(pairs[i] & 0xffff0000u);
      }
    }
    if (p.use_activations && thread_idx() == 0) p.activations[block_idx()] = sum * 1e-30f;
    if (p.use_barriers) {
      sync_grid<Barrier::kCounter>(p.words, phase + 1);
    } else {
      __syncthreads();
    }
    position = next;
  }
  if (sum == 12345.0f) *out = 1;
}

// The phases of one frame of a released model: 15 predictor passes of 5 layers, then the talker.
std::vector<Phase> frame_phases(size_t hidden, size_t intermediate, int bytes_per_weight) {
  constexpr size_t kQkvSize = 4096, kQSize = 2048, kPredictorHidden = 1024, kPredictorMlp = 3072;
  std::vector<Phase> phases;
  const auto matrix = [&](size_t rows, size_t cols) {
    phases.push_back({rows * cols * bytes_per_weight, static_cast<int>(cols)});
  };
  const auto layer = [&](size_t width, size_t mlp) {
    matrix(kQkvSize, width);
    phases.push_back({0, kQSize});  // attention
    matrix(width, kQSize);
    matrix(2 * mlp, width);
    matrix(width, mlp);
  };
  for (int pass = 0; pass < 15; ++pass) {
    for (int i = 0; i < 5; ++i) layer(kPredictorHidden, kPredictorMlp);
    matrix(2048, kPredictorHidden);
  }
  for (int i = 0; i < 28; ++i) layer(hidden, intermediate);
  matrix(3072, hidden);
  return phases;
}

// ---- host

#if defined(__CUDACC__)
void check(cudaError_t error) {
  if (!error) return;
  std::fprintf(stderr, "CUDA error %d: %s\n", error, cudaGetErrorString(error));
  std::exit(1);
}
void* device_memory(size_t num_bytes) {
  void* memory;
  check(cudaMalloc(&memory, num_bytes));
  check(cudaMemset(memory, 0, num_bytes));
  return memory;
}
void clear(void* memory, size_t num_bytes) { check(cudaMemsetAsync(memory, 0, num_bytes)); }
void copy_in(void* to, const void* from, size_t num_bytes) {
  check(cudaMemcpy(to, from, num_bytes, cudaMemcpyHostToDevice));
}
void copy_within(void* to, const void* from, size_t num_bytes) {
  check(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDeviceToDevice));
}
void finish() { check(cudaDeviceSynchronize()); }
constexpr bool kEmulated = false;
#else
void check(int error) {
  if (error) std::exit(1);
}
void* device_memory(size_t num_bytes) {
  return std::memset(std::aligned_alloc(256, num_bytes), 0, num_bytes);
}
void clear(void* memory, size_t num_bytes) { std::memset(memory, 0, num_bytes); }
void copy_in(void* to, const void* from, size_t num_bytes) { std::memcpy(to, from, num_bytes); }
void copy_within(void* to, const void* from, size_t num_bytes) { std::memcpy(to, from, num_bytes); }
void finish() {}
constexpr bool kEmulated = true;
#endif

// The fastest of a few runs, milliseconds; each is waited for.
template <class Work>
double best_ms(Work work) {
  double best = 1e30;
  for (int i = 0; i < (kEmulated ? 1 : 7); ++i) {
    finish();
    const auto started = std::chrono::steady_clock::now();
    work();
    finish();
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - started;
    best = spent.count() < best ? spent.count() : best;
  }
  return best;
}

template <class... Args>
void run(void (*kernel)(Args...), int blocks, size_t smem_bytes, Args... args) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(smem_bytes)));
  check(launch_cooperative(kernel, blocks, kThreads, smem_bytes, nullptr, args...));
}

struct Machine {
  int blocks, smem_bytes;
  bool has_bulk;
  size_t num_bytes;  // of `data`
  unsigned char* data;
  BarrierWords* words;
  unsigned* out;
};

void measure_copy(const Machine& m) {
  const size_t half = m.num_bytes / 2;
  const double ms = best_ms([&] { copy_within(m.data, m.data + half, half); });
  std::printf("{\"kind\": \"copy\", \"gb_per_s\": %.1f}\n", 2 * half / ms / 1e6);
}

void measure_reading(const Machine& m) {
  const int ring = (m.smem_bytes - 8192) / kPieceBytes * kPieceBytes;
  const std::vector<int> sizes =
      kEmulated ? std::vector<int>{1} : std::vector<int>{16, 32, 48, 64, 96, 128, 256, 1024, 4096};
  for (int mib : sizes) {
    const size_t bytes = size_t(mib) << 20;
    const int passes = kEmulated ? 2 : (mib >= 1024 ? 1 : 2048 / mib);
    const auto speed = [&](auto kernel) {
      const double ms = best_ms([&] {
        run(kernel, m.blocks, ring, const_cast<const unsigned char*>(m.data), bytes, passes, ring,
            m.out);
      });
      return static_cast<double>(share_of(bytes, m.blocks) * m.blocks) * passes / ms / 1e6;
    };
    std::printf("{\"kind\": \"read\", \"mib\": %d, \"plain\": %.1f, \"async\": %.1f", mib,
                speed(read<Reading::kPlain>), speed(read<Reading::kAsync>));
    if (m.has_bulk) std::printf(", \"bulk\": %.1f", speed(read<Reading::kBulk>));
    std::printf(", \"unit\": \"GB/s\"}\n");
  }
}

template <Barrier kKind>
void measure_barrier(const Machine& m) {
  const int rounds = kEmulated ? 20 : 4000;
  const auto spent = [&](int count) {
    return best_ms([&] {
      clear(m.words, sizeof(BarrierWords));
      run(barriers<kKind>, m.blocks, 0, m.words, count);
    });
  };
  std::printf("{\"kind\": \"barrier\", \"how\": \"%s\", \"blocks\": %d, \"us\": %.3f}\n",
              kBarrierNames[static_cast<int>(kKind)], m.blocks,
              (spent(rounds) - spent(0)) * 1000 / rounds);
}

void measure_frame(const Machine& m, const char* model, size_t hidden, int bytes_per_weight) {
  std::vector<Phase> phases = frame_phases(hidden, 3 * hidden, bytes_per_weight);
  if (kEmulated) {
    phases.resize(12);
    for (Phase& phase : phases) phase.weight_bytes /= 256;
  }
  size_t total = 0;
  for (const Phase& phase : phases) total += phase.weight_bytes;
  void* table = device_memory(phases.size() * sizeof(Phase));
  copy_in(table, phases.data(), phases.size() * sizeof(Phase));
  const int stage_bytes = (m.smem_bytes - 8192) / 2 / 1024 * 1024;
  const auto spent = [&](bool look_ahead, bool use_barriers, bool use_activations) {
    const SkeletonParams params = {m.data,
                                   m.num_bytes,
                                   static_cast<const Phase*>(table),
                                   static_cast<int>(phases.size()),
                                   reinterpret_cast<float*>(m.out) + 64,
                                   m.words,
                                   stage_bytes,
                                   look_ahead,
                                   use_barriers,
                                   use_activations};
    return best_ms([&] {
      clear(m.words, sizeof(BarrierWords));
      run(frame_skeleton, m.blocks, 2 * stage_bytes, params, m.out);
    });
  };
  const double all = spent(true, true, true);
  std::printf(
      "{\"kind\": \"frame_skeleton\", \"model\": \"%s\", \"bytes_per_weight\": %d, \"phases\": "
      "%zu, "
      "\"mb\": %.0f, \"ms\": %.3f, \"gb_per_s\": %.0f, \"no_look_ahead_ms\": %.3f, "
      "\"no_barriers_ms\": %.3f, \"no_activations_ms\": %.3f, \"weights_only_ms\": %.3f}\n",
      model, bytes_per_weight, phases.size(), total / 1e6, all, total / all / 1e6,
      spent(false, true, true), spent(true, false, true), spent(true, true, false),
      spent(true, false, false));
}

Machine machine() {
  Machine m{};
#if defined(__CUDACC__)
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0));
  m.blocks = device.multiProcessorCount;
  m.smem_bytes = static_cast<int>(device.sharedMemPerBlockOptin);
  m.has_bulk = device.major >= 9;
  m.num_bytes = size_t{4} << 30;
  std::printf(
      "{\"kind\": \"device\", \"name\": \"%s\", \"sms\": %d, \"l2_mb\": %d, \"smem_kb\": %d}\n",
      device.name, m.blocks, device.l2CacheSize >> 20, m.smem_bytes >> 10);
#else
  m.blocks = 2;
  m.smem_bytes = 128 << 10;
  m.num_bytes = size_t{4} << 20;
  std::printf("{\"kind\": \"device\", \"name\": \"emulation\", \"sms\": %d}\n", m.blocks);
#endif
  m.data = static_cast<unsigned char*>(device_memory(m.num_bytes));
  m.words = static_cast<BarrierWords*>(device_memory(sizeof(BarrierWords)));
  m.out = static_cast<unsigned*>(device_memory(65536));
  return m;
}

}  // namespace
}  // namespace qwen_tts

int main() {
  using namespace qwen_tts;
  const Machine m = machine();
  measure_copy(m);
  measure_reading(m);
  measure_barrier<Barrier::kCounter>(m);
  measure_barrier<Barrier::kCounterPause>(m);
  measure_barrier<Barrier::kReleaseWord>(m);
  measure_barrier<Barrier::kSlots>(m);
  measure_barrier<Barrier::kEightCounters>(m);
  if (!kEmulated) measure_barrier<Barrier::kGridSync>(m);
  for (int bytes_per_weight : {2, 1}) {
    measure_frame(m, "0.6B", 1024, bytes_per_weight);
    measure_frame(m, "1.7B", 2048, bytes_per_weight);
  }
  return 0;
}
