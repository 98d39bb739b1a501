// Reading weights: bandwidth by way of loading and by size, and the bandwidth of a copy.
#pragma once
#include <cstdio>
#include <vector>

#include "machine.cuh"
#if defined(__CUDACC__)
#include <cuda/barrier>
#endif

namespace qwen_tts {

constexpr int kPieceBytes = 16384;  // of the copy rings
constexpr int kAsyncDepth = 4;      // pieces in flight in the cp.async ring

enum class Reading { kPlain, kAsync, kBulk };

__device__ inline unsigned mix(const uint4& v) { return v.x ^ v.y ^ v.z ^ v.w; }

// The bytes that each block reads: whole pieces.
__host__ __device__ inline size_t share_of(size_t num_bytes, int blocks) {
  return num_bytes / blocks / kPieceBytes * kPieceBytes;
}

// Reads num_bytes, cut into one run for each block, `passes` times; *out keeps the loads alive.
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
    // A thread reads what it copied itself, so no synchronisation is needed.
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
      __syncthreads();  // the block has read the slot of piece + depth - 1
      start(piece + depth - 1);
    }
#endif
  }
  if (sum == 0x12345678u) *out = sum;
}

inline void measure_copy(const Machine& m) {
  const size_t half = m.num_bytes / 2;
  const double ms = best_ms([&] { copy_within(m.data, m.data + half, half); });
  std::printf("{\"kind\": \"copy\", \"gb_per_s\": %.1f}\n", 2 * half / ms / 1e6);
}

inline void measure_reading(const Machine& m) {
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

}  // namespace qwen_tts
