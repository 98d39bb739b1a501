// Elementwise functions of the vocoder.
#pragma once
#include <cmath>

#include "attention.h"
#include "vectors.h"

namespace qwen_tts {

// sin(r)^2 = u * Q(u) with u = r^2 and |r| <= pi / 2; the error is below 6e-9 (a minimax fit).
constexpr float kSineSquared[] = {0.999999849f,    -0.333332138f,  0.044441287f,
                                  -0.00317075938f, 0.00013871417f, -3.54044613e-06f};

// x + sin(x * frequency)^2 * amplitude, for |x * frequency| < 10^7.
inline Floats snake(Floats x, Floats frequency, Floats amplitude) {
  const Floats z = x * frequency, shift = broadcast(12582912.0f);  // 1.5 * 2^23: rounds to integers
  const Floats k = fma(z, broadcast(0.318309886f), shift) - shift;
  // Subtracts k * pi in two parts; the first part of pi has 24 bits.
  const Floats r = fma(k, broadcast(8.74227766e-8f), fma(k, broadcast(-3.14159274f), z));
  const Floats u = r * r;
  Floats q = broadcast(kSineSquared[5]);
#pragma GCC unroll 5
  for (int i = 4; i >= 0; --i) q = fma(q, u, broadcast(kSineSquared[i]));
  return fma(q * u, amplitude, x);
}

// The error function, accurate to 1e-7: x + x * P(x^2) below 1, 1 - exp(-x Q(x)) above (fits). The
// C library's erf gives other bits on other processors and takes ten times as long.
inline float error_function(float x) {
  constexpr float kLow[] = {0.128379129f,   -0.376123558f,  0.112804125f,
                            -0.0267177276f, 0.00492480986f, -0.000566022953f};
  constexpr float kHigh[] = {1.12869716f,    0.634958304f,     0.106549092f,   -0.0240254989f,
                             0.00376465543f, -0.000352330994f, 1.41337219e-05f};
  const float size = std::fabs(x), square = x * x;
  const float bounded = size > 4 ? 4 : size;  // NaN stays NaN
  float low = kLow[5], high = kHigh[6];
  for (int i = 4; i >= 0; --i) low = low * square + kLow[i];
  for (int i = 5; i >= 0; --i) high = high * bounded + kHigh[i];
  const float erf = size < 1 ? size + size * low : 1 - exponential(-bounded * high);
  return std::copysign(erf, x);
}

inline float gelu(float x) { return 0.5f * x * (1 + error_function(x * 0.707106781f)); }

// norm(x) * weight + bias of n channels, in place.
inline void layer_norm(float* x, const float* weight, const float* bias, int n, float eps) {
  const float mean = sum_of(n, [&](int i) { return x[i]; }) / n;
  const float variance = sum_of(n, [&](int i) { return (x[i] - mean) * (x[i] - mean); }) / n;
  const float scale = 1 / std::sqrt(variance + eps);
  for (int i = 0; i < n; ++i) x[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

}  // namespace qwen_tts
