// A piece of speech, stage by stage. A barrier follows every stage.
//
// clang-format off
//   front   embed       the first codebook's entry beside the sum of the others   rows
//           projection, pre_conv, input_proj                                      columns
//   layer   qkv         x -> norm -> q, k, v                                      columns
//           attention   rotation; softmax over the window; history                streams and kv heads
//           o           x += scale * o * attention                                columns
//           gate_up     x -> norm -> silu(gate) * up                              columns
//           down        x += scale * down * mlp                                   columns
//   tail    upsample    twice: transposed convolution                             columns
//           depthwise   7 taps a channel, norm                                    rows
//           wide, narrow  x + gamma * narrow * gelu(wide)                         columns
//           first       decoder.0                                                 columns
//   block   up          transposed convolution: x, and its snake                  columns or rows
//           conv7       3 times: snake(7 taps, dilated)                           columns or rows
//           conv1       x += conv1; its snake is the next one's input             columns or rows
//           last        one sample a row, clamped                                 rows
// clang-format on
//
// The last column names what the workers divide. A convolution's new inputs follow its history,
// which a stream's state remembers; the last worker copies the history while others compute.
#pragma once
#include "activation.h"
#include "vocoder_model.h"

namespace qwen_tts {

// Some frames of some streams of a request.
struct Pass {
  const VocoderRequest& request;
  int first_stream, num_streams, first_frame, num_frames;
  bool is_silent;

  int num_rows() const { return num_frames * num_streams; }
  float* state(int b) const { return request.states[first_stream + b]; }
};

// What to do with a convolution's sums: y = sums + bias, then y = residual + scale * y.
struct Output {
  const Convolution& from;
  int num_streams;
  float* next = nullptr;                // receives y, activated for `reader`
  const Convolution* reader = nullptr;  // null: no activation
  float* keep = nullptr;                // receives y
  const float* residual = nullptr;
  const float* scale = nullptr;

  void operator()(int block, Rows rows, const float* sums) const {
    const bool has_snake = reader && !reader->frequency.empty();
    for (int v = 0; v < from.width(block); v += kLanes) {
      const auto [phase, channel] = from.column(block * kWidth + v);
      const Floats bias = load(from.bias.data() + channel);
      const Floats scales = scale ? load(scale + channel) : broadcast(1.0f);
      const Floats frequency = has_snake ? load(reader->frequency.data() + channel) : bias;
      const Floats amplitude = has_snake ? load(reader->amplitude.data() + channel) : bias;
      for (int i = 0; i < rows.count; ++i) {
        const int row = rows.at(i);
        size_t to = row;
        if (from.stride > 1)  // each step of a stream becomes `stride` steps
          to = size_t(row / num_streams * from.stride + phase) * num_streams + row % num_streams;
        const size_t at = to * from.out_size() + channel;
        Floats y = load(sums + i * kWidth + v) + bias;
        if (residual) y = fma(y, scales, load(residual + at));
        if (keep) store(keep + at, y);
        if (next) store(next + at, has_snake ? snake(y, frequency, amplitude) : y);
      }
    }
  }
};

// One worker's view of the running pass.
struct VocoderWorker {
  VocoderModel& model;
  const Pass& pass;
  int index, num_workers;

  VocoderScratch& scratch() const { return model.scratch[index]; }
  void barrier() const { model.pool->barrier(index); }
  Share share(int count) const { return share_of(count, index, num_workers); }
  bool is_last() const { return index == num_workers - 1; }

  // Returns the place in a buffer where a convolution's new inputs begin.
  float* after_history(const Convolution& c, float* buffer) const {
    return buffer + size_t(c.history_rows()) * pass.num_streams * c.in_size();
  }

  // Calls visit(row of the buffer, row of the state) for a convolution's whole history.
  template <class Visit>
  void each_history_row(const Convolution& c, Visit visit) const {
    for (int row = 0; row < c.history_rows(); ++row)
      for (int b = 0; b < pass.num_streams; ++b)
        visit(size_t(row) * pass.num_streams + b,
              pass.state(b) + c.history_at + size_t(row) * c.in_channels);
  }
  void fetch_history(const Convolution& c, float* buffer) const {
    each_history_row(c, [&](size_t row, const float* state) {
      std::copy_n(state, c.in_channels, buffer + row * c.in_size());
    });
  }
  // Stores the next history in the states: the last rows of a buffer with num_rows new rows.
  void keep_history(const Convolution& c, const float* buffer, int num_rows) const {
    each_history_row(c, [&](size_t row, float* state) {
      std::copy_n(buffer + (row + num_rows) * c.in_size(), c.in_channels, state);
    });
  }

