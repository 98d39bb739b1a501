// One code from one row of logits, exactly as qwen_megakernel/sampling.py specifies it.
//
// Random numbers are addressed, not consumed: Philox4x32-10 with key = seed and counter =
// (token / 4, frame, codebook, part), lane = token % 4. Gumbel-max needs no order over the tokens,
// so any number of threads draws the same token.
#pragma once
#include "common.cuh"
#include "tts_kernel.h"

namespace qwen_tts {

// What is special about code 0: history, banned ids. Without it (`seen` null) nothing is.
struct TokenRules {
  const uint32_t* seen;  // [vocab / 32] bit set: drawn before in this part
  float repetition_penalty;
  int suppressed_from;  // these and higher ids are banned, `eos` excepted
  int eos;
  bool eos_banned;
};

struct DrawAddress {
  uint32_t seed_low, seed_high;
  uint32_t part, frame, codebook;
};

struct SamplingSmem {
  alignas(16) float scores[kMaxVocab];
  float weights[kMaxVocab];  // exp(score - best), for top-p
  uint32_t seen[kTalkerVocab / 32];
  unsigned histogram[256];
  unsigned digit, num_above, num_equal;
  unsigned long long warp_best[kNumWarps];
  float warp_sums[kNumWarps];
};

// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
// Returns word `lane` of the block.
__device__ inline uint32_t philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0,
                                  uint32_t k1, int lane) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return lane == 0 ? c0 : lane == 1 ? c1 : lane == 2 ? c2 : c3;
}

// -log(-log(u)) for u in (0, 1). 23 bits: the largest u must stay below 1 in f32.
__device__ inline float gumbel_noise(int token, const DrawAddress& at) {
  const uint32_t bits =
      philox(token / 4, at.frame, at.codebook, at.part, at.seed_low, at.seed_high, token % 4);
  const float u = (static_cast<float>(bits >> 9) + 0.5f) * (1.0f / 8388608.0f);
  return -logf(-logf(u));
}

// Orders candidates by score, then by lower token.
__device__ __forceinline__ unsigned long long candidate(float score, int token) {
  return static_cast<unsigned long long>(order_key(score)) << 32 | (0xffffffffu - token);
}
__device__ __forceinline__ int candidate_token(unsigned long long best) {
  return static_cast<int>(0xffffffffu - static_cast<unsigned>(best));
}

// The largest candidate of a warp, in all its lanes; then of the block, in all its threads.
__device__ inline unsigned long long warp_best(unsigned long long mine) {
#pragma unroll
  for (int distance = 16; distance; distance >>= 1) {
    const unsigned long long other = __shfl_xor_sync(0xffffffffu, mine, distance);
    mine = other > mine ? other : mine;
  }
  return mine;
}
__device__ inline unsigned long long block_best(unsigned long long mine, SamplingSmem& smem) {
  mine = warp_best(mine);
  __syncthreads();  // an earlier result has been read
  if (lane_idx() == 0) smem.warp_best[warp_idx()] = mine;
  __syncthreads();
  return warp_best(lane_idx() < kNumWarps ? smem.warp_best[lane_idx()] : 0);
}

