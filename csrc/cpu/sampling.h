// Draws one code from logits; decoders/sampling.py is the specification.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

#include "cpu_decoder.h"

namespace qwen_tts {

constexpr int kNotFinite = -1;  // returned instead of a code

// Philox4x32-10 of Salmon et al. (SC 2011): turns a counter into four random words.
inline void philox(uint64_t key, uint32_t counter[4]) {
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t(counter[0]) * 0xD2511F53u;
    const uint64_t product1 = uint64_t(counter[2]) * 0xCD9E8D57u;
    const uint32_t c0 = uint32_t(product1 >> 32) ^ counter[1] ^ k0;
    const uint32_t c2 = uint32_t(product0 >> 32) ^ counter[3] ^ k1;
    counter[0] = c0, counter[1] = uint32_t(product1);
    counter[2] = c2, counter[3] = uint32_t(product0);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
}

// A number in (0, 1) for one token, exact in float32.
inline float uniform(int token, const StreamOptions& options, int frame, int codebook) {
  uint32_t counter[4] = {uint32_t(token) / 4, uint32_t(frame), uint32_t(codebook), options.part};
  philox(options.seed, counter);
  return (float(counter[token % 4] >> 9) + 0.5f) * 0x1p-23f;
}

// Returns the least score that top-k and top-p keep; they keep all its ties. Reorders `order` [n].
inline float least_kept(float* order, int n, const Sampling& sampling) {
  float least = -INFINITY;
  int num_kept = n;
  if (sampling.top_k && sampling.top_k < n) {
    std::nth_element(order, order + sampling.top_k - 1, order + n, std::greater<float>());
    least = order[sampling.top_k - 1];
    num_kept = int(std::partition(order, order + n, [=](float v) { return v >= least; }) - order);
  }
  if (sampling.top_p >= 1) return least;
  std::sort(order, order + num_kept, std::greater<float>());
  double total = 0, mass_before = 0;
  for (int i = 0; i < num_kept; ++i) total += std::exp(double(order[i]) - order[0]);
  for (int i = 0; i < num_kept && (i == 0 || mass_before < sampling.top_p);) {
    least = order[i];  // tokens of equal probability stay or go together
    for (; i < num_kept && order[i] == least; ++i)
      mass_before += std::exp(double(order[i]) - order[0]) / total;
  }
  return least;
}

// Draws a token, the lowest among ties; kNotFinite if the largest logit is not finite.
//   logits [n], already penalised and masked; scores is scratch [2 n]
inline int draw(const float* logits, int n, const Sampling& sampling, const StreamOptions& options,
                int frame, int codebook, float* scores) {
  int best = 0;
  bool has_nan = false;
  for (int i = 0; i < n; ++i) {
    has_nan |= logits[i] != logits[i];
    if (logits[i] > logits[best]) best = i;
  }
  if (has_nan || !std::isfinite(logits[best])) return kNotFinite;
  if (!sampling.do_sample) return best;
  float* order = scores + n;
  for (int i = 0; i < n; ++i) order[i] = scores[i] = logits[i] / sampling.temperature;
  const float least = least_kept(order, n, sampling);
  float most = -INFINITY;
  for (int i = 0; i < n; ++i) {
    if (scores[i] < least || scores[i] == -INFINITY) continue;
    const float gumbel = -std::log(-std::log(uniform(i, options, frame, codebook)));
    if (scores[i] + gumbel > most) most = scores[i] + gumbel, best = i;
  }
  return best;
}

}  // namespace qwen_tts
