// Norms, rotation and attention of one head.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "vectors.h"

namespace qwen_tts {

// The layout of keys is [position / 16][head_dim][16], so scores need no sum across lanes.
constexpr int kKeyBlock = 16;
constexpr int kPartialSums = 16;

// The sum of term(i) for i < n, in 16 running sums, which the compiler turns into vectors.
template <class Term>
inline float sum_of(int n, Term term) {
  float sums[kPartialSums] = {};
  const int whole = n / kPartialSums * kPartialSums;
  for (int i = 0; i < whole; i += kPartialSums)
    for (int j = 0; j < kPartialSums; ++j) sums[j] += term(i + j);
  for (int i = whole; i < n; ++i) sums[i - whole] += term(i);
  float sum = 0;
  for (float each : sums) sum += each;
  return sum;
}

inline void rms_norm(float* out, const float* x, const float* weight, int n, float eps) {
  const float mean = sum_of(n, [&](int i) { return x[i] * x[i]; }) / n;
  const float scale = 1 / std::sqrt(mean + eps);
  for (int i = 0; i < n; ++i) out[i] = weight[i] * (x[i] * scale);
}

// e^x, accurate to 2 units in the last place in -87 .. 88, clamped beyond (Cephes' polynomial).
// NaN stays NaN; it must not become an integer, which C++ does not define.
inline float exponential(float x) {
  x = std::min(std::max(x, -87.0f), 88.0f);
  const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to integers
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1;
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 127) << 23;  // n is in the low bits of `shifted`
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

inline float silu(float x) { return x / (1 + exponential(-x)); }

// Rotates the halves of a head in place; cos and sin [head_dim / 2] belong to its position.
inline void rotate(float* head, const float* cos, const float* sin, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = b * cos[i] + a * sin[i];
  }
}

// Attends with one query head to positions 0 .. last; out [head_dim].
//   keys [.., head_dim, 16], values [.., head_dim]; scores is scratch for last + 16 floats
inline void attend(float* out, const float* query, const float* keys, const float* values, int last,
                   int head_dim, float* scores) {
  constexpr int kVectors = kKeyBlock / kLanes;
  for (int first = 0; first <= last; first += kKeyBlock) {
    Floats sum[kVectors];
    for (Floats& each : sum) each = zero_floats();
    const float* key = keys + size_t(first) * head_dim;
    for (int d = 0; d < head_dim; ++d, key += kKeyBlock)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        sum[v] = fma(load(key + v * kLanes), broadcast(query[d]), sum[v]);
    for (int v = 0; v < kVectors; ++v) store(scores + first + v * kLanes, sum[v]);
  }
  const float scale = 1 / std::sqrt(float(head_dim));
  float most = -INFINITY;
  for (int p = 0; p <= last; ++p) most = std::max(most, scores[p] *= scale);
  // The exponentials and their sum have separate loops, which the compiler turns into vectors.
  for (int p = 0; p <= last; ++p) scores[p] = exponential(scores[p] - most);
  const float inverse = 1 / sum_of(last + 1, [&](int p) { return scores[p]; });
  constexpr int kWidth = 16 / kLanes;  // 16 values of a head at a time
  for (int d = 0; d < head_dim; d += 16) {
    Floats even[kWidth], odd[kWidth];
    for (int v = 0; v < kWidth; ++v) even[v] = odd[v] = zero_floats();
    const float* value = values + d;
    int p = 0;
    for (; p < last; p += 2, value += 2 * head_dim)
#pragma GCC unroll 4
      for (int v = 0; v < kWidth; ++v) {
        even[v] = fma(broadcast(scores[p]), load(value + v * kLanes), even[v]);
        odd[v] = fma(broadcast(scores[p + 1]), load(value + head_dim + v * kLanes), odd[v]);
      }
    for (int v = 0; v < kWidth; ++v) {
      if (p == last) even[v] = fma(broadcast(scores[p]), load(value + v * kLanes), even[v]);
      store(out + d + v * kLanes, (even[v] + odd[v]) * broadcast(inverse));
    }
  }
}

}  // namespace qwen_tts
