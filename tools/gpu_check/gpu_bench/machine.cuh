// The machine to measure: a GPU, or a few emulated blocks; its memory, launches and clock.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../../../csrc/port.cuh"

namespace qwen_tts {

constexpr int kThreads = 512;

__device__ inline int thread_idx() { return static_cast<int>(threadIdx.x); }
__device__ inline int block_idx() { return static_cast<int>(blockIdx.x); }
__device__ inline int num_blocks() { return static_cast<int>(gridDim.x); }

__device__ inline void hot_spin() {
#if !defined(__CUDACC__)
  pause();  // emulated blocks take turns; another one must get its turn
#endif
}

// Words that signal by themselves: each is written and read whole, and there is no guarantee about
// any other word, not even its neighbour in the same vector.
struct alignas(16) WordPair {
  uint64_t first, second;
};
#if defined(__CUDACC__)
__device__ inline void store_relaxed(uint2* words, const uint2& v) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};" ::"l"(words), "r"(v.x), "r"(v.y)
               : "memory");
}
__device__ inline uint4 load_relaxed(const uint4* words) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(words)
               : "memory");
  return v;
}
__device__ inline void store_relaxed(WordPair* words, const WordPair& v) {
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1,%2};" ::"l"(words), "l"(v.first),
               "l"(v.second)
               : "memory");
}
__device__ inline WordPair load_relaxed(const WordPair* words) {
  WordPair v;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2];"
               : "=l"(v.first), "=l"(v.second)
               : "l"(words)
               : "memory");
  return v;
}
#else
inline void store_relaxed(uint2* words, const uint2& v) {
  __atomic_store_n(&words->x, v.x, __ATOMIC_RELAXED);
  __atomic_store_n(&words->y, v.y, __ATOMIC_RELAXED);
  emulation::progress();
}
inline uint4 load_relaxed(const uint4* words) {
  return {load_relaxed(&words->x), load_relaxed(&words->y), load_relaxed(&words->z),
          load_relaxed(&words->w)};
}
inline void store_relaxed(WordPair* words, const WordPair& v) {
  __atomic_store_n(&words->first, v.first, __ATOMIC_RELAXED);
  __atomic_store_n(&words->second, v.second, __ATOMIC_RELAXED);
  emulation::progress();
}
inline WordPair load_relaxed(const WordPair* words) {
  return {__atomic_load_n(&words->first, __ATOMIC_RELAXED),
          __atomic_load_n(&words->second, __ATOMIC_RELAXED)};
}
#endif

#if defined(__CUDACC__)
inline void check(cudaError_t error) {
  if (!error) return;
  std::fprintf(stderr, "CUDA error %d: %s\n", error, cudaGetErrorString(error));
  std::exit(1);
}
inline void* device_memory(size_t num_bytes) {
  void* memory;
  check(cudaMalloc(&memory, num_bytes));
  check(cudaMemset(memory, 0, num_bytes));
  return memory;
}
inline void clear(void* memory, size_t num_bytes, int byte = 0) {
  check(cudaMemsetAsync(memory, byte, num_bytes));
}
inline void copy_in(void* to, const void* from, size_t num_bytes) {
  check(cudaMemcpy(to, from, num_bytes, cudaMemcpyHostToDevice));
}
inline void copy_out(void* to, const void* from, size_t num_bytes) {
  check(cudaMemcpy(to, from, num_bytes, cudaMemcpyDeviceToHost));
}
inline void copy_within(void* to, const void* from, size_t num_bytes) {
  check(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDeviceToDevice));
}
inline void finish() { check(cudaDeviceSynchronize()); }
constexpr bool kEmulated = false;
#else
inline void check(int error) {
  if (error) std::exit(1);
}
inline void* device_memory(size_t num_bytes) {
  return std::memset(std::aligned_alloc(256, num_bytes), 0, num_bytes);
}
inline void clear(void* memory, size_t num_bytes, int byte = 0) {
  std::memset(memory, byte, num_bytes);
}
inline void copy_in(void* to, const void* from, size_t num_bytes) {
  std::memcpy(to, from, num_bytes);
}
inline void copy_out(void* to, const void* from, size_t num_bytes) {
  std::memcpy(to, from, num_bytes);
}
inline void copy_within(void* to, const void* from, size_t num_bytes) {
  std::memcpy(to, from, num_bytes);
}
inline void finish() {}
constexpr bool kEmulated = true;
#endif

// The fastest of a few runs, in milliseconds; each run is waited for.
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
  unsigned* out;
};

inline Machine machine() {
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
  m.out = static_cast<unsigned*>(device_memory(65536));
  return m;
}

}  // namespace qwen_tts
