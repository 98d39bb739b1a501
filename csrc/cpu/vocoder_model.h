// A loaded vocoder: packed convolutions, small vectors, and the buffers of a pass.
#pragma once
#include <memory>
#include <vector>

#include "convolution.h"
#include "matrix.h"

namespace qwen_tts {

// The most frames of one stream in a pass, and of all its streams together. Other streams do not
// change the places at which a longer chunk is cut.
constexpr int kPieceFrames = 8;
constexpr int kPassFrames = 16;

struct TransformerLayer {
  Convolution *qkv, *o, *gate_up, *down;
  std::vector<float> input_norm, attention_scale, mlp_norm, mlp_scale;
};

struct Upsampling {
  Convolution *up, *depthwise, *wide, *narrow;
  std::vector<float> taps, norm_weight, norm_bias, gamma;  // taps: of `depthwise`
};

struct Unit {
  Convolution *conv7, *conv1;
};

struct Block {
  Convolution* up;
  std::vector<Unit> units;
};

// The memory that only one worker writes.
struct VocoderScratch {
  std::vector<float> sums, points, products, normed, keys, scores, query;
};

struct VocoderModel {
  Pool* pool;
  VocoderSource sizes;  // of its pointers only `tables` stays valid
  std::vector<float> rope_cos, rope_sin;
  std::vector<Convolution> convolutions;
  Convolution *codebook_proj, *pre_conv, *input_proj, *output_proj, *first, *last;
  std::vector<TransformerLayer> layers;
  std::vector<float> final_norm;
  std::vector<Upsampling> upsamplings;
  std::vector<Block> blocks;
  std::unique_ptr<Arena> weights;