  // Computes this worker's part of a convolution's num_rows outputs. It ends without a barrier.
  template <class Use>
  void compute(const Convolution& c, const float* x, int num_rows, Use use) const {
    const int gap = c.dilation * pass.num_streams;
    if (c.transform == Transform::kNone) {
      convolve(c, part_of(c, num_rows, index, num_workers), x, gap, scratch().sums.data(), use);
    } else {
      with_transform(c.transform,
                     [&](auto t) { compute_tiles(c, Tiling<decltype(t)>{gap, num_rows}, x, use); });
    }
  }

  template <class T, class Use>
  void compute_tiles(const Convolution& c, const Tiling<T>& tiling, const float* x, Use use) const {
    const Part part = part_of(c, tiling.count(), index, num_workers);
    float* products = scratch().products.data();
    const size_t stride = c.in_size();
    if (part.has_all_blocks) {
      float* points = scratch().points.data();
      const int at_once = c.panel_tiles();
      const size_t plane = at_once * stride;
      for (int first = part.rows.first; first < part.rows.end; first += at_once) {
        const Share tiles{first, std::min(part.rows.end, first + at_once)};
        transform_inputs(c, tiling, x, tiles, {0, int(stride)}, points, plane);
        convolve_points(c, tiling, tiles, part.blocks, points, plane, products, use);
      }
      return;
    }
    const size_t plane = tiling.count() * stride;
    const Share parts = share(int(stride) / kChannelBlock);
    transform_inputs(c, tiling, x, part.rows,
                     {parts.first * kChannelBlock, parts.end * kChannelBlock}, model.mid, plane);
    barrier();
    for (int first = 0; first < part.rows.end; first += kPanelTiles) {
      const Share tiles{first, std::min(part.rows.end, first + kPanelTiles)};
      convolve_points(c, tiling, tiles, part.blocks, model.mid + first * stride, plane, products,
                      use);
    }
  }

  // Runs a convolution as a stage. Its outputs follow the history of `output.reader`.
  void convolution(const Convolution& c, const float* x, int num_rows, Output output) const {
    if (is_last()) {
      keep_history(c, x, num_rows);
      if (output.reader) fetch_history(*output.reader, output.next);
    }
    if (output.reader) output.next = after_history(*output.reader, output.next);
    compute(c, x, num_rows, output);
    barrier();
  }

