// Draws a code from one row of logits, exactly as qwen_megakernel/decoders/sampling.py specifies.
//
// Random numbers have addresses instead of an order: Philox4x32-10 with key = seed and counter =
// (token / 4, frame, codebook, part), lane = token % 4. Gumbel-max needs no order over the tokens
// either, so any number of threads draws the same token.
#pragma once
#include "common.cuh"
#include "tts_kernel.h"

namespace qwen_tts {

// History and banned ids, which apply to code 0 alone. For all other codes `seen` is null.
struct TokenRules {
  const uint32_t* seen;  // [vocab / 32] bit set: the token was drawn earlier in this part
  float repetition_penalty;
  int suppressed_from;  // these and higher ids are banned, except `eos`
  int eos;
  bool eos_banned;
};

struct DrawAddress {
  uint32_t seed_low, seed_high;
  uint32_t part, frame, codebook;
};

// A token and the order_key of its score; the lower token wins among equal keys.
struct Candidate {
  unsigned key, token;
};

// The digit at which a count from the highest digit down reaches `k`.
struct Digit {
  unsigned digit, num_above, num_equal;
};

struct SamplingSmem {
  alignas(16) unsigned keys[kMaxVocab];  // order_key of each score
  alignas(16) float noise[kMaxVocab];
  float weights[kMaxVocab];                 // exp(score - best), for top-p
  alignas(16) unsigned histograms[4][256];  // one for each byte of the keys, the upper byte first
  Digit digit;
  Candidate bests[2][kNumWarps];  // each warp's best score, and its best score with noise
  float warp_sums[kNumWarps];
};

// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
__device__ inline uint4 philox(uint4 counter, uint32_t key_low, uint32_t key_high) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t product_x = uint64_t{0xD2511F53u} * counter.x;
    const uint64_t product_z = uint64_t{0xCD9E8D57u} * counter.z;
    counter = {static_cast<uint32_t>(product_z >> 32) ^ counter.y ^ key_low,
               static_cast<uint32_t>(product_z),
               static_cast<uint32_t>(product_x >> 32) ^ counter.w ^ key_high,
               static_cast<uint32_t>(product_x)};
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
  return counter;
}

// Returns -log(-log(u)), u in (0, 1). u has 23 bits so that its largest value is below 1 in f32.
__device__ __forceinline__ float gumbel_noise(uint32_t bits) {
  const float u = (static_cast<float>(bits >> 9) + 0.5f) * (1.0f / 8388608.0f);
  return -logf(-logf(u));
}

// Prepares a draw (its noise and empty histograms) while its logits are computed. All threads of a
// block call this; a __syncthreads() must follow before draw_token().
__device__ inline void prepare_draw(int vocab, const SamplingParams& params, const DrawAddress& at,
                                    SamplingSmem& smem) {
  if (!params.do_sample) return;
#pragma unroll 1
  for (int i = thread_idx(); i < 256; i += kNumThreads) {
#pragma unroll
    for (auto& histogram : smem.histograms) histogram[i] = 0;
  }
#pragma unroll 1
  for (int i = 4 * opaque(thread_idx()); i < vocab; i += 4 * kNumThreads) {
    const uint4 bits = philox({static_cast<uint32_t>(i / 4), at.frame, at.codebook, at.part},
                              at.seed_low, at.seed_high);
    *reinterpret_cast<float4*>(&smem.noise[i]) = {gumbel_noise(bits.x), gumbel_noise(bits.y),
                                                  gumbel_noise(bits.z), gumbel_noise(bits.w)};
  }
}

// Returns the warp's best candidate in all its lanes; block_best(), the block's in all its threads.
__device__ __forceinline__ Candidate warp_best(const Candidate& mine) {
  const unsigned key = warp_max(mine.key);
  return {key, ~warp_max(mine.key == key ? ~mine.token : 0u)};
}
//   bests  [kNumWarps], shared; no thread has used them since the last __syncthreads()
__device__ __forceinline__ Candidate block_best(const Candidate& mine, Candidate* bests) {
  const Candidate of_warp = warp_best(mine);
  if (lane_idx() == 0) bests[warp_idx()] = of_warp;
  __syncthreads();
  return warp_best(bests[min(lane_idx(), kNumWarps - 1)]);
}

// Finds the digit at which the count reaches `k`. All lanes of a warp call this.
//   histogram  [256], shared
__device__ __forceinline__ Digit find_digit(const unsigned* histogram, unsigned k) {
  unsigned digit = 255 - 8 * opaque(lane_idx());  // the highest of this lane's eight
  unsigned counts[8];
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(&histogram[digit - 7 + i]);
    counts[i] = four.x, counts[i + 1] = four.y, counts[i + 2] = four.z, counts[i + 3] = four.w;
  }
  unsigned here = 0;
#pragma unroll
  for (const unsigned count : counts) here += count;
  unsigned up_to_here = here;
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance <<= 1) {
    const unsigned other = __shfl_up_sync(0xffffffffu, up_to_here, distance);
    if (lane_idx() >= distance) up_to_here += other;
  }
  unsigned above = up_to_here - here, next = above;
  const bool found = above < k && up_to_here >= k;  // true in one lane
#pragma unroll
  for (int i = 7; i > 0; --i) {
    next += counts[i];
    if (next < k) above = next, --digit;
  }
  const unsigned both = warp_max(found ? above << 8 | digit : 0);
  return {both & 255, both >> 8, histogram[both & 255]};
}

