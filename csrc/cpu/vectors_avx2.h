// AVX2 with FMA: 8 lanes, 16 registers.
#pragma once
#include <immintrin.h>

namespace qwen_tts {

constexpr const char* kInstructionSet = "avx2";
constexpr int kLanes = 8;
constexpr int vectors_of(int rows) { return rows == 1 ? 4 : 2; }
constexpr int kTallRows = 6;

using Floats = __m256;
using Words = __m256i;

inline Floats zero_floats() { return _mm256_setzero_ps(); }
inline Words zero_words() { return _mm256_setzero_si256(); }
inline Floats broadcast(float value) { return _mm256_set1_ps(value); }
inline Words broadcast(int32_t word) { return _mm256_set1_epi32(word); }
inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
inline void store(float* to, Floats values) { _mm256_storeu_ps(to, values); }
inline Words load_words(const uint8_t* from) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}
inline Floats load_floats(const uint8_t* from) {
  return _mm256_load_ps(reinterpret_cast<const float*>(from));
}
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats to_float(Words words) { return _mm256_cvtepi32_ps(words); }

inline Floats lower_bf16(Words pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline Floats upper_bf16(Words pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, broadcast(int32_t(0xffff0000))));
}
inline Floats load_bf16(const uint8_t* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

inline Floats load_half(const uint8_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

template <int kFirst, int kBits>
inline Words bits_of_halves(Words words) {
  return _mm256_srai_epi16(_mm256_slli_epi16(words, 16 - kFirst - kBits), 16 - kBits);
}
template <int kFirst>
inline Words joined_bits(Words high, Words low) {
  const Words mask = _mm256_set1_epi16(int16_t(0xf000));
  const Words shifted = _mm256_andnot_si256(mask, _mm256_srli_epi16(low, kFirst - 10));
  return _mm256_srai_epi16(_mm256_or_si256(_mm256_and_si256(high, mask), shifted), 10);
}
inline Words dot_pairs(Words sum, Words a, Words b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

}  // namespace qwen_tts
