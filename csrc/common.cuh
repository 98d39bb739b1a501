// Small helpers of every stage: indices, conversions, order-preserving keys.
//
// A thread of a block of 512 has 128 registers. Loops marked "unroll 1" or "unroll 4" are not worth
// the registers that ptxas would otherwise spend on them; without the marks the frame spills.
#pragma once
#include "dims.cuh"

namespace qwen_tts {

__device__ __forceinline__ int thread_idx() { return static_cast<int>(threadIdx.x); }
__device__ __forceinline__ int lane_idx() { return thread_idx() % kWarpSize; }
__device__ __forceinline__ int warp_idx() { return thread_idx() / kWarpSize; }

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(bf16 value) { return __bfloat162float(value); }

template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float value) {
  return __float2bfloat16_rn(value);
}

__device__ __forceinline__ float lower_bf16(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float upper_bf16(unsigned pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// Splits two activations into two registers of bf16 pairs: hi (x) and the remainder lo (y).
__device__ __forceinline__ uint2 split_bf16(float low, float high) {
  const unsigned hi = pack_bf16(low, high);
  return make_uint2(hi, pack_bf16(low - lower_bf16(hi), high - upper_bf16(hi)));
}

// Widens the four int8 weights of one register (packing.py) to bf16 pairs, in units of 2^-6. Seven
// bits of magnitude and a sign form a subnormal bf16 that is 2^-133 times the integer, and its
// product with 2^127 is exact. Four weights take five instructions.
__device__ __forceinline__ uint2 widen_int8(unsigned four) {
  const auto widen = [](unsigned pair) { return multiply_bf16x2(pair & 0x807f807fu, 0x7f007f00u); };
  return make_uint2(widen(four), widen(four << 8 | four >> 24));
}

// Maps floats to unsigned integers of the same order; NaN sorts above +infinity or below -infinity.
__device__ __forceinline__ unsigned order_key(float value) {
  const unsigned bits = __float_as_uint(value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_order_key(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// The maximum over the four lanes 4g .. 4g+3.
__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

// Loads activations that other blocks wrote earlier in this launch. The loads read from L2, where
// the grid barrier made the values visible, and never take the read-only path.
__device__ __forceinline__ float load_activation(const float* address) { return __ldcg(address); }
__device__ __forceinline__ float4 load_activation4(const float* address) {
  return __ldcg(reinterpret_cast<const float4*>(address));
}

template <int kBytes>
struct VectorOf;
template <>
struct VectorOf<2> {
  using Type = unsigned short;
};
template <>
struct VectorOf<4> {
  using Type = unsigned;
};
template <>
struct VectorOf<8> {
  using Type = uint2;
};
template <>
struct VectorOf<16> {
  using Type = uint4;
};

// Loads kCount adjacent elements from L2 and converts them to f32; kCount is a power of two.
template <int kCount, class T>
__device__ __forceinline__ void load_elements(float (&out)[kCount], const T* address) {
  constexpr int kVectorBytes = kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16;
  constexpr int kPerVector = kVectorBytes / sizeof(T);
  using Vector = typename VectorOf<kVectorBytes>::Type;
#pragma unroll
  for (int first = 0; first < kCount; first += kPerVector) {
    const Vector bits = __ldcg(reinterpret_cast<const Vector*>(address + first));
    const T* values = reinterpret_cast<const T*>(&bits);
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) out[first + i] = to_float(values[i]);
  }
}
// Stores kCount adjacent f32 elements, rounded to T.
template <int kCount, class T>
__device__ __forceinline__ void store_elements(T* address, const float (&values)[kCount]) {
  constexpr int kVectorBytes = kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16;
  constexpr int kPerVector = kVectorBytes / sizeof(T);
  using Vector = typename VectorOf<kVectorBytes>::Type;
#pragma unroll
  for (int first = 0; first < kCount; first += kPerVector) {
    Vector bits;
    T* rounded = reinterpret_cast<T*>(&bits);
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) rounded[i] = from_float<T>(values[first + i]);
    *reinterpret_cast<Vector*>(address + first) = bits;
  }
}

// Sums kCount values over the warp: lane l gets the sum of value l / (32 / kCount). kCount is a
// power of two. Four values take 6 shuffles; four calls of warp_sum() would take 20.
template <int kCount>
__device__ __forceinline__ float warp_sums(float (&values)[kCount]) {
  static_assert(kCount >= 1 && kCount <= kWarpSize && (kCount & (kCount - 1)) == 0);
  int distance = kWarpSize / 2;
#pragma unroll
  for (int half = kCount / 2; half; half /= 2, distance /= 2) {
    const bool keeps_upper = lane_idx() & distance;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float kept = keeps_upper ? values[i + half] : values[i];
      const float sent = keeps_upper ? values[i] : values[i + half];
      values[i] = kept + __shfl_xor_sync(0xffffffffu, sent, distance);
    }
  }
  float sum = values[0];
#pragma unroll
  for (; distance; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  return sum;
}

// One row of a weight pass: a position of one sequence.
struct PassRow {
  int slot;               // index of the sequence's KV cache
  int position;           // in that cache; rope_positions, which RoPE uses, may differ
  int first_row;          // first row of the pass that belongs to the same sequence; positions of a
                          // sequence are consecutive rows
  int rope_positions[3];  // time, height, width

  __device__ __forceinline__ auto rope_position() const {  // (axis) -> position
    return [this](int axis) { return rope_positions[axis]; };
  }
};

// A weight pass through one stack.
struct Pass {
  PassRow rows[kMaxRows];
  int num_rows;
  int sequence_rows;  // rows of every sequence; the sequences follow one another
};

__device__ __forceinline__ int block_idx() { return static_cast<int>(blockIdx.x); }
__device__ __forceinline__ int num_blocks() { return static_cast<int>(gridDim.x); }
// Whether this block does the work of `row` that only one block has to do.
__device__ __forceinline__ bool owns_row(int row) { return row % num_blocks() == block_idx(); }

struct BlockRange {
  int begin, end;
};

// The blocks of a team multiply the same rows, each by its share of every matrix. In a frame the
// whole grid is one team, whose rows are the streams; a prompt can have more rows than one team.
struct Team {
  int block;  // the index of this block in the team
  int num_blocks;
  unsigned inverse;  // 2^32 / num_blocks, rounded up

  // Returns team `number` of `num_teams`. Adjacent blocks read the same weights for other teams.
  __device__ static Team of(int number, int num_teams) {
    const int size = (static_cast<int>(gridDim.x) - number + num_teams - 1) / num_teams;
    return {block_idx() / num_teams, size, 0xffffffffu / size + 1};
  }
  __device__ static Team whole_grid() { return of(0, 1); }

  // Returns the items [begin, end) of `num_items` that this block owns; an item is eight rows. A
  // division would take twenty instructions. Instead, the upper half of n * inverse is n /
  // num_blocks, as long as n * num_blocks < 2^32.
  __device__ BlockRange share(int num_items) const {
    const auto first_of = [&](int i) {  // the last end is known; one block's inverse overflows
      return i == num_blocks ? num_items : static_cast<int>(__umulhi(num_items * i, inverse));
    };
    return {first_of(block), first_of(block + 1)};
  }
};

}  // namespace qwen_tts
