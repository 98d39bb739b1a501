// The only file in which the GPU and its emulation differ. Everything that needs PTX, a launch or
// shared memory is a small function here, with a twin for the host compiler; all other files of
// csrc/ use the portable subset of CUDA C++ that README.md describes.
#pragma once
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#else
#include "emulation/cuda_emulation.h"
#endif

namespace qwen_tts {

using bf16 = __nv_bfloat16;
constexpr int kWarpSize = 32;

#if defined(__CUDACC__)

__device__ __forceinline__ unsigned char* dynamic_smem() {
  extern __shared__ __align__(128) unsigned char dynamic_smem_bytes[];
  return dynamic_smem_bytes;
}

// ---- Words through which blocks signal each other. Their accesses have acquire and release order
// at GPU scope, without fences. They are PTX because CUDA C++ has no such loads and stores on plain
// memory; ThreadSanitizer understands their twins in the emulation.

// Adds without returning the old value, so no thread waits for the round trip of an arrival.
__device__ __forceinline__ void add_release(unsigned* word, unsigned value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ __forceinline__ unsigned add_acquire_release(unsigned* word, unsigned value) {
  unsigned old;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(word), "r"(value)
               : "memory");
  return old;
}
__device__ __forceinline__ unsigned load_acquire(const unsigned* word) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ unsigned load_relaxed(const unsigned* word) {
  unsigned value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(unsigned* word, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
// Loads, at system scope, a flag that the host may write while the kernel runs.
__device__ __forceinline__ unsigned load_from_host(const unsigned* word) {
  unsigned value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
// The body of every spin loop.
__device__ __forceinline__ void pause() { __nanosleep(20); }
__device__ __forceinline__ uint64_t clock_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
// Returns the clock of this SM; the clocks of other SMs do not start at the same time.
__device__ __forceinline__ uint64_t clock_cycles() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(now));
  return now;
}

// ---- Copies
// Copies 16 bytes from global to shared memory without registers and without waiting. It is PTX
// because the pipeline intrinsics offer neither the L2 prefetch nor an eviction priority.
//   kEvictFirst  L2 evicts these bytes before all that were read without this flag
template <bool kEvictFirst = false>
__device__ __forceinline__ void copy_async(void* smem, const void* global) {
  if constexpr (kEvictFirst) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 0f3F800000;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2;" ::"r"(
                     static_cast<unsigned>(__cvta_generic_to_shared(smem))),
                 "l"(global), "l"(policy)
                 : "memory");
    return;
  }
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(smem))),
               "l"(global)
               : "memory");
}
__device__ __forceinline__ void prefetch_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}
// Ends a group of copies. A wait leaves at most this thread's newest kGroupsLeft groups unfinished.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kGroupsLeft>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
}

// Returns its argument, which the compiler cannot see. Otherwise the compiler would keep what a
// stage computes from the value in registers through all other stages.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// ---- Warps
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance; distance >>= 1) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int distance = 16; distance; distance >>= 1) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}
__device__ __forceinline__ unsigned warp_max(unsigned value) {
  return __reduce_max_sync(0xffffffffu, value);
}
// The sum over the four lanes 4g .. 4g+3.
__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}
// Whether a product takes less time when some of its rows are zero.
constexpr bool kZerosAreFree = false;
// d[16x8] += a[16x16] b[16x8], bf16 in, f32 accumulated. Lane 4g+t holds row g of a, columns
// 2t,2t+1 (x) and 2t+8,2t+9 (z), and the same of row g+8 (y, w); column g of b, rows 2t,2t+1
// (first) and 2t+8,2t+9; and rows g and g+8 of d, columns 2t and 2t+1. It is PTX because the wmma
// intrinsics hide this layout, on which the packed weights rely.
__device__ __forceinline__ void mma(float (&d)[4], const uint4& a, unsigned b_first,
                                    unsigned b_second) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b_first), "r"(b_second));
}
// mma() for 32 columns of a and rows of b.
__device__ __forceinline__ void mma_tile(float (&d)[4], const uint4& a_first, const uint4& a_second,
                                         const uint4& b) {
  mma(d, a_first, b.x, b.y);
  mma(d, a_second, b.z, b.w);
}