  // The workers of a pass share these: one stage writes them, the stages after a barrier read them.
  std::unique_ptr<Arena> memory;
  size_t buffer_floats = 0;
  float *in, *out, *x, *mid;            // in, out: a convolution's inputs after their history
  float* points;                        // of a transform whose blocks of weights are divided
  std::vector<VocoderScratch> scratch;  // by worker
};

// Calls visit(convolution, source) for all packed convolutions.
template <class Visit>
void each_packed(VocoderModel& model, const ConvolutionSource* sources, Visit visit) {
  for (size_t i = 0; i < model.convolutions.size(); ++i)
    if (model.convolutions[i].out_channels) visit(model.convolutions[i], sources[i]);
}

inline void pack(VocoderModel& model, const ConvolutionSource* sources) {
  size_t count = 0;
  int most_taps = 0;
  each_packed(model, sources, [&](Convolution& c, auto&) {
    count += c.num_weights();
    most_taps = std::max(most_taps, c.num_taps + c.num_products());
  });
  model.weights = std::make_unique<Arena>(count * 4);
  each_packed(model, sources, [&](Convolution& c, auto&) {
    c.packed = reinterpret_cast<float*>(model.weights->take(c.num_weights() * 4));
  });
  std::vector<double> of_taps(size_t(most_taps) * model.pool->num_threads());
  model.pool->run([&](int worker, int num_workers) {
    each_packed(model, sources, [&](Convolution& c, const ConvolutionSource& source) {
      const Share share = share_of(c.num_blocks(), worker, num_workers);
      for (int i = share.first; i < share.end; ++i)
        pack_block(c, source.taps, i, of_taps.data() + size_t(worker) * most_taps,
                   const_cast<float*>(c.block(i)));
    });
  });
}

inline std::unique_ptr<VocoderModel> make_vocoder(Pool* pool, const VocoderSource& source) {
  auto model = std::make_unique<VocoderModel>();
  const int num_before_blocks = 5 + 4 * (source.num_layers + source.num_upsamplings);
  const int num_in_blocks = source.num_blocks * (1 + 2 * source.units_per_block);
  for (int i = 0; i <= num_before_blocks + num_in_blocks; ++i) {
    // Nearly all the work is in the blocks. In front of them a lost digit matters more than time.
    const bool is_of_block = i >= num_before_blocks && i < num_before_blocks + num_in_blocks;
    model->convolutions.push_back(
        make_convolution(source.convolutions[i], source.is_direct || !is_of_block));
  }
  Convolution* c = model->convolutions.data();
  const float* const* v = source.vectors;
  const auto vector = [&](int channels) { return padded_copy(*v++, channels); };

  model->pool = pool, model->sizes = source;
  const size_t num_angles = size_t(source.num_past + source.max_frames) * source.head_dim;
  model->rope_cos.assign(source.rope_cos, source.rope_cos + num_angles);
  model->rope_sin.assign(source.rope_signed_sin, source.rope_signed_sin + num_angles);
  model->codebook_proj = c++, model->pre_conv = c++, model->input_proj = c++;
  const int hidden_size = model->input_proj->out_channels;
  for (int i = 0; i < source.num_layers; ++i, c += 4) {
    c[2].is_gated = true;
    TransformerLayer layer{c, c + 1, c + 2, c + 3, {}, {}, {}, {}};
    for (auto* each :
         {&layer.input_norm, &layer.attention_scale, &layer.mlp_norm, &layer.mlp_scale})
      *each = vector(hidden_size);
    model->layers.push_back(layer);
  }
  model->final_norm = vector(hidden_size);
  model->output_proj = c++;
  for (int i = 0; i < source.num_upsamplings; ++i, c += 4) {
    Upsampling stage{c, c + 1, c + 2, c + 3, {}, {}, {}, {}};
    const int channels = stage.depthwise->in_channels;
    stage.taps = padded_copy(source.convolutions[c + 1 - model->convolutions.data()].taps, channels,
                             stage.depthwise->num_taps);
    for (auto* each : {&stage.norm_weight, &stage.norm_bias, &stage.gamma})
      *each = vector(channels);
    model->upsamplings.push_back(stage);
  }
  model->first = c++;
  for (int i = 0; i < source.num_blocks; ++i) {
    Block block{c++, {}};
    for (int j = 0; j < source.units_per_block; ++j, c += 2) block.units.push_back({c, c + 1});
    model->blocks.push_back(block);
  }
  model->last = c;

  pack(*model, source.convolutions);
  model->sizes.convolutions = nullptr, model->sizes.vectors = nullptr;
  model->scratch.resize(pool->num_threads());
  const size_t positions = source.num_past + kPieceFrames;
  for (VocoderScratch& scratch : model->scratch) {
    scratch.sums.resize(kPanelRows * kWidth);
    for (const Convolution& each : model->convolutions) {
      if (each.transform == Transform::kNone) continue;
      const size_t num_points = size_t(each.num_products()) * each.panel_tiles() * each.in_size();
      scratch.points.resize(std::max(scratch.points.size(), num_points));
      scratch.products.resize(
          std::max(scratch.products.size(), size_t(each.num_products()) * kPanelTiles * kWidth));
    }
    scratch.normed.resize(size_t(kPassFrames) * padded(hidden_size));
    scratch.keys.resize(positions * source.head_dim);
    scratch.scores.resize(positions), scratch.query.resize(source.head_dim);
  }
  return model;
}

// Allocates buffers for passes of num_frames frames, counted over all of num_streams streams.
inline void reserve(VocoderModel& model, int num_frames, int num_streams) {
  size_t most = 0, steps = num_frames;
  const auto needs = [&](const Convolution& c) {
    const size_t in_rows = size_t(c.history_rows()) * num_streams + steps;
    most = std::max(most, in_rows * c.in_size());
    if (c.transform != Transform::kNone) {
      const size_t num_tiles = with_transform(c.transform, [&](auto t) {
        return Tiling<decltype(t)>{c.dilation * num_streams, int(steps)}.count();
      });
      most = std::max(most, num_tiles * c.num_products() * c.in_size());
    }
    steps *= c.is_gated ? 1 : c.stride;
    most = std::max(most, steps * std::max(c.out_size(), size_t(c.is_gated ? 0 : c.num_columns())));
  };
  for (const Convolution& c : model.convolutions) needs(c);
  most = (most + 1023) / 1024 * 1024;
  if (most <= model.buffer_floats) return;
  model.memory.reset(), model.buffer_floats = 0;
  model.memory = std::make_unique<Arena>(5 * most * sizeof(float));
  for (float** each : {&model.in, &model.out, &model.x, &model.mid, &model.points})
    *each = reinterpret_cast<float*>(model.memory->take(most * sizeof(float)));
  model.buffer_floats = most;
}

}  // namespace qwen_tts
