// A codec frame, stage by stage. A barrier follows every stage.
//
//   layer    qkv        x -> norm -> q, k, v                          rows of qkv
//            attention  norms, rotation, cache; softmax               streams and kv heads
//            o_proj     x += o * attention                            rows of o
//            gate_up    x -> norm -> silu(gate) * up                  rows of gate and up
//            down       x += down * mlp                               rows of down
//   frame    talker     the previous frame's embedding, 28 layers
//            codec_head logits of code 0                              rows of the head
//            draw       code 0, or the end                            streams
//   code     projection (1.7B only) to the predictor's width          rows of the projection
//            predictor  5 layers
//            lm_head    logits of the code                            rows of the head
//            draw       the code, and its embedding                   streams
//
// The last column names what the workers divide among themselves. Every worker computes norms and
// narrows activations for itself, because that costs less than a barrier.
#pragma once
#include "model.h"
#include "sampling.h"

namespace qwen_tts {

// One worker's view of the running job.
struct Worker {
  Model& model;
  int index, num_workers;

  Scratch& scratch() const { return model.scratch[index]; }
  void barrier() const { model.pool->barrier(index); }
  Share share(int count) const { return share_of(count, index, num_workers); }

  // Multiplies this worker's blocks of `matrix` by the inputs of its scratch.
  template <class Use>
  void multiply(const Matrix& matrix, Use use) const {
    const Share blocks = share(matrix.num_blocks);
    product(matrix, blocks.first, blocks.end, scratch().inputs, use);
  }

