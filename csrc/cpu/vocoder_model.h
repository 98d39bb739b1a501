// A loaded vocoder: packed convolutions, small vectors, and the buffers of a pass.
#pragma once
#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "convolution.h"

namespace qwen_tts {

// The most frames of one stream in a pass, and of all its streams together. Other streams do not
// change the places at which a longer chunk is cut.
constexpr int kPieceFrames = 8;
constexpr int kPassFrames = 16;

constexpr size_t kHugePage = size_t{2} << 20;

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

// Memory for the buffers of a pass; the system allocates pages as they are written.
class Arena {
 public:
  explicit Arena(size_t bytes) {
    bytes = (bytes + kHugePage) / kHugePage * kHugePage;
    next_ = add(kHugePage, bytes);
#ifdef MADV_HUGEPAGE
    madvise(next_, bytes, MADV_HUGEPAGE);  // adds 9 to 14 % of bandwidth on a Zen 3
#endif
  }

  // Returns the next bytes. Under AddressSanitizer each call allocates a block of its own, so that
  // the sanitizer reports reads past the end of a buffer.
  uint8_t* take(size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
    return add(64, bytes);
#else
    uint8_t* taken = next_;
    next_ += bytes;
    return taken;
#endif
  }

 private:
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };

  uint8_t* add(size_t alignment, size_t bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment, bytes)) throw std::bad_alloc();
    std::unique_ptr<uint8_t, Free> block(static_cast<uint8_t*>(memory));
    blocks_.push_back(std::move(block));
    return blocks_.back().get();
  }

  std::vector<std::unique_ptr<uint8_t, Free>> blocks_;
  uint8_t* next_;
};

struct VocoderModel {
  Pool* pool;
  VocoderSource sizes;  // of its pointers only `tables` and `packed` stay valid
  std::vector<float> rope_cos, rope_sin;
  std::vector<Convolution> convolutions;
  Convolution *codebook_proj, *pre_conv, *input_proj, *output_proj, *first, *last;
  std::vector<TransformerLayer> layers;
  std::vector<float> final_norm;
  std::vector<Upsampling> upsamplings;
  std::vector<Block> blocks;

  // The workers of a pass share these: one stage writes them, the stages after a barrier read them.
  std::unique_ptr<Arena> memory;
  size_t buffer_floats = 0;
  float *in, *out, *x;                  // in, out: a convolution's inputs after their history
  float* mid;                           // in a block: points of a transform whose weights' blocks
                                        // are divided
  std::vector<VocoderScratch> scratch;  // by worker
};

// Returns the convolutions of a vocoder, whose weights lie one after the other from `packed` on;
// those of depthwise convolutions, which have no output channels, lie elsewhere.
inline std::vector<Convolution> make_convolutions(const VocoderSource& source,
                                                  const uint8_t* packed) {
  std::vector<Convolution> convolutions;
  const int num_before_layers = 3, end_of_layers = num_before_layers + 4 * source.num_layers;
  const int num_before_blocks = end_of_layers + 2 + 4 * source.num_upsamplings;
  const int num_in_blocks = source.num_blocks * (1 + 2 * source.units_per_block);
  for (int i = 0; i <= num_before_blocks + num_in_blocks; ++i) {
    const bool is_gated =
        i >= num_before_layers && i < end_of_layers && (i - num_before_layers) % 4 == 2;
    // Nearly all the work is in the blocks. In front of them a lost digit matters more than time.
    const bool is_of_block = i >= num_before_blocks && i < num_before_blocks + num_in_blocks;
    Convolution c =
        make_convolution(source.convolutions[i], source.is_direct || !is_of_block, is_gated);
    c.is_half = source.is_half, c.packed = packed;
    if (c.out_channels && packed) packed += c.num_weights() * c.weight_bytes();
    convolutions.push_back(std::move(c));
  }
  return convolutions;
}

// Returns the number of bytes of a vocoder's packed weights, a multiple of 64, so that a file's
// next tensor is aligned, too.
inline size_t packed_bytes(const VocoderSource& source) {
  size_t count = 0;
  for (const Convolution& c : make_convolutions(source, nullptr))
    if (c.out_channels) count += c.num_weights() * c.weight_bytes();
  return (count + 63) / 64 * 64;
}

inline void pack(Pool& pool, const VocoderSource& source, uint8_t* to) {
  const std::vector<Convolution> convolutions = make_convolutions(source, to);
  int most_taps = 0;
  for (const Convolution& c : convolutions)
    most_taps = std::max(most_taps, c.num_taps + c.num_products());
  std::vector<double> of_taps(size_t(most_taps) * pool.num_threads());
  pool.run([&](int worker, int num_workers) {
    for (size_t i = 0; i < convolutions.size(); ++i) {
      const Convolution& c = convolutions[i];
      if (!c.out_channels) continue;
      const Share share = share_of(c.num_blocks(), worker, num_workers);
      for (int block = share.first; block < share.end; ++block)
        pack_block(c, source.convolutions[i].taps, block,
                   of_taps.data() + size_t(worker) * most_taps,
                   reinterpret_cast<float*>(const_cast<uint8_t*>(c.block(block))));
    }
  });
}

inline std::unique_ptr<VocoderModel> make_vocoder(Pool* pool, const VocoderSource& source) {
  auto model = std::make_unique<VocoderModel>();
  model->convolutions = make_convolutions(source, source.packed);
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
  constexpr size_t kHugeFloats = kHugePage / sizeof(float);
  most = (most + kHugeFloats - 1) / kHugeFloats * kHugeFloats;  // no buffers share a page
  if (most <= model.buffer_floats) return;
  model.memory.reset(), model.buffer_floats = 0;
  model.memory = std::make_unique<Arena>(4 * most * sizeof(float));
  for (float** each : {&model.in, &model.out, &model.x, &model.mid})
    *each = reinterpret_cast<float*>(model.memory->take(most * sizeof(float)));
  model.buffer_floats = most;
}

}  // namespace qwen_tts
