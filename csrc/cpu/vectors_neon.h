// NEON: 4 lanes, 32 registers. Every 64-bit ARM has it.
#pragma once
#include <arm_neon.h>

namespace qwen_tts {

constexpr const char* kInstructionSet = "neon";
constexpr int kLanes = 4;
constexpr int vectors_of(int rows) { return rows == 1 ? 8 : 4; }
constexpr int kTallRows = 12;

using Floats = float32x4_t;
using Words = int32x4_t;

inline Floats zero_floats() { return vdupq_n_f32(0); }
inline Words zero_words() { return vdupq_n_s32(0); }
inline Floats broadcast(float value) { return vdupq_n_f32(value); }
inline Words broadcast(int32_t word) { return vdupq_n_s32(word); }
inline Floats load(const float* from) { return vld1q_f32(from); }
inline void store(float* to, Floats values) { vst1q_f32(to, values); }
inline Words load_words(const uint8_t* from) { return vreinterpretq_s32_u8(vld1q_u8(from)); }
inline Floats load_floats(const uint8_t* from) { return vreinterpretq_f32_u8(vld1q_u8(from)); }
inline Floats fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
inline Floats to_float(Words words) { return vcvtq_f32_s32(words); }

inline Floats lower_bf16(Words pairs) { return vreinterpretq_f32_s32(vshlq_n_s32(pairs, 16)); }
inline Floats upper_bf16(Words pairs) {
  return vreinterpretq_f32_s32(vandq_s32(pairs, broadcast(int32_t(0xffff0000))));
}
inline Floats load_half(const uint8_t* from) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
}
inline Floats load_bf16(const uint8_t* from) {
  const uint16x4_t bits = vreinterpret_u16_u8(vld1_u8(from));
  return vreinterpretq_f32_u32(vshll_n_u16(bits, 16));
}

template <int kFirst, int kBits>
inline Words bits_of_halves(Words words) {
  const int16x8_t raised = vshlq_n_s16(vreinterpretq_s16_s32(words), 16 - kFirst - kBits);
  return vreinterpretq_s32_s16(vshrq_n_s16(raised, 16 - kBits));
}
template <int kFirst>
inline Words joined_bits(Words high, Words low) {
  const uint16x8_t shifted = vshrq_n_u16(vreinterpretq_u16_s32(low), kFirst - 10);
  const uint16x8_t joined = vbslq_u16(vdupq_n_u16(0xf000), vreinterpretq_u16_s32(high), shifted);
  return vreinterpretq_s32_s16(vshrq_n_s16(vreinterpretq_s16_u16(joined), 10));
}
inline Words dot_pairs(Words sum, Words a, Words b) {
  const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
  const Words lower = vmull_s16(vget_low_s16(x), vget_low_s16(y));
  return vaddq_s32(sum, vpaddq_s32(lower, vmull_high_s16(x, y)));
}

}  // namespace qwen_tts