  // Sets the inputs to rows of `from` [num_rows, num_cols of the matrix], normed if given a weight.
  void set_inputs(const Matrix& matrix, const float* from, int num_rows,
                  const float* norm_weight = nullptr, float eps = 0) const {
    const int n = matrix.num_cols;
    scratch().inputs.set(matrix, num_rows, [&](int row, float* to) {
      if (norm_weight) {
        rms_norm(to, from + size_t(row) * n, norm_weight, n, eps);
      } else {
        std::copy_n(from + size_t(row) * n, n, to);
      }
    });
  }
};

// x [.., hidden_size] += matrix * inputs.
inline void add_product(const Worker& worker, const Matrix& matrix, int hidden_size) {
  float* x = worker.model.x.data();
  worker.multiply(matrix, [=](int block, int row, const float* sums) {
    float* to = x + size_t(row) * hidden_size + block * kBlockRows;
    const int count = std::min(kBlockRows, hidden_size - block * kBlockRows);
    for (int i = 0; i < count; ++i) to[i] += sums[i];
  });
  worker.barrier();
}

// Computes the attention of `num_rows` rows; each rows_per_stream adjacent rows share a cache.
inline void attention_stage(const Worker& worker, const Stack& stack, int layer_idx, int num_rows,
                            int rows_per_stream) {
  Model& model = worker.model;
  const Layer& layer = stack.layers[layer_idx];
  const int head_dim = stack.head_dim, stride = stack.qkv_stride();
  const auto norm_and_rotate = [&](float* head, const std::vector<float>& weight, int position) {
    if (!weight.empty()) rms_norm(head, head, weight.data(), head_dim, stack.rms_norm_eps);
    const size_t angles = size_t(position) * (head_dim / 2);
    rotate(head, stack.rope_cos.data() + angles, stack.rope_sin.data() + angles, head_dim);
  };
  const auto keep = [&](int b, int kv_head) {
    const Row& row = model.rows[b];
    float* key = model.qkv.data() + size_t(b) * stride + stack.q_size() + kv_head * head_dim;
    norm_and_rotate(key, layer.k_norm, row.position);
    float* kept = stack.key(row.cache, layer_idx, kv_head, row.position);
    for (int d = 0; d < head_dim; ++d) kept[size_t(d) * kKeyBlock] = key[d];
    std::copy_n(key + stack.kv_size(), head_dim,
                stack.value(row.cache, layer_idx, kv_head, row.position));
  };
  const auto mix = [&](int b, int kv_head) {
    const Row& row = model.rows[b];
    for (int i = 0; i < stack.heads_per_key(); ++i) {
      const int head = kv_head * stack.heads_per_key() + i;
      float* query = model.qkv.data() + size_t(b) * stride + head * head_dim;
      norm_and_rotate(query, layer.q_norm, row.position);
      attend(model.attention.data() + size_t(b) * stack.q_size() + head * head_dim, query,
             stack.keys(row.cache, layer_idx, kv_head), stack.values(row.cache, layer_idx, kv_head),
             row.position, head_dim, worker.scratch().scores.data());
    }
  };
  if (rows_per_stream <= 2) {
    const Share units = worker.share(num_rows / rows_per_stream * stack.num_kv_heads);
    for (int unit = units.first; unit < units.end; ++unit) {
      const int b = unit / stack.num_kv_heads * rows_per_stream;
      for (int i = 0; i < rows_per_stream; ++i) keep(b + i, unit % stack.num_kv_heads);
      for (int i = 0; i < rows_per_stream; ++i) mix(b + i, unit % stack.num_kv_heads);
    }
  } else {  // a prompt: later rows take longer, so each worker takes rows from all parts of it
    const int num_units = num_rows * stack.num_kv_heads;
    for (int unit = worker.index; unit < num_units; unit += worker.num_workers)
      keep(unit / stack.num_kv_heads, unit % stack.num_kv_heads);
    worker.barrier();
    for (int unit = worker.index; unit < num_units; unit += worker.num_workers)
      mix(unit / stack.num_kv_heads, unit % stack.num_kv_heads);
  }
  worker.barrier();
}

// Runs model.x [num_rows, hidden_size] through all layers, in place, at positions model.rows.
inline void run_layers(const Worker& worker, const Stack& stack, int num_rows,
                       int rows_per_stream) {
  Model& model = worker.model;
  const int hidden_size = stack.hidden_size, inner = stack.intermediate_size;
  for (size_t index = 0; index < stack.layers.size(); ++index) {
    const Layer& layer = stack.layers[index];
    worker.set_inputs(layer.qkv, model.x.data(), num_rows, layer.input_norm.data(),
                      stack.rms_norm_eps);
    worker.multiply(layer.qkv, [&](int block, int row, const float* sums) {
      float* to = model.qkv.data() + size_t(row) * stack.qkv_stride() + block * kBlockRows;
      std::copy_n(sums, kBlockRows, to);
      const int first = block * kBlockRows, size = int(layer.qkv_bias.size());
      for (int i = 0; i < kBlockRows && first + i < size; ++i) to[i] += layer.qkv_bias[first + i];
    });
    worker.barrier();
    attention_stage(worker, stack, int(index), num_rows, rows_per_stream);
    worker.set_inputs(layer.o, model.attention.data(), num_rows);
    add_product(worker, layer.o, hidden_size);
    worker.set_inputs(layer.gate_up, model.x.data(), num_rows, layer.post_norm.data(),
                      stack.rms_norm_eps);
    worker.multiply(layer.gate_up, [&](int block, int row, const float* sums) {
      float* to = model.mlp.data() + size_t(row) * inner + block * kGateRows;
      const int count = std::min(kGateRows, inner - block * kGateRows);
      for (int i = 0; i < count; ++i) to[i] = silu(sums[i]) * sums[kGateRows + i];
    });
    worker.barrier();
    worker.set_inputs(layer.down, model.mlp.data(), num_rows);
    add_product(worker, layer.down, hidden_size);
  }
}

// Computes logits [num_rows, vocab_size] of the inputs in every worker's scratch.
inline void head_stage(const Worker& worker, const Matrix& head, int vocab_size) {
  float* logits = worker.model.logits.data();
  worker.multiply(head, [=](int block, int row, const float* sums) {
    const int first = block * kBlockRows;
    std::copy_n(sums, std::min(kBlockRows, vocab_size - first),
                logits + size_t(row) * vocab_size + first);
  });
  worker.barrier();
}

// Runs a prompt from position num_kept on, and stores the last position's hidden state in the slot.
inline void run_prompt(Model& model, Slot& slot, const float* embeds, int num_positions,
                       int num_kept) {
  const Stack& stack = model.talker;
  const int hidden_size = stack.hidden_size;
  for (int first = num_kept; first < num_positions; first += kPassRows) {
    const int count = std::min(kPassRows, num_positions - first);
    std::copy_n(embeds + size_t(first) * hidden_size, size_t(count) * hidden_size, model.x.data());
    for (int i = 0; i < count; ++i) model.rows[i] = {slot.cache.data(), first + i};
    model.pool->run([&](int index, int num_workers) {
      run_layers(Worker{model, index, num_workers}, stack, count, count);
    });
    const float* last = model.x.data() + size_t(count - 1) * hidden_size;
    rms_norm(slot.hidden.data(), last, stack.final_norm.data(), hidden_size, stack.rms_norm_eps);
  }
  slot.position = num_positions;
}

// One frame of some streams of a request.
class Frame {
 public:
  // `streams` are indices into the request; none of these streams has ended.
  Frame(Model& model, const StepRequest& request, int index, const std::vector<int>& streams)
      : model_(model), request_(request), index_(index), streams_(streams) {}