  // Returns the transformer's x, normed, in this worker's scratch.
  const float* normed(const std::vector<float>& weight) const {
    const size_t size = weight.size();
    float* to = scratch().normed.data();
    for (int row = 0; row < pass.num_rows(); ++row)
      rms_norm(to + row * size, model.x + row * size, weight.data(), model.input_proj->out_channels,
               model.sizes.rms_norm_eps);
    return to;
  }
};

// Adds a row of the tables to a sum.
inline void add_entry(const VocoderSource& sizes, size_t row, float* sum) {
  const size_t bytes = sizes.is_half ? 2 : 4;
  const uint8_t* entry = sizes.tables + row * sizes.codebook_dim * bytes;
  for (int i = 0; i < sizes.codebook_dim; i += kLanes) {
    const int count = std::min(kLanes, sizes.codebook_dim - i);
    alignas(64) uint8_t stored[4 * kLanes] = {};
    float values[kLanes];
    std::memcpy(stored, entry + i * bytes, count * bytes);
    store(values, sizes.is_half ? load_half(stored) : load_floats(stored));
    for (int j = 0; j < count; ++j) sum[i + j] += values[j];
  }
}

inline void embed(const VocoderWorker& worker) {
  const VocoderModel& model = worker.model;
  const Pass& pass = worker.pass;
  const VocoderSource& sizes = model.sizes;
  const int dim = sizes.codebook_dim;
  const Share rows = worker.share(pass.num_rows());
  for (int row = rows.first; row < rows.end; ++row) {
    const int frame = pass.first_frame + row / pass.num_streams;
    const int stream = pass.first_stream + row % pass.num_streams;
    const int32_t* codes = pass.request.codes +
                           (size_t(stream) * pass.request.num_frames + frame) * sizes.num_codebooks;
    float* to = model.in + row * model.codebook_proj->in_size();
    std::fill_n(to, 2 * dim, 0.0f);
    for (int book = 0; book < sizes.num_codebooks; ++book)
      add_entry(sizes, size_t(book) * sizes.codebook_size + codes[book], book ? to + dim : to);
  }
  worker.barrier();
}

// Computes attention, model.in [num_rows, qkv] -> model.out, and updates the histories. Positions
// count from the oldest key that the window of the piece's first frame can have.
inline void attention(const VocoderWorker& worker, const TransformerLayer& layer) {
  const VocoderModel& model = worker.model;
  const VocoderSource& sizes = model.sizes;
  const Pass& pass = worker.pass;
  VocoderScratch& scratch = worker.scratch();
  const int head_dim = sizes.head_dim, half = head_dim / 2, num_past = sizes.num_past;
  const int kv_size = sizes.num_kv_heads * head_dim, q_size = sizes.num_heads * head_dim;
  const int num_groups = sizes.num_heads / sizes.num_kv_heads;
  const float scale = 1 / std::sqrt(float(head_dim));
  const auto rotated = [&](const float* head, int position, float* to) {
    const float* cos = model.rope_cos.data() + size_t(position) * head_dim;
    const float* sin = model.rope_sin.data() + size_t(position) * head_dim;
    for (int i = 0; i < half; ++i) {
      to[i] = head[i] * cos[i] + head[i + half] * sin[i];
      to[i + half] = head[i + half] * cos[i + half] + head[i] * sin[i + half];
    }
  };
  const Share units = worker.share(pass.num_streams * sizes.num_kv_heads);
  for (int unit = units.first; unit < units.end; ++unit) {
    const int b = unit / sizes.num_kv_heads, kv_head = unit % sizes.num_kv_heads;
    float* state = pass.state(b);
    float* past = state + layer.qkv->history_at + kv_head * head_dim;
    const int first = num_past - int(state[sizes.num_keys]);
    const auto row = [&](int frame) {
      return model.in + (size_t(frame) * pass.num_streams + b) * layer.qkv->out_size();
    };
    // The key of this kv head at a position.
    const auto key = [&](int position) {
      return position < num_past ? past + size_t(position) * 2 * kv_size
                                 : row(position - num_past) + q_size + kv_head * head_dim;
    };
    for (int p = first; p < num_past + pass.num_frames; ++p)
      rotated(key(p), p, scratch.keys.data() + size_t(p) * head_dim);
    for (int frame = 0; frame < pass.num_frames; ++frame)
      for (int head = kv_head * num_groups; head < (kv_head + 1) * num_groups; ++head) {
        const float* query = scratch.query.data();
        const int begin = std::max(first, frame), end = num_past + frame + 1;
        rotated(row(frame) + head * head_dim, num_past + frame, scratch.query.data());
        float* scores = scratch.scores.data();
        float most = -INFINITY;
        for (int p = begin; p < end; ++p) {
          const float* keys = scratch.keys.data() + size_t(p) * head_dim;
          scores[p] = scale * sum_of(head_dim, [&](int i) { return query[i] * keys[i]; });
          most = std::max(most, scores[p]);
        }
        for (int p = begin; p < end; ++p) scores[p] = exponential(scores[p] - most);
        const float inverse = 1 / sum_of(end - begin, [&](int i) { return scores[begin + i]; });
        float* to = model.out + head * head_dim +
                    (size_t(frame) * pass.num_streams + b) * layer.o->in_size();
        std::fill_n(to, head_dim, 0.0f);
        for (int p = begin; p < end; ++p) {
          const float part = scores[p] * inverse;
          const float* value = key(p) + kv_size;
          for (int i = 0; i < head_dim; ++i) to[i] += part * value[i];
        }
      }
    for (int p = 0; p < num_past; ++p)
      for (int i : {0, kv_size})
        std::copy_n(key(p + pass.num_frames) + i, head_dim, past + size_t(p) * 2 * kv_size + i);
  }
  worker.barrier();
}

inline void run_layer(const VocoderWorker& worker, const TransformerLayer& layer) {
  const VocoderModel& model = worker.model;
  const int num_rows = worker.pass.num_rows(), n = worker.pass.num_streams;
  worker.compute(*layer.qkv, worker.normed(layer.input_norm), num_rows,
                 Output{*layer.qkv, n, model.in});
  worker.barrier();
  attention(worker, layer);
  worker.compute(
      *layer.o, model.out, num_rows,
      Output{*layer.o, n, nullptr, nullptr, model.x, model.x, layer.attention_scale.data()});
  worker.barrier();
  const size_t size = layer.down->in_size();
  worker.compute(*layer.gate_up, worker.normed(layer.mlp_norm), num_rows,
                 [&](int block, Rows rows, const float* sums) {
                   const int channel = layer.gate_up->column(block * kWidth).channel;
                   for (int r = 0; r < rows.count; ++r, sums += kWidth)
                     for (int i = 0; i < kChannelBlock; ++i)
                       model.mid[rows.at(r) * size + channel + i] =
                           silu(sums[i]) * sums[kChannelBlock + i];
                 });
  worker.barrier();
  worker.compute(
      *layer.down, model.mid, num_rows,
      Output{*layer.down, n, nullptr, nullptr, model.x, model.x, layer.mlp_scale.data()});
  worker.barrier();
}

// Computes model.in from codes; it follows the history of `reader`.
inline void run_front(const VocoderWorker& worker, const Convolution& reader) {
  const VocoderModel& model = worker.model;
  const Pass& pass = worker.pass;
  const int num_rows = pass.num_rows(), n = pass.num_streams;
  embed(worker);
  worker.convolution(*model.codebook_proj, model.in, num_rows,
                     Output{*model.codebook_proj, n, model.out, model.pre_conv});
  worker.convolution(*model.pre_conv, model.out, num_rows,
                     Output{*model.pre_conv, n, model.in, model.input_proj});
  worker.convolution(*model.input_proj, model.in, num_rows, Output{*model.input_proj, n, model.x});
  for (const TransformerLayer& layer : model.layers) run_layer(worker, layer);
  if (worker.index == 0)
    for (int b = 0; b < n; ++b) {
      float& num_keys = pass.state(b)[model.sizes.num_keys];
      num_keys = std::min(num_keys + pass.num_frames, float(model.sizes.num_past));
    }
  if (pass.is_silent) return;
  worker.convolution(*model.output_proj, worker.normed(model.final_norm), num_rows,
                     Output{*model.output_proj, n, model.in, &reader});
}

// Upsamples model.in in place; the result follows the history of `reader`.
inline void upsample(const VocoderWorker& worker, const Upsampling& stage, int num_rows,
                     const Convolution& reader) {
  const VocoderModel& model = worker.model;
  const int n = worker.pass.num_streams;
  const Convolution& depthwise = *stage.depthwise;
  worker.convolution(*stage.up, model.in, num_rows, Output{*stage.up, n, model.out, &depthwise});
  num_rows *= stage.up->stride;
  const size_t size = depthwise.in_size();
  const Share rows = worker.share(num_rows);
  for (int row = rows.first; row < rows.end; ++row) {
    float* to = model.in + row * size;
    for (size_t i = 0; i < size; i += kLanes) {
      Floats sum = load(depthwise.bias.data() + i);
      for (int tap = 0; tap < depthwise.num_taps; ++tap)
        sum = fma(load(model.out + (row + size_t(tap) * n) * size + i),
                  load(stage.taps.data() + tap * size + i), sum);
      store(to + i, sum);
    }
    layer_norm(to, stage.norm_weight.data(), stage.norm_bias.data(), depthwise.in_channels,
               model.sizes.layer_norm_eps);
  }
  if (worker.is_last()) worker.keep_history(depthwise, model.out, num_rows);
  worker.barrier();
  const Convolution& wide = *stage.wide;
  worker.compute(wide, model.in, num_rows, [&](int block, Rows rows, const float* sums) {
    const int first = block * kWidth, count = wide.width(block);
    for (int r = 0; r < rows.count; ++r, sums += kWidth)
      for (int i = 0; i < count; ++i)
        model.mid[rows.at(r) * wide.out_size() + first + i] = gelu(sums[i] + wide.bias[first + i]);
  });
  worker.barrier();
  worker.convolution(*stage.narrow, model.mid, num_rows,
                     Output{*stage.narrow, n, model.in, &reader, nullptr,
                            worker.after_history(depthwise, model.out), stage.gamma.data()});
}

// Runs a block on buffer `in`. On return `in` is its result, after the history of `reader`.
inline void run_block(const VocoderWorker& worker, const Block& block, int num_rows, float*& in,
                      float*& out, const Convolution& reader) {
  const VocoderModel& model = worker.model;
  const int n = worker.pass.num_streams;
  worker.convolution(*block.up, in, num_rows,
                     Output{*block.up, n, out, block.units[0].conv7, model.x});
  num_rows *= block.up->stride;
  for (size_t i = 0; i < block.units.size(); ++i) {
    const Unit& unit = block.units[i];
    const bool is_over = i + 1 == block.units.size();
    worker.convolution(*unit.conv7, out, num_rows, Output{*unit.conv7, n, in, unit.conv1});
    worker.convolution(*unit.conv1, in, num_rows,
                       Output{*unit.conv1, n, out, is_over ? &reader : block.units[i + 1].conv7,
                              is_over ? nullptr : model.x, model.x});
  }
  std::swap(in, out);
}

inline void run_last(const VocoderWorker& worker, const float* in, int num_rows) {
  const VocoderModel& model = worker.model;
  const Pass& pass = worker.pass;
  const VocoderRequest& request = pass.request;
  if (worker.is_last()) worker.keep_history(*model.last, in, num_rows);
  const int per_frame = model.sizes.samples_per_frame;
  const size_t per_stream = size_t(request.num_frames - request.num_silent) * per_frame;
  const size_t begin = size_t(pass.first_frame - request.num_silent) * per_frame;
  if (!request.pcm) return;
  worker.compute(*model.last, in, num_rows, [&](int, Rows rows, const float* sums) {
    for (int r = 0; r < rows.count; ++r, sums += kWidth) {
      const float sample = sums[0] + model.last->bias[0];
      const int row = rows.at(r), stream = pass.first_stream + row % pass.num_streams;
      request.pcm[stream * per_stream + begin + row / pass.num_streams] =
          std::isnan(sample) ? sample : std::min(1.0f, std::max(-1.0f, sample));
    }
  });
}

inline void run_pass(VocoderModel& model, const Pass& pass) {
  reserve(model, pass.num_rows(), pass.num_streams);
  model.pool->run([&](int index, int num_workers) {
    const VocoderWorker worker{model, pass, index, num_workers};
    const auto& upsamplings = model.upsamplings;
    const auto reader_of = [&](size_t i) -> const Convolution& {
      return i < upsamplings.size() ? *upsamplings[i].up : *model.first;
    };
    run_front(worker, reader_of(0));
    if (pass.is_silent) return;
    int num_rows = pass.num_rows();
    for (size_t i = 0; i < upsamplings.size(); ++i) {
      upsample(worker, upsamplings[i], num_rows, reader_of(i + 1));
      num_rows *= upsamplings[i].up->stride;
    }
    float *in = model.in, *out = model.out;
    worker.convolution(*model.first, in, num_rows,
                       Output{*model.first, pass.num_streams, out, model.blocks[0].up});
    std::swap(in, out);
    for (size_t i = 0; i < model.blocks.size(); ++i) {
      const Block& block = model.blocks[i];
      const bool is_over = i + 1 == model.blocks.size();
      run_block(worker, block, num_rows, in, out, is_over ? *model.last : *model.blocks[i + 1].up);
      num_rows *= block.up->stride;
    }
    run_last(worker, in, num_rows);
  });
}

// Returns whether every code is an index into its codebook.
inline bool are_codes(const VocoderModel& model, const VocoderRequest& request) {
  const size_t count = size_t(request.num_streams) * request.num_frames * model.sizes.num_codebooks;
  return std::all_of(request.codes, request.codes + count,
                     [&](int32_t code) { return code >= 0 && code < model.sizes.codebook_size; });
}

inline void run_request(VocoderModel& model, const VocoderRequest& request) {
  for (int frame = 0; frame < request.num_frames;) {
    const bool is_silent = frame < request.num_silent;
    const int left = (is_silent ? request.num_silent : request.num_frames) - frame;
    const int num_frames = std::min(left, kPieceFrames), at_once = kPassFrames / num_frames;
    for (int stream = 0; stream < request.num_streams; stream += at_once)
      run_pass(model, Pass{request, stream, std::min(at_once, request.num_streams - stream), frame,
                           num_frames, is_silent});
    frame += num_frames;
  }
}

}  // namespace qwen_tts
