// AVX-512: 16 lanes, 32 registers.
#pragma once
#include <immintrin.h>

namespace qwen_tts {

constexpr int kLanes = 16;
constexpr int vectors_of(int) { return 2; }
constexpr int kTallRows = 12;

using Floats = __m512;
using Words = __m512i;

inline Floats zero_floats() { return _mm512_setzero_ps(); }
inline Words zero_words() { return _mm512_setzero_si512(); }
inline Floats broadcast(float value) { return _mm512_set1_ps(value); }
inline Words broadcast(int32_t word) { return _mm512_set1_epi32(word); }
inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline void store(float* to, Floats values) { _mm512_storeu_ps(to, values); }
inline Words load_words(const uint8_t* from) { return _mm512_load_si512(from); }
inline Floats load_floats(const uint8_t* from) {
  return _mm512_load_ps(reinterpret_cast<const float*>(from));
}
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats to_float(Words words) { return _mm512_cvtepi32_ps(words); }

inline Floats lower_bf16(Words pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline Floats upper_bf16(Words pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, broadcast(int32_t(0xffff0000))));
}
inline Floats load_half(const uint8_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline Floats load_bf16(const uint8_t* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

template <int kFirst, int kBits>
inline Words bits_of_halves(Words words) {
  return _mm512_srai_epi16(_mm512_slli_epi16(words, 16 - kFirst - kBits), 16 - kBits);
}
template <int kFirst>
inline Words joined_bits(Words high, Words low) {
  constexpr int kHighOrLow = 0xca;  // the mask chooses
  const Words mask = _mm512_set1_epi16(int16_t(0xf000));
  const Words shifted = _mm512_srli_epi16(low, kFirst - 10);
  return _mm512_srai_epi16(_mm512_ternarylogic_epi32(mask, high, shifted, kHighOrLow), 10);
}

#ifdef __AVX512VNNI__
constexpr const char* kInstructionSet = "avx512_vnni";
inline Words dot_pairs(Words sum, Words a, Words b) { return _mm512_dpwssd_epi32(sum, a, b); }
#else
constexpr const char* kInstructionSet = "avx512";
inline Words dot_pairs(Words sum, Words a, Words b) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
}
#endif

}  // namespace qwen_tts
