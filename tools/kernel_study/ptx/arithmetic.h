// What PTX instructions compute from registers alone. Registers are bits; the type of an
// instruction gives them a meaning. Written from the PTX ISA, as machine.h is.
#pragma once
#include <cmath>

#include "emulation/cuda_emulation.h"

namespace ptx {

using u8 = uint8_t;
using s8 = int8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using b16 = uint16_t;
using b32 = uint32_t;
using b64 = uint64_t;
using f32 = float;
using pred = bool;
struct bf16 {
  u16 bits;
};
struct bf16x2 {
  u32 bits;
};

// ---- registers

template <class T, class Register>
T as(Register bits) {
  static_assert(std::is_integral_v<Register>, "a register, not a value");
  T value;
  if constexpr (std::is_integral_v<T>) {
    value = static_cast<T>(bits);
  } else {
    static_assert(sizeof(Register) >= sizeof(T));
    std::memcpy(&value, &bits, sizeof value);
  }
  return value;
}
// The content of a register that was set to a value. A register wider than the value is filled with
// the value's sign, as ld and cvt do.
template <class Register, class T>
Register bits(T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<Register>(value);
  } else {
    static_assert(sizeof(Register) == sizeof(T));
    Register result;
    std::memcpy(&result, &value, sizeof value);
    return result;
  }
}
template <class T, int n>
struct Vector {
  T at[n];
};
inline u32 tid_x() { return threadIdx.x; }
inline u32 ntid_x() { return blockDim.x; }
inline u32 ctaid_x() { return blockIdx.x; }
inline u32 nctaid_x() { return gridDim.x; }
inline u64 globaltimer() { return emulation::now_ns(); }

// ---- integers; shifts by more than the width give zero or the sign
#define PTX_BINARY(name, expression)      \
  template <class T, class A, class B>    \
  auto name(A a_, B b_) {                 \
    const T a = as<T>(a_), b = as<T>(b_); \
    return static_cast<T>(expression);    \
  }
PTX_BINARY(add, a + b)
PTX_BINARY(sub, a - b)
PTX_BINARY(and_, a& b)
PTX_BINARY(or_, a | b)
PTX_BINARY(xor_, a ^ b)
PTX_BINARY(div_rn, a / b)
#undef PTX_BINARY

template <class T>
using Wide = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, s32, u32>,
                                std::conditional_t<std::is_signed_v<T>, s64, u64>>;
// A GPU divides by zero without a trap, and compilers rely on it.
template <class T, class A, class B>
T div(A a, B b) {
  static_assert(sizeof(T) == 4);  // in 64 bits the quotient of -2^31 and -1 exists
  return as<T>(b) ? static_cast<T>(static_cast<Wide<T>>(as<T>(a)) / as<T>(b)) : ~T{0};
}
template <class T, class A, class B>
T rem(A a, B b) {
  static_assert(sizeof(T) == 4);
  return as<T>(b) ? static_cast<T>(static_cast<Wide<T>>(as<T>(a)) % as<T>(b)) : as<T>(a);
}
template <class T, class A, class B>
T mul_lo(A a, B b) {
  return static_cast<T>(static_cast<u64>(as<T>(a)) * static_cast<u64>(as<T>(b)));
}
template <class T, class A, class B>
Wide<T> mul_wide(A a, B b) {
  return static_cast<Wide<T>>(as<T>(a)) * static_cast<Wide<T>>(as<T>(b));
}
template <class T, class A, class B>
T mul_hi(A a, B b) {
  return static_cast<T>(mul_wide<T>(a, b) >> 8 * sizeof(T));
}
template <class T, class A, class B, class C>
T mad_lo(A a, B b, C c) {
  return static_cast<T>(static_cast<u64>(mul_lo<T>(a, b)) + static_cast<u64>(as<T>(c)));
}
template <class T, class A, class B>
T shl(A a, B count) {
  return as<u32>(count) >= 8 * sizeof(T) ? T{0} : static_cast<T>(as<T>(a) << as<u32>(count));
}
template <class T, class A, class B>
T shr(A a, B count) {
  const u32 most = 8 * sizeof(T) - 1, n = as<u32>(count);
  if (n > most) return std::is_signed_v<T> ? static_cast<T>(as<T>(a) >> most) : T{0};
  return static_cast<T>(as<T>(a) >> n);
}
template <class T, class A, class B, class C>
T shf_l_wrap(A low, B high, C count) {
  const u64 both = u64{as<u32>(high)} << 32 | as<u32>(low);
  return static_cast<T>(both << (as<u32>(count) & 31) >> 32);
}
template <class T, class A, class B, class C, class D>
T bfi(A field, B base, C position, D length) {
  const u64 mask = (as<u32>(length) >= 64 ? ~u64{0} : (u64{1} << as<u32>(length)) - 1)
                   << as<u32>(position);
  return static_cast<T>((as<T>(base) & ~mask) | (u64{as<T>(field)} << as<u32>(position) & mask));
}
template <class T, class A, class B, class C>
T prmt(A low, B high, C digits) {  // the mode with a digit for each byte of the result
  return __byte_perm(as<u32>(low), as<u32>(high), as<u32>(digits));
}
template <class T, class A>
T not_(A a) {
  if constexpr (std::is_same_v<T, pred>) return !a;
  return static_cast<T>(~as<T>(a));
}
template <class T, class A>
T mov(A a) {
  return as<T>(a);
}
template <class T, class A, class B>
T mov_pack(A low, B high) {
  return static_cast<T>(static_cast<T>(high) << 4 * sizeof(T) | static_cast<T>(low));
}
// The half of a register that is `part` halves from its lower end.
template <class T, class A>
T mov_half(A a, int part) {
  return static_cast<T>(as<T>(a) >> part * 4 * sizeof(T));
}
template <class T, class A, class B>
T selp(A a, B b, pred condition) {
  return condition ? as<T>(a) : as<T>(b);
}

