// The PTX instructions of the kernel, for one thread, on top of the emulation's warps and
// blocks. translate.py turns each instruction into a call of the function with its name:
// "cvt.rn.bf16.f32 %rs1, %f2" becomes rs1 = cvt_rn<bf16, f32>(f2). An instruction without a
// function does not compile. arithmetic.h has those that compute; this file has memory, and
// where threads meet.
//
// Written from the PTX ISA, not from csrc/, so that the two can be compared. Loads and stores check
// what a GPU traps on (alignment, the end of shared memory) and what it silently gets wrong (the
// read-only path over bytes that the launch itself writes).
#pragma once
#include "arithmetic.h"

namespace ptx {

// What one thread has executed.
struct Tally {
  u32 instructions = 0, integers = 0;
  void add(u32 num, u32 num_integer) {
    instructions += num;
    integers += num_integer;
  }
};
Tally& tally_of_thread();
void note_meeting();  // a thread calls this when it meets its block
void note_arrival();  // one thread calls this when its block arrives at a grid barrier

// ---- addresses: shared ones count from the start of the block's memory
template <class T, class A>
T cvta_to_global(A generic) {
  return as<T>(generic);
}
template <class T, class A>
T cvta_local(A address) {
  return as<T>(address);
}
template <class T, class A>
T cvta_to_shared(A generic) {
  return static_cast<T>(as<T>(generic) - reinterpret_cast<u64>(emulation::view->shared_memory));
}

enum class Access { kWritten, kReadOnly };
// Records the sectors of a launch; ends it when a sector is both written and read as read-only.
void note(u64 address, size_t bytes, Access access);
inline void check_alignment(u64 address, size_t bytes) {
  if (address % bytes) {
    emulation::fail("access of %zu bytes at %#llx is misaligned", bytes,
                    static_cast<unsigned long long>(address));
  }
}
// `n` values of T as one access.
template <class T, int n = 1>
T* global_at(u64 address) {
  check_alignment(address, n * sizeof(T));
  return reinterpret_cast<T*>(address);
}
template <class T, int n = 1>
T* shared_at(u64 address) {
  const u64 offset = static_cast<u32>(address);
  check_alignment(offset, n * sizeof(T));
  if (offset + n * sizeof(T) > emulation::view->shared_bytes) {
    emulation::fail("access of %zu bytes at %llu of %zu bytes of shared memory", n * sizeof(T),
                    static_cast<unsigned long long>(offset), emulation::view->shared_bytes);
  }
  return reinterpret_cast<T*>(static_cast<char*>(emulation::view->shared_memory) + offset);
}

template <class T, int n>
Vector<T, n> read(const T* from) {
  Vector<T, n> values;
  for (int i = 0; i < n; ++i) values.at[i] = from[i];
  return values;
}
template <class T, int n>
void write(T* to, const Vector<T, n>& values) {
  for (int i = 0; i < n; ++i) to[i] = values.at[i];
}
// Addresses are the host's in all spaces but shared memory, generic ones included.
#define PTX_LOAD(name)                           \
  template <class T, int n>                      \
  Vector<T, n> name(u64 address) {               \
    return read<T, n>(global_at<T, n>(address)); \
  }
PTX_LOAD(ld)
PTX_LOAD(ld_param)
PTX_LOAD(ld_local)
PTX_LOAD(ld_global)
PTX_LOAD(ld_global_cg)
#undef PTX_LOAD
template <class T, int n>
void st_local(u64 address, const Vector<T, n>& values) {
  write(global_at<T, n>(address), values);
}
template <class T, int n>
Vector<T, n> ld_shared(u64 address) {
  return read<T, n>(shared_at<T, n>(address));
}
template <class T, int n>
void st_shared(u64 address, const Vector<T, n>& values) {
  write(shared_at<T, n>(address), values);
}
template <class T, int n>
Vector<T, n> ld_global_nc(u64 address) {
  note(address, n * sizeof(T), Access::kReadOnly);
  return read<T, n>(global_at<T, n>(address));
}
template <class T, int n>
void st_global(u64 address, const Vector<T, n>& values) {
  note(address, n * sizeof(T), Access::kWritten);
  write(global_at<T, n>(address), values);
}

// ---- words between blocks
template <class T, int n>
Vector<T, 1> ld_relaxed_gpu_global(u64 address) {
  return {__atomic_load_n(global_at<T>(address), __ATOMIC_RELAXED)};
}
template <class T, int n>
Vector<T, 1> ld_relaxed_sys_global(u64 address) {
  return ld_relaxed_gpu_global<T, n>(address);
}
template <class T, int n>
Vector<T, 1> ld_acquire_gpu_global(u64 address) {
  const T value = __atomic_load_n(global_at<T>(address), __ATOMIC_ACQUIRE);
  emulation::preempt({"ld.acquire", 0});
  return {value};
}
template <class T, int n>
void st_release_gpu_global(u64 address, const Vector<T, 1>& values) {
  __atomic_store_n(global_at<T>(address), values.at[0], __ATOMIC_RELEASE);
  emulation::progress();
}
template <class T, class A>
void red_release_gpu_global_add(u64 address, A value) {
  note_arrival();
  __atomic_fetch_add(global_at<T>(address), as<T>(value), __ATOMIC_RELEASE);
  emulation::progress();
}
template <class T, class A>
T atom_add_acq_rel_gpu_global(u64 address, A value) {
  const T old = __atomic_fetch_add(global_at<T>(address), as<T>(value), __ATOMIC_ACQ_REL);
  emulation::progress();
  emulation::preempt({"atom.add.acq_rel", 0});
  return old;
}
template <class T, class A>
T atom_global_add(u64 address, A value) {
  return __atomic_fetch_add(global_at<T>(address), as<T>(value), __ATOMIC_RELAXED);
}
template <class T, class A>
T atom_shared_add(u64 address, A value) {
  return __atomic_fetch_add(shared_at<T>(address), as<T>(value), __ATOMIC_RELAXED);
}
template <class T, class A, class B>
T atom_global_cas(u64 address, A expected_, B value) {
  T expected = as<T>(expected_);
  __atomic_compare_exchange_n(global_at<T>(address), &expected, as<T>(value), false,
                              __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  emulation::progress();
  return expected;
}
template <class T, class A, class B>
T atom_relaxed_global_cas(u64 address, A expected, B value) {
  return atom_global_cas<T>(address, expected, value);
}

// ---- copies
template <class A>
void cp_async_cg_shared_global_L2_256B(u64 shared, u64 global, A bytes) {
  if (bytes != 16) emulation::fail("cp.async.cg copies 16 bytes, not %d", static_cast<int>(bytes));
  emulation::async_copy(shared_at<uint4>(shared), global_at<uint4>(global), 16);
}
// No result depends on which policy it is; any other value is refused.
constexpr u64 kEvictFirst = 0xE71C7F1257;
template <class T, class A>
T createpolicy_fractional_L2_evict_first(A fraction) {
  if (as<f32>(fraction) != 1.0f) emulation::fail("a policy of a fraction is not known");
  return kEvictFirst;
}
template <class A, class B>
void cp_async_cg_shared_global_L2_cache_hint_L2_256B(u64 shared, u64 global, A bytes, B policy) {
  if (as<u64>(policy) != kEvictFirst) emulation::fail("%#llx is no cache policy", as<u64>(policy));
  cp_async_cg_shared_global_L2_256B(shared, global, bytes);
}
inline void cp_async_commit_group() { emulation::async_commit(); }
template <class A>
void cp_async_wait_group(A groups_left) {
  emulation::async_wait(static_cast<int>(groups_left));
}
inline void prefetch_global_L2(u64) {}

// ---- where threads meet. `line` is the line in the PTX: lanes must meet at the same one.
inline void bar_sync(int line, u32 barrier) {
  note_meeting();
  if (barrier) emulation::fail("bar.sync %u: the kernel has only barrier 0", barrier);
  emulation::block_barrier({"ptx", line});
}
template <class A>
void need_whole_warp(A mask, int line) {
  if (as<u32>(mask) != ~0u) emulation::fail("ptx:%d is for lanes %#x only", line, as<u32>(mask));
}
template <class A>
void bar_warp_sync(int line, A mask) {
  need_whole_warp(mask, line);
  emulation::warp_collective(emulation::Collective::kSyncWarp, {"ptx", line});
}
template <class A>
void nanosleep(A) {
  emulation::pause({"nanosleep", 0});
}
template <class T>
struct Shuffled {
  T value;
  pred found;
};
// The value of lane `source` if that is inside the segment; otherwise this lane's own.
template <class T>
Shuffled<T> shuffle(int line, T value, int source, pred found) {
  const int from = found ? source : emulation::current->lane;
  return {emulated_shuffle(value, from, {"ptx", line}), found};
}
template <class T, class A, class B, class C, class D>
Shuffled<T> shfl_sync_bfly(int line, A value, B distance, C clamp, D mask) {
  need_whole_warp(mask, line);
  const int lane = emulation::current->lane, segment = as<u32>(clamp) >> 8 & 31;
  const int last = (lane & segment) | (as<u32>(clamp) & 31 & ~segment);
  const int source = lane ^ static_cast<int>(as<u32>(distance) & 31);
  return shuffle(line, as<T>(value), source, source <= last);
}
template <class T, class A, class B, class C, class D>
Shuffled<T> shfl_sync_idx(int line, A value, B lane, C clamp, D mask) {
  need_whole_warp(mask, line);
  const int segment = as<u32>(clamp) >> 8 & 31, first = emulation::current->lane & segment;
  const int last = first | (as<u32>(clamp) & 31 & ~segment);
  const int source = first | (static_cast<int>(as<u32>(lane) & 31) & ~segment);
  return shuffle(line, as<T>(value), source, source <= last);
}
template <class T, class A, class B, class C, class D>
Shuffled<T> shfl_sync_up(int line, A value, B distance, C clamp, D mask) {
  need_whole_warp(mask, line);
  const int lane = emulation::current->lane, segment = as<u32>(clamp) >> 8 & 31;
  const int first = (lane & segment) | (as<u32>(clamp) & 31 & ~segment);
  const int source = lane - static_cast<int>(as<u32>(distance) & 31);
  return shuffle(line, as<T>(value), source, source >= first);
}
template <class T, class A, class B>
T redux_sync_max(int line, A value, B mask) {
  static_assert(std::is_same_v<T, u32>);
  need_whole_warp(mask, line);
  return emulation::warp_reduce(as<u32>(value), emulation::Collective::kMaxUnsigned, {"ptx", line});
}

// What a lane brings to mma.m16n8k16 and what it receives.
struct MmaLane {
  u32 a[4], b[2];
  f32 c[4], d[4];
};
void multiply(emulation::Fiber* fibers);  // of 32 lanes
template <class D, class A, class B, class C>
Vector<f32, 4> mma_sync_aligned_m16n8k16_row_col(int line, Vector<u32, 4> a, Vector<u32, 2> b,
                                                 Vector<f32, 4> c) {
  static_assert(std::is_same_v<D, f32> && std::is_same_v<A, bf16> && std::is_same_v<B, bf16> &&
                std::is_same_v<C, f32>);
  MmaLane lane{};
  std::memcpy(lane.a, &a, sizeof a);
  std::memcpy(lane.b, &b, sizeof b);
  std::memcpy(lane.c, &c, sizeof c);
  emulation::warp_call(multiply, &lane, {"ptx", line});
  Vector<f32, 4> d;
  std::memcpy(&d, lane.d, sizeof d);
  return d;
}

}  // namespace ptx