  void run() {
    begin();
    model_.pool->run([&](int index, int num_workers) { work({model_, index, num_workers}); });
    for (int stream : streams_) finish(stream);
  }

 private:
  Slot& slot(int stream) const { return *model_.slots[request_.slots[stream]]; }
  size_t place(int stream) const { return size_t(stream) * request_.num_frames + index_; }

  // Computes the talker's inputs for the streams that have a previous frame.
  void begin() {
    const int hidden_size = model_.talker.hidden_size;
    for (int stream : streams_) {
      Slot& slot = this->slot(stream);
      if (slot.frame == 0) continue;
      float* x = model_.x.data() + size_t(num_stepping_) * hidden_size;
      std::fill_n(x, hidden_size, 0.0f);
      for (int group = 0; group < model_.num_code_groups; ++group)
        model_.add_embedding(x, group, slot.codes[group]);
      const size_t text = size_t(slot.frame - 1) * hidden_size;
      const float* row = text < slot.text.size() ? slot.text.data() + text : slot.pad.data();
      for (int i = 0; i < hidden_size; ++i) x[i] += row[i];
      model_.rows[num_stepping_++] = {slot.cache.data(), slot.position};
    }
    is_drawn_.assign(streams_.size(), 0);
  }

  void work(const Worker& worker) {
    if (num_stepping_) run_layers(worker, model_.talker, num_stepping_, 1);
    draw_code_0(worker);
    if (std::count(is_drawn_.begin(), is_drawn_.end(), 1) == 0) return;
    for (int group = 1; group < model_.num_code_groups; ++group) draw_code(worker, group);
  }

  void draw_code_0(const Worker& worker) {
    const Stack& stack = model_.talker;
    const int hidden_size = stack.hidden_size, num_streams = int(streams_.size());
    // Streams that took a step have their hidden states in model.x, in the order of the streams.
    const auto hidden = [&](int which, float* to) {
      const Slot& slot = this->slot(streams_[which]);
      if (slot.frame == 0)
        return static_cast<void>(std::copy_n(slot.hidden.data(), hidden_size, to));
      int row = 0;
      for (int i = 0; i < which; ++i) row += this->slot(streams_[i]).frame > 0;
      rms_norm(to, model_.x.data() + size_t(row) * hidden_size, stack.final_norm.data(),
               hidden_size, stack.rms_norm_eps);
    };
    worker.scratch().inputs.set(model_.codec_head, num_streams, hidden);
    head_stage(worker, model_.codec_head, model_.vocab_size);
    const Share share = worker.share(num_streams);
    for (int which = share.first; which < share.end; ++which) {
      const int stream = streams_[which];
      Slot& slot = this->slot(stream);
      hidden(which, model_.code_inputs.data() + size_t(2 * which) * hidden_size);
      float* logits = model_.logits.data() + size_t(which) * model_.vocab_size;
      if (request_.talker_logits)
        std::copy_n(logits, model_.vocab_size,
                    request_.talker_logits + place(stream) * model_.vocab_size);
      mask(slot, logits);
      const int code = draw(logits, model_.vocab_size, slot.options.talker, slot.options,
                            slot.frame, 0, worker.scratch().draw.data());
      keep(stream, 0, code);
      // An ended stream goes through the frame like the others, but finish() discards its codes.
      is_drawn_[which] = request_.forced || code != model_.codec_eos_id;
      float* input = model_.code_inputs.data() + size_t(2 * which + 1) * hidden_size;
      std::fill_n(input, hidden_size, 0.0f);
      model_.add_embedding(input, 0, next_code(stream, 0));
      for (int i : {0, 1}) model_.rows[2 * which + i] = {slot.code_cache.data(), i};
    }
    worker.barrier();
  }