// Calls body(token, key) for this thread's tokens, four adjacent ones at a time.
template <class Body>
__device__ __forceinline__ void for_my_tokens(int vocab, const SamplingSmem& smem,
                                              const Body& body) {
#pragma unroll 1
  for (int i = 4 * opaque(thread_idx()); i < vocab; i += 4 * kNumThreads) {
    const uint4 keys = *reinterpret_cast<const uint4*>(&smem.keys[i]);
    body(i, keys.x), body(i + 1, keys.y), body(i + 2, keys.z), body(i + 3, keys.w);
  }
}

// Returns the k-th largest of keys[0 .. vocab), or only the upper bits that separate the k largest
// from the others: radix select, 8 bits at a time. The caller has filled the first histogram.
__device__ __forceinline__ unsigned kth_largest_key(unsigned k, int vocab, SamplingSmem& smem) {
  unsigned prefix = 0;
#pragma unroll 1
  for (int pass = 0; pass < 4; ++pass) {
    const int shift = 24 - 8 * pass;
    unsigned* histogram = smem.histograms[pass];
    if (pass) {
      for_my_tokens(vocab, smem, [&](int, unsigned key) {
        const unsigned differing = (key ^ prefix) >> shift;
        if (differing < 256) atomicAdd(&histogram[differing], 1u);
      });
      __syncthreads();
    }
    if (warp_idx() == 0) {
      const Digit found = find_digit(histogram, k);
      if (lane_idx() == 0) smem.digit = found;
    }
    __syncthreads();
    prefix |= smem.digit.digit << shift;
    k -= smem.digit.num_above;
    if (smem.digit.num_equal == k) break;  // all tokens with this prefix are among the k
  }
  return prefix;
}

// Draws a token and returns it to every thread of the block; returns -1 if the logits hold NaN or
// no finite number. The caller has called prepare_draw() and then __syncthreads(). `logits` [vocab]
// are f32, global, 16-byte aligned and written before the last grid barrier; vocab is a multiple of
// 8 and at most kMaxVocab.
__device__ inline int draw_token(const float* logits, int vocab, const SamplingParams& params,
                                 const TokenRules& rules, SamplingSmem& smem) {
  const bool limited = params.do_sample && params.top_k > 0 && params.top_k < vocab;
  Candidate best{0, 0};
#pragma unroll 1
  for (int i = 4 * opaque(thread_idx()); i < vocab; i += 4 * kNumThreads) {
    const float4 four = load_activation4(logits + i);
    const unsigned seen = rules.seen ? __ldcg(rules.seen + i / 32) >> (i % 32) : 0;
    float scores[4] = {four.x, four.y, four.z, four.w};
    unsigned keys[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float score = scores[j];
      if (rules.seen) {
        if (seen >> j & 1) {
          score = score < 0 ? score * rules.repetition_penalty : score / rules.repetition_penalty;
        }
        const bool banned = i + j == rules.eos ? rules.eos_banned : i + j >= rules.suppressed_from;
        if (banned && score == score) score = -INFINITY;
      }
      if (params.do_sample) score = score / params.temperature;
      if (score != score) score = INFINITY;  // NaN becomes the largest, so that the draw sees it
      keys[j] = order_key(score + 0.0f);     // -0 becomes 0
      if (limited) atomicAdd(&smem.histograms[0][keys[j] >> 24], 1u);
      if (keys[j] > best.key) best = {keys[j], static_cast<unsigned>(i + j)};
    }
    *reinterpret_cast<uint4*>(&smem.keys[i]) = {keys[0], keys[1], keys[2], keys[3]};
  }
  best = block_best(best, smem.bests[0]);  // after this, keys are complete too
  const unsigned nothing = order_key(-INFINITY);
  if (best.key <= nothing || best.key >= order_key(INFINITY)) return -1;
  if (!params.do_sample) return static_cast<int>(best.token);

  const unsigned kth = limited ? kth_largest_key(params.top_k, vocab, smem) : 0;
  const unsigned least = kth > nothing ? kth : nothing + 1;
  Candidate drawn{0, 0};
  const auto add_noise = [&](int i, unsigned key) {
    const unsigned noisy = order_key(from_order_key(key) + smem.noise[i]);
    if (noisy > drawn.key) drawn = {noisy, static_cast<unsigned>(i)};
  };
  if (params.top_p >= 1.0f) {
    for_my_tokens(vocab, smem, [&](int i, unsigned key) {
      if (key >= least) add_noise(i, key);
    });
    return static_cast<int>(block_best(drawn, smem.bests[1]).token);
  }

  const float best_score = from_order_key(best.key);
  float total = 0;
#pragma unroll 1
  for (int i = thread_idx(); i < vocab; i += kNumThreads) {
    const unsigned key = smem.keys[i];
    smem.weights[i] = key >= least ? expf(from_order_key(key) - best_score) : 0.f;
    total += smem.weights[i];
  }
  total = warp_sum(total);
  if (lane_idx() == 0) smem.warp_sums[warp_idx()] = total;
  __syncthreads();
  total = 0;
#pragma unroll 4
  for (int warp = 0; warp < kNumWarps; ++warp) total += smem.warp_sums[warp];
  // For each kept token, one warp adds up the weights of the strictly more probable ones.
#pragma unroll 1
  for (int i = warp_idx(); i < vocab; i += kNumWarps) {
    const unsigned key = smem.keys[i];
    if (key < least) continue;
    float above = 0;
#pragma unroll 1
    for (int j = lane_idx(); j < vocab; j += kWarpSize) {
      if (smem.keys[j] > key) above += smem.weights[j];
    }
    if (warp_sum(above) < params.top_p * total) add_noise(i, key);
  }
  return static_cast<int>(block_best(drawn, smem.bests[1]).token);
}

}  // namespace qwen_tts
