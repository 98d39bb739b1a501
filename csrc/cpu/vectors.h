// Vectors of this build's instruction set. A packed block has 32 rows and each row has its own
// lane, so no product needs a sum across lanes, and one layout of weights serves every width.
//
// Each header defines: kInstructionSet, kLanes, Floats and Words (kLanes of 32 bits),
// vectors_of(rows) (the number of a block's vectors to sum at once for that many inputs), kTallRows
// (inputs whose sums of two vectors fit in registers), and the functions that make up products. Of
// each 16-bit half of a word, bits_of_halves<kFirst, kBits> returns the signed number in kBits bits
// from kFirst on, and joined_bits<kFirst>(high, low) the one whose upper four bits are those of
// `high` from 12 on, and whose lower two those of `low` from kFirst on.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512BW__) && !defined(QWEN_CPU_PLAIN)
#include "vectors_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(QWEN_CPU_PLAIN)
#include "vectors_avx2.h"
#elif defined(__aarch64__) && !defined(QWEN_CPU_PLAIN)
#include "vectors_neon.h"
#else
#include "vectors_plain.h"
#endif

namespace qwen_tts {

inline Floats multiply_add(Floats a, Floats b, Floats sum) { return fma(a, b, sum); }
inline Words multiply_add(Words a, Words b, Words sum) { return dot_pairs(sum, a, b); }

// Weights are read once, in order. The hardware's own prefetch stops at each page.
constexpr int kPrefetchBytes = 2048;
inline void prefetch(const uint8_t* address) {
  __builtin_prefetch(address + kPrefetchBytes);
  __builtin_prefetch(address + kPrefetchBytes + 64);
}

}  // namespace qwen_tts
