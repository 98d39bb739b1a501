// The subset of CUDA C++ that csrc/ uses, for an ordinary C++ compiler, without NVIDIA's headers.
// Kernel sources include it through port.cuh; the rules of the subset are in csrc/README.md.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "runtime.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)

#define threadIdx (::emulation::current->thread_idx)
#define blockIdx (::emulation::view->block_idx)
#define blockDim (::emulation::view->block_dim)
#define gridDim (::emulation::view->grid_dim)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// ---- threads of a block and of a warp
inline void __syncthreads(EMULATION_HERE) { ::emulation::block_barrier(where); }
inline void __syncwarp(EMULATION_HERE) {
  ::emulation::warp_collective(::emulation::Collective::kSyncWarp, where);
}
template <class T>
inline T emulated_shuffle(T value, int source_lane, ::emulation::Where where) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::memcpy(::emulation::current->deposit, &value, sizeof value);
  std::memcpy(::emulation::current->deposit + 8, &source_lane, 4);
  ::emulation::warp_collective(::emulation::Collective::kShuffle, where);
  std::memcpy(&value, ::emulation::current->result, sizeof value);
  return value;
}
template <class T>
inline T __shfl_sync(unsigned, T value, int source_lane, EMULATION_HERE) {
  return emulated_shuffle(value, source_lane, where);
}
template <class T>
inline T __shfl_xor_sync(unsigned, T value, int distance, EMULATION_HERE) {
  return emulated_shuffle(value, ::emulation::current->lane ^ distance, where);
}
template <class T>
inline T __shfl_up_sync(unsigned, T value, int distance, EMULATION_HERE) {
  const int lane = ::emulation::current->lane;
  return emulated_shuffle(value, lane < distance ? lane : lane - distance, where);
}

// Selects four bytes of b:a by number; bit 3 of a digit selects eight copies of the byte's sign.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned digits) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned digit = digits >> 4 * i;
    unsigned byte = static_cast<unsigned>(bytes >> (digit & 7) * 8) & 0xff;
    if (digit & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}

// ---- memory
template <class T>
inline T __ldg(const T* address) {
  return *address;
}
template <class T>
inline T __ldcg(const T* address) {
  return *address;
}
inline unsigned atomicAdd(unsigned* address, unsigned value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline unsigned atomicCAS(unsigned* address, unsigned expected, unsigned value) {
  __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  ::emulation::progress();
  return expected;
}

// ---- arithmetic
using std::max;
using std::min;
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

struct __nv_bfloat16 {
  uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}
inline __nv_bfloat16 __float2bfloat16_rn(float value) {  // rounds to nearest even; NaN stays NaN
  unsigned bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<uint16_t>(bits >> 16)};
}

// ---- host API
using cudaError_t = int;
using cudaStream_t = struct EmulatedStream*;
enum : int {
  cudaSuccess = 0,
  cudaErrorCooperativeLaunchTooLarge = 720,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrCooperativeLaunch = 95,
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8
};
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t error) {
  return error ? ::emulation::error_message() : "no error";
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
// EMULATION_SMS sets how many blocks can be resident at once.
inline cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount
               ? ::emulation::environment("EMULATION_SMS", 2)
           : attribute == cudaDevAttrCooperativeLaunch ? 1
                                                       : 1 << 20;
  return cudaSuccess;
}
template <class Kernel>
inline cudaError_t cudaFuncSetAttribute(Kernel, int, int) {
  ++::emulation::num_questions;
  return cudaSuccess;
}
template <class Kernel>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* num_blocks, Kernel, int,
                                                                 size_t) {
  ++::emulation::num_questions;
  *num_blocks = 1;
  return cudaSuccess;
}