// Rounds two values to bf16 and packs them into one register, with `low` in its lower half.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const unsigned&>(pair);
}
// Multiplies the two bf16 of one register with those of the other; subnormals stay as they are.
__device__ __forceinline__ unsigned multiply_bf16x2(unsigned a, unsigned b) {
  const __nv_bfloat162 product = __hmul2(reinterpret_cast<const __nv_bfloat162&>(a),
                                         reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const unsigned&>(product);
}

// ---- Launch
template <class... Args>
cudaError_t launch_cooperative(void (*kernel)(Args...), int num_blocks, int num_threads,
                               size_t smem_bytes, void* stream, Args... args) {
  void* pointers[] = {&args...};
  return cudaLaunchCooperativeKernel(reinterpret_cast<void*>(kernel), dim3(num_blocks),
                                     dim3(num_threads), pointers, smem_bytes,
                                     static_cast<cudaStream_t>(stream));
}

#else  // ---------------------------------------------------------------- emulation

inline unsigned char* dynamic_smem() {
  return static_cast<unsigned char*>(emulation::view->shared_memory);
}

inline void add_release(unsigned* word, unsigned value) {
  __atomic_fetch_add(word, value, __ATOMIC_RELEASE);
  emulation::progress();
}
inline unsigned add_acquire_release(unsigned* word, unsigned value, EMULATION_HERE) {
  const unsigned old = __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
  emulation::progress();
  emulation::preempt(where);
  return old;
}
inline unsigned load_acquire(const unsigned* word, EMULATION_HERE) {
  const unsigned value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  emulation::preempt(where);
  return value;
}
inline unsigned load_relaxed(const unsigned* word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}
inline void store_release(unsigned* word, unsigned value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
  emulation::progress();
}
inline unsigned load_from_host(const unsigned* word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}
inline void pause(EMULATION_HERE) { emulation::pause(where); }
inline uint64_t clock_ns() { return emulation::now_ns(); }
inline uint64_t clock_cycles() { return emulation::now_ns(); }

template <bool = false>
inline void copy_async(void* smem, const void* global) {
  const bool aligned =
      (reinterpret_cast<uintptr_t>(smem) | reinterpret_cast<uintptr_t>(global)) % 16 == 0;
  if (aligned && !emulation::lazy_copies) {
    std::memcpy(smem, global, 16);
  } else {
    emulation::async_copy(smem, global, 16);
  }
}
inline void prefetch_l2(const void*) {}
inline void copy_async_commit() {
  if (emulation::lazy_copies) emulation::async_commit();
}
template <int kGroupsLeft>
inline void copy_async_wait() {
  if (emulation::lazy_copies) emulation::async_wait(kGroupsLeft);
}

inline int opaque(int value) { return value; }

inline float warp_sum(float value, EMULATION_HERE) {
  return emulation::warp_reduce(value, emulation::Collective::kSum, where);
}
inline float warp_max(float value, EMULATION_HERE) {
  return emulation::warp_reduce(value, emulation::Collective::kMax, where);
}
inline unsigned warp_max(unsigned value, EMULATION_HERE) {
  return emulation::warp_reduce(value, emulation::Collective::kMaxUnsigned, where);
}
inline float quad_sum(float value, EMULATION_HERE) {
  return emulation::warp_reduce(value, emulation::Collective::kQuadSum, where);
}
inline const uint32_t* registers_of(const uint4& four) {
  return reinterpret_cast<const uint32_t*>(&four);
}
constexpr bool kZerosAreFree = true;
inline void mma_tile(float (&d)[4], const uint4& a_first, const uint4& a_second, const uint4& b,
                     EMULATION_HERE) {
  const emulation::MmaOperands operands{
      {registers_of(a_first), registers_of(a_second)}, registers_of(b), d};
  std::memcpy(emulation::current->deposit, &operands, sizeof operands);
  emulation::warp_collective(emulation::Collective::kMma, where);
}
inline void mma(float (&d)[4], const uint4& a, unsigned b_first, unsigned b_second,
                EMULATION_HERE) {
  mma_tile(d, a, {}, {b_first, b_second, 0, 0}, where);
}
inline unsigned pack_bf16(float low, float high) {
  return unsigned{__float2bfloat16_rn(high).bits} << 16 | __float2bfloat16_rn(low).bits;
}
inline unsigned multiply_bf16x2(unsigned a, unsigned b) {
  const auto product = [&](int shift) {
    const float x = __uint_as_float(a >> shift << 16), y = __uint_as_float(b >> shift << 16);
    return unsigned{__float2bfloat16_rn(x * y).bits} << shift;
  };
  return product(0) | product(16);
}

template <class... Args>
cudaError_t launch_cooperative(void (*kernel)(Args...), int num_blocks, int num_threads,
                               size_t smem_bytes, void*, Args... args) {
  if (num_blocks > emulation::environment("EMULATION_SMS", 2)) {
    return cudaErrorCooperativeLaunchTooLarge;
  }
  return emulation::launch(dim3(num_blocks), dim3(num_threads), smem_bytes,
                           [=] { kernel(args...); });
}

#endif

}  // namespace qwen_tts