// The least order_key of the k largest of scores[0 .. vocab), or as many of its upper bits as tell
// them from the others: radix select, 8 bits at a time.
__device__ inline unsigned kth_largest_key(int k, int vocab, SamplingSmem& smem) {
  unsigned prefix = 0;
#pragma unroll 1
  for (int shift = 24; shift >= 0; shift -= 8) {
#pragma unroll 1
    for (int i = thread_idx(); i < 256; i += kNumThreads) smem.histogram[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (int i = thread_idx(); i < vocab; i += kNumThreads) {
      const unsigned key = order_key(smem.scores[i]);
      const bool same_prefix = shift == 24 || key >> (shift + 8) == prefix >> (shift + 8);
      if (same_prefix) atomicAdd(&smem.histogram[key >> shift & 255], 1u);
    }
    __syncthreads();
    if (warp_idx() == 0) {  // lane l looks at digits 255 - 8l down to 248 - 8l
      const int top = 255 - 8 * opaque(lane_idx());
      unsigned here = 0;
      for (int i = 0; i < 8; ++i) here += smem.histogram[top - i];
      unsigned up_to_here = here;
#pragma unroll
      for (int distance = 1; distance < kWarpSize; distance <<= 1) {
        const unsigned other = __shfl_up_sync(0xffffffffu, up_to_here, distance);
        if (lane_idx() >= distance) up_to_here += other;
      }
      unsigned above = up_to_here - here;
      if (above < static_cast<unsigned>(k) && up_to_here >= static_cast<unsigned>(k)) {
        int digit = top;
        while (above + smem.histogram[digit] < static_cast<unsigned>(k)) {
          above += smem.histogram[digit--];
        }
        smem.digit = digit;
        smem.num_above = above;
        smem.num_equal = smem.histogram[digit];
      }
    }
    __syncthreads();
    prefix |= smem.digit << shift;
    k -= smem.num_above;
    if (smem.num_equal == static_cast<unsigned>(k)) break;  // all of them are among the k
  }
  return prefix;
}

// Draws a token, in all threads of the block; -1 when the logits hold NaN or nothing finite.
//   logits  [vocab] f32, global, 16-byte aligned, written before the last grid barrier; vocab is a
//           multiple of 8 and at most kMaxVocab
__device__ inline int draw_token(const float* logits, int vocab, const SamplingParams& params,
                                 const TokenRules& rules, const DrawAddress& at,
                                 SamplingSmem& smem) {
  __syncthreads();  // the scores of the draw before have been read
#pragma unroll 1
  for (int i = 4 * thread_idx(); i < vocab; i += 4 * kNumThreads) {
    *reinterpret_cast<float4*>(&smem.scores[i]) = load_activation4(logits + i);
  }
#pragma unroll 1
  for (int i = thread_idx(); rules.seen && i < vocab / 32; i += kNumThreads) {
    smem.seen[i] = __ldcg(rules.seen + i);
  }
  __syncthreads();
  unsigned long long best = 0;
#pragma unroll 1
  for (int i = thread_idx(); i < vocab; i += kNumThreads) {
    float score = smem.scores[i];
    if (rules.seen) {
      if (smem.seen[i / 32] >> (i % 32) & 1) {
        score = score < 0 ? score * rules.repetition_penalty : score / rules.repetition_penalty;
      }
      const bool banned = i == rules.eos ? rules.eos_banned : i >= rules.suppressed_from;
      if (banned && score == score) score = -INFINITY;
    }
    if (params.do_sample) score = score / params.temperature;
    if (score != score) score = INFINITY;  // NaN: the largest, so that it is noticed
    smem.scores[i] = score;
    const unsigned long long mine = candidate(score, i);
    best = mine > best ? mine : best;
  }
  best = block_best(best, smem);  // and scores are complete
  const int best_token = candidate_token(best);
  const float best_score = smem.scores[best_token];
  if (!(best_score > -INFINITY && best_score < INFINITY)) return -1;
  if (!params.do_sample) return best_token;

  const bool limited = params.top_k > 0 && params.top_k < vocab;
  const unsigned least_key = limited ? kth_largest_key(params.top_k, vocab, smem) : 0;
  const auto kept = [&](float score) { return score > -INFINITY && order_key(score) >= least_key; };
  unsigned long long drawn = 0;
  if (params.top_p >= 1.0f) {
#pragma unroll 1
    for (int i = thread_idx(); i < vocab; i += kNumThreads) {
      const float score = smem.scores[i];
      if (!kept(score)) continue;
      const unsigned long long mine = candidate(score + gumbel_noise(i, at), i);
      drawn = mine > drawn ? mine : drawn;
    }
    return candidate_token(block_best(drawn, smem));
  }

  float total = 0;
#pragma unroll 1
  for (int i = thread_idx(); i < vocab; i += kNumThreads) {
    const float score = smem.scores[i];
    smem.weights[i] = kept(score) ? expf(score - best_score) : 0.f;
    total += smem.weights[i];
  }
  total = warp_sum(total);
  if (lane_idx() == 0) smem.warp_sums[warp_idx()] = total;
  __syncthreads();
  total = 0;
#pragma unroll 4
  for (int warp = 0; warp < kNumWarps; ++warp) total += smem.warp_sums[warp];
  // One warp per kept token weighs the strictly more probable ones.
#pragma unroll 1
  for (int i = warp_idx(); i < vocab; i += kNumWarps) {
    const float score = smem.scores[i];
    if (!kept(score)) continue;
    float above = 0;
#pragma unroll 1
    for (int j = lane_idx(); j < vocab; j += kWarpSize) {
      if (smem.scores[j] > score) above += smem.weights[j];
    }
    if (warp_sum(above) < params.top_p * total) {
      const unsigned long long mine = candidate(score + gumbel_noise(i, at), i);
      drawn = mine > drawn ? mine : drawn;
    }
  }
  return candidate_token(block_best(drawn, smem));
}

}  // namespace qwen_tts