  // Runs the predictor's pass for code `group`; its inputs are in model.code_inputs.
  void draw_code(const Worker& worker, int group) {
    const Stack& stack = model_.predictor;
    const int num_streams = int(streams_.size()), per_stream = group == 1 ? 2 : 1;
    const int num_rows = per_stream * num_streams, hidden_size = stack.hidden_size;
    if (model_.projection.num_blocks) {
      worker.set_inputs(model_.projection, model_.code_inputs.data(), num_rows);
      worker.multiply(model_.projection, [&](int block, int row, const float* sums) {
        const int first = block * kBlockRows, count = std::min(kBlockRows, hidden_size - first);
        float* to = model_.x.data() + size_t(row) * hidden_size + first;
        for (int i = 0; i < count; ++i) to[i] = sums[i] + model_.projection_bias[first + i];
      });
    } else {
      const Share rows = worker.share(num_rows);
      std::copy(model_.code_inputs.begin() + size_t(rows.first) * hidden_size,
                model_.code_inputs.begin() + size_t(rows.end) * hidden_size,
                model_.x.begin() + size_t(rows.first) * hidden_size);
    }
    worker.barrier();
    run_layers(worker, stack, num_rows, per_stream);
    const Matrix& head = model_.lm_heads[group - 1];
    worker.scratch().inputs.set(head, num_streams, [&](int which, float* to) {
      const size_t row = size_t(which) * per_stream + per_stream - 1;
      rms_norm(to, model_.x.data() + row * hidden_size, stack.final_norm.data(), hidden_size,
               stack.rms_norm_eps);
    });
    head_stage(worker, head, model_.code_vocab_size);
    const Share share = worker.share(num_streams);
    for (int which = share.first; which < share.end; ++which) {
      const int stream = streams_[which], n = model_.code_vocab_size;
      Slot& slot = this->slot(stream);
      const float* logits = model_.logits.data() + size_t(which) * n;
      if (request_.code_logits)
        std::copy_n(
            logits, n,
            request_.code_logits + (place(stream) * (model_.num_code_groups - 1) + group - 1) * n);
      keep(stream, group,
           draw(logits, n, slot.options.predictor, slot.options, slot.frame, group,
                worker.scratch().draw.data()));
      float* input = model_.code_inputs.data() + size_t(which) * model_.talker.hidden_size;
      std::fill_n(input, model_.talker.hidden_size, 0.0f);
      model_.add_embedding(input, group, next_code(stream, group));
      model_.rows[which] = {slot.code_cache.data(), group + 1};
    }
    worker.barrier();
  }

  // Applies the repetition penalty to the logits of code 0, and masks its banned ids.
  void mask(const Slot& slot, float* logits) const {
    const float penalty = slot.options.talker.repetition_penalty;
    for (int i = 0; i < model_.vocab_size; ++i) {
      if (slot.seen[i] && penalty != 1)
        logits[i] = logits[i] < 0 ? logits[i] * penalty : logits[i] / penalty;
      const bool is_banned =
          i == model_.codec_eos_id ? slot.frame < model_.min_frames : i >= model_.suppressed_from;
      if (is_banned && logits[i] == logits[i]) logits[i] = -INFINITY;
    }
  }

  void keep(int stream, int group, int code) {
    if (code == kNotFinite && request_.bad_codebook[stream] < 0)
      request_.bad_codebook[stream] = group;
    request_.codes[place(stream) * model_.num_code_groups + group] = std::max(code, 0);
  }

  // Stores and returns the code to continue with: the drawn one, unless the caller forces codes.
  int next_code(int stream, int group) const {
    const size_t at = place(stream) * model_.num_code_groups + group;
    const int code = request_.forced ? request_.forced[at] : request_.codes[at];
    return slot(stream).codes[group] = code;
  }

  void finish(int stream) {
    Slot& slot = this->slot(stream);
    slot.position += slot.frame > 0;
    const size_t which = std::find(streams_.begin(), streams_.end(), stream) - streams_.begin();
    const bool is_lost = request_.bad_codebook[stream] >= 0;
    if (is_lost || !is_drawn_[which]) {
      request_.ended[stream] = !is_lost;
      std::fill_n(request_.codes + place(stream) * model_.num_code_groups, model_.num_code_groups,
                  0);
      return;
    }
    slot.seen[slot.codes[0]] = 1;
    ++slot.frame, ++request_.num_done[stream];
  }

  Model& model_;
  const StepRequest& request_;
  const int index_;
  const std::vector<int>& streams_;
  int num_stepping_ = 0;
  std::vector<uint8_t> is_drawn_;
};

// Runs frames until all are drawn, all streams have ended or had bad logits, or the caller cancels.
inline void run_step(Model& model, const StepRequest& request) {
  for (int i = 0; i < request.num_streams; ++i)
    request.num_done[i] = request.ended[i] = 0, request.bad_codebook[i] = -1;
  for (int index = 0; index < request.num_frames && !model.is_cancelled; ++index) {
    std::vector<int> streams;
    for (int i = 0; i < request.num_streams; ++i)
      if (!request.ended[i] && request.bad_codebook[i] < 0) streams.push_back(i);
    if (streams.empty()) break;
    Frame(model, request, index, streams).run();
  }
  model.is_cancelled = false;
}

}  // namespace qwen_tts