// ---- comparisons: those ending in u, and nan, are true of NaN
#define PTX_SETP(name, expression)        \
  template <class T, class A, class B>    \
  pred setp_##name(A a_, B b_) {          \
    const T a = as<T>(a_), b = as<T>(b_); \
    return expression;                    \
  }
PTX_SETP(eq, a == b)
PTX_SETP(lt, a < b)
PTX_SETP(le, a <= b)
PTX_SETP(gt, a > b)
PTX_SETP(ge, a >= b)
PTX_SETP(ne, a<b || a> b)
PTX_SETP(equ, !(a < b || a > b))
PTX_SETP(ltu, !(a >= b))
PTX_SETP(leu, !(a > b))
PTX_SETP(gtu, !(a <= b))
PTX_SETP(geu, !(a < b))
PTX_SETP(neu, !(a == b))
PTX_SETP(nan, a != a || b != b)
PTX_SETP(num, a == a && b == b)
#undef PTX_SETP

// ---- conversions
template <class To, class From, class A>
To cvt(A a) {
  if constexpr (std::is_same_v<From, bf16>) {
    return as<f32>(u32{as<bf16>(a).bits} << 16);
  } else {
    static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
    return static_cast<To>(as<From>(a));
  }
}
template <class To, class From, class A>
To cvt_rn(A a) {
  if constexpr (std::is_same_v<To, bf16>) {  // to nearest, ties to even; NaN is 0x7fff
    const u32 bits = as<u32>(a), half = 0x8000, rest = bits & 0xffff;
    if (as<f32>(a) != as<f32>(a)) return {0x7fff};
    const bool up = rest > half || (rest == half && (bits >> 16 & 1));
    return {static_cast<u16>((bits >> 16) + up)};
  } else {
    return static_cast<To>(as<From>(a));
  }
}
template <class To, class From, class A, class B>
To cvt_rn(A upper, B lower) {
  static_assert(std::is_same_v<To, bf16x2>);
  return {u32{cvt_rn<bf16, f32>(upper).bits} << 16 | cvt_rn<bf16, f32>(lower).bits};
}
template <class To, class From, class A>
To cvt_sat(A a) {  // NaN becomes 0
  const f32 value = as<f32>(a);
  return value > 0 ? (value < 1 ? value : 1.0f) : 0.0f;
}
// Combines both halves of a pair. The result is rounded twice, to float and to bf16: that is exact
// for the products that widen int8, whose bits fit in a float.
template <class Combine>
bf16x2 each_bf16(u32 a, u32 b, u32 c, Combine combine) {
  u32 result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const auto half = [&](u32 pair) { return as<f32>(pair >> shift << 16); };
    result |= u32{cvt_rn<bf16, f32>(bits<u32>(combine(half(a), half(b), half(c)))).bits} << shift;
  }
  return {result};
}
template <class T, class A, class B>
T mul(A a, B b) {
  if constexpr (std::is_same_v<T, bf16x2>) {
    return each_bf16(as<u32>(a), as<u32>(b), 0, [](f32 x, f32 y, f32) { return x * y; });
  } else {
    return as<f32>(a) * as<f32>(b);
  }
}

// ---- floats. max and min return the number when one operand is NaN.
template <class T, class A, class B>
T max(A a_, B b_) {
  const T a = as<T>(a_), b = as<T>(b_);
  return a != a ? b : b != b ? a : a < b ? b : a;
}
template <class T, class A, class B>
T min(A a_, B b_) {
  const T a = as<T>(a_), b = as<T>(b_);
  return a != a ? b : b != b ? a : b < a ? b : a;
}
template <class T, class A>
T neg(A a) {
  return -as<T>(a);
}
template <class T, class A>
T abs(A a) {
  return std::abs(as<T>(a));
}
template <class T, class A, class B, class C>
T fma_rn(A a, B b, C c) {
  if constexpr (std::is_same_v<T, bf16x2>) {
    return each_bf16(as<u32>(a), as<u32>(b), as<u32>(c),
                     [](f32 x, f32 y, f32 z) { return std::fma(x, y, z); });
  } else {
    return std::fma(as<f32>(a), as<f32>(b), as<f32>(c));
  }
}
// Rounds towards minus infinity. The product is exact in double; the error of the sum is computed
// too (Knuth), so that the last rounding knows on which side of the float the true value lies.
template <class T, class A, class B, class C>
T fma_rm(A a, B b, C c) {
  static_assert(std::is_same_v<T, f32>);
  const double product = double{as<T>(a)} * as<T>(b), addend = as<T>(c), sum = product + addend;
  const double part = sum - product, lost = (product - (sum - part)) + (addend - part);
  const float nearest = static_cast<float>(sum);
  const bool above = nearest > sum || (nearest == sum && lost < 0);
  return above ? std::nextafter(nearest, -INFINITY) : nearest;
}
template <class T, class A>
T ex2_approx(A a) {  // within 2 ulp on a GPU
  return std::exp2(as<T>(a));
}
template <class T, class A>
T ex2_approx_ftz(A a) {
  const float result = ex2_approx<T>(a);
  return result < 1.17549435e-38f ? 0.0f : result;
}
template <class T, class A>
T rsqrt_approx(A a) {
  return 1.0f / std::sqrt(as<T>(a));
}
template <class T, class A>
T rcp_rn(A a) {
  return 1.0f / as<T>(a);
}

}  // namespace ptx
