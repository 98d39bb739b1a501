// The skeleton of a frame: its weight slices, activation round trips and barriers, no arithmetic.
#pragma once
#include <cstdio>
#include <vector>

#include "barriers.cuh"

namespace qwen_tts {

struct Phase {
  size_t weight_bytes;  // of the whole grid
  int num_activations;  // floats that every block reads back before it starts
};

struct SkeletonParams {
  const unsigned char* weights;
  size_t num_bytes;  // phases wrap around in these
  const Phase* phases;
  int num_phases;
  float* activations;
  BarrierWords* words;
  int stage_bytes;  // of one of the two staging buffers
  bool look_ahead, use_barriers, use_activations;
};

__global__ void __launch_bounds__(kThreads, 1) frame_skeleton(SkeletonParams p, unsigned* out) {
  unsigned char* staged = dynamic_smem();
  size_t position = 0;
  float sum = 0;
  const auto slice = [&](int phase, size_t from, const unsigned char*& source) {
    const size_t bytes = p.phases[phase].weight_bytes / num_blocks() / 16 * 16;
    source = p.weights + (from + bytes * block_idx()) % (p.num_bytes - bytes) / 16 * 16;
    return static_cast<int>(bytes);
  };
  const auto stage = [&](int phase, size_t from) {
    const unsigned char* source;
    const int slice_bytes = slice(phase, from, source);
    const int bytes = slice_bytes < p.stage_bytes ? slice_bytes : p.stage_bytes;
    for (int at = thread_idx() * 16; at < bytes; at += kThreads * 16) {
      copy_async(staged + phase % 2 * p.stage_bytes + at, source + at);
    }
    copy_async_commit();
  };
  if (p.look_ahead) stage(0, 0);
  for (int phase = 0; phase < p.num_phases; ++phase) {
    const unsigned char* source;
    const int bytes = slice(phase, position, source);
    const int ready = p.look_ahead ? (bytes < p.stage_bytes ? bytes : p.stage_bytes) : 0;
    const size_t next = position + p.phases[phase].weight_bytes;
    copy_async_wait<0>();  // each thread reads below what it copied itself
    if (p.look_ahead && phase + 1 < p.num_phases) stage(phase + 1, next);
    if (p.use_activations) {
      for (int i = thread_idx(); i < p.phases[phase].num_activations; i += kThreads) {
        sum += __ldcg(p.activations + i);
      }
      sum = warp_sum(sum) * 1e-30f;
    }
    for (int at = thread_idx() * 16; at < bytes; at += kThreads * 16) {
      const uint4 v = at < ready
                          ? *reinterpret_cast<const uint4*>(staged + phase % 2 * p.stage_bytes + at)
                          : __ldg(reinterpret_cast<const uint4*>(source + at));
      const unsigned pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // unpacking, as a dot product would
        sum += __uint_as_float(pairs[i] << 16) + __uint_as_float(pairs[i] & 0xffff0000u);
      }
    }
    if (p.use_activations && thread_idx() == 0) p.activations[block_idx()] = sum * 1e-30f;
    if (p.use_barriers) {
      sync_grid<Barrier::kCounter>(p.words, phase + 1);
    } else {
      __syncthreads();
    }
    position = next;
  }
  if (sum == 12345.0f) *out = 1;
}

// The phases of one frame of a released model: 15 predictor passes of 5 layers, then the talker.
inline std::vector<Phase> frame_phases(size_t hidden, size_t intermediate, int bytes_per_weight) {
  constexpr size_t kQkvSize = 4096, kQSize = 2048, kPredictorHidden = 1024, kPredictorMlp = 3072;
  std::vector<Phase> phases;
  const auto matrix = [&](size_t rows, size_t cols) {
    phases.push_back({rows * cols * bytes_per_weight, static_cast<int>(cols)});
  };
  const auto layer = [&](size_t width, size_t mlp) {
    matrix(kQkvSize, width);
    phases.push_back({0, kQSize});  // attention
    matrix(width, kQSize);
    matrix(2 * mlp, width);
    matrix(width, mlp);
  };
  for (int pass = 0; pass < 15; ++pass) {
    for (int i = 0; i < 5; ++i) layer(kPredictorHidden, kPredictorMlp);
    matrix(2048, kPredictorHidden);
  }
  for (int i = 0; i < 28; ++i) layer(hidden, intermediate);
  matrix(3072, hidden);
  return phases;
}

inline void measure_frame(const Machine& m, const char* model, size_t hidden,
                          int bytes_per_weight) {
  std::vector<Phase> phases = frame_phases(hidden, 3 * hidden, bytes_per_weight);
  if (kEmulated) {
    phases.resize(12);
    for (Phase& phase : phases) phase.weight_bytes /= 256;
  }
  size_t total = 0;
  for (const Phase& phase : phases) total += phase.weight_bytes;
  void* table = device_memory(phases.size() * sizeof(Phase));
  copy_in(table, phases.data(), phases.size() * sizeof(Phase));
  auto* words = static_cast<BarrierWords*>(device_memory(sizeof(BarrierWords)));
  const int stage_bytes = (m.smem_bytes - 8192) / 2 / 1024 * 1024;
  const auto spent = [&](bool look_ahead, bool use_barriers, bool use_activations) {
    const SkeletonParams params = {m.data,
                                   m.num_bytes,
                                   static_cast<const Phase*>(table),
                                   static_cast<int>(phases.size()),
                                   reinterpret_cast<float*>(m.out) + 64,
                                   words,
                                   stage_bytes,
                                   look_ahead,
                                   use_barriers,
                                   use_activations};
    return best_ms([&] {
      clear(words, sizeof(BarrierWords));
      run(frame_skeleton, m.blocks, 2 * stage_bytes, params, m.out);
    });
  };
  const double all = spent(true, true, true);
  std::printf(
      "{\"kind\": \"frame_skeleton\", \"model\": \"%s\", \"bytes_per_weight\": %d, \"phases\": "
      "%zu, "
      "\"mb\": %.0f, \"ms\": %.3f, \"gb_per_s\": %.0f, \"no_look_ahead_ms\": %.3f, "
      "\"no_barriers_ms\": %.3f, \"no_activations_ms\": %.3f, \"weights_only_ms\": %.3f}\n",
      model, bytes_per_weight, phases.size(), total / 1e6, all, total / all / 1e6,
      spent(false, true, true), spent(true, false, true), spent(true, true, false),
      spent(true, false, false));
}

}  // namespace qwen_tts
