// Any other CPU: the compiler's own vectors, which it maps to what the CPU has.
#pragma once

namespace qwen_tts {

constexpr const char* kInstructionSet = "plain";
constexpr int kLanes = 4;
constexpr int vectors_of(int rows) { return rows == 1 ? 8 : 2; }
constexpr int kTallRows = 4;

typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Words __attribute__((vector_size(16)));

inline Floats zero_floats() { return Floats{}; }
inline Words zero_words() { return Words{}; }
inline Floats broadcast(float value) { return Floats{value, value, value, value}; }
inline Words broadcast(int32_t word) { return Words{word, word, word, word}; }

template <class Vector>
inline Vector load_any(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

inline Floats load(const float* from) { return load_any<Floats>(from); }
inline void store(float* to, Floats values) { std::memcpy(to, &values, sizeof values); }
inline Words load_words(const uint8_t* from) { return load_any<Words>(from); }
inline Floats load_floats(const uint8_t* from) { return load_any<Floats>(from); }
inline Floats fma(Floats a, Floats b, Floats c) { return a * b + c; }
inline Floats to_float(Words words) { return __builtin_convertvector(words, Floats); }

inline Floats lower_bf16(Words pairs) { return load_any<Floats>(&(pairs <<= 16)); }
inline Floats upper_bf16(Words pairs) { return load_any<Floats>(&(pairs &= int32_t(0xffff0000))); }
// The bits of a finite float16, moved to their places in a float, are its value divided by 2^112.
inline Floats load_half(const uint8_t* from) {
  uint16_t bits[4];
  std::memcpy(bits, from, sizeof bits);
  Words words = {bits[0], bits[1], bits[2], bits[3]};
  words = (words & 0x8000) << 16 | (words & 0x7fff) << 13;
  return load_any<Floats>(&words) * broadcast(0x1p112f);
}
inline Floats load_bf16(const uint8_t* from) {
  uint16_t bits[4];
  std::memcpy(bits, from, sizeof bits);
  Words words = {bits[0], bits[1], bits[2], bits[3]};
  return lower_bf16(words);
}

typedef int16_t Halves __attribute__((vector_size(16)));

template <int kFirst, int kBits>
inline Words bits_of_halves(Words words) {
  return Words(Halves(words) << (16 - kFirst - kBits) >> (16 - kBits));
}
template <int kFirst>
inline Words joined_bits(Words high, Words low) {
  const Halves shifted = Halves(low) >> (kFirst - 10) & 0x0fff;
  return Words(((Halves(high) & int16_t(0xf000)) | shifted) >> 10);
}
inline Words dot_pairs(Words sum, Words a, Words b) {
  return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
}

}  // namespace qwen_tts
