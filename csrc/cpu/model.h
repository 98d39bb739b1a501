// A loaded model: the caller's packed matrices, small vectors, and the state of each slot.
#pragma once
#include <sys/mman.h>

#include <atomic>
#include <memory>
#include <new>
#include <vector>

#include "attention.h"
#include "matrix.h"
#include "pool.h"
#include "product.h"

namespace qwen_tts {

constexpr int kPassRows = 48;              // rows of a prompt that share a pass over the weights
constexpr int kGateRows = kBlockRows / 2;  // gate and up take turns

struct Layer {
  Matrix qkv;  // rows of q, then of k, then of v
  Matrix o;
  Matrix gate_up;  // a block has 16 rows of gate, then the same rows of up
  Matrix down;
  std::vector<float> input_norm, post_norm, q_norm, k_norm;
  std::vector<float> qkv_bias;  // empty if the model has none
};

struct Stack {
  int hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, max_positions;
  float rms_norm_eps;
  std::vector<float> rope_cos, rope_sin;  // [max_positions, head_dim / 2]
  std::vector<Layer> layers;
  std::vector<float> final_norm;

  int heads_per_key() const { return num_heads / num_kv_heads; }
  int q_size() const { return num_heads * head_dim; }
  int kv_size() const { return num_kv_heads * head_dim; }
  int qkv_stride() const { return layers[0].qkv.num_blocks * kBlockRows; }

  size_t head_floats() const { return size_t(max_positions) * head_dim; }
  size_t cache_floats() const { return layers.size() * 2 * num_kv_heads * head_floats(); }
  float* keys(float* cache, int layer, int kv_head) const {
    return cache + (size_t(layer) * 2 * num_kv_heads + kv_head) * head_floats();
  }
  float* values(float* cache, int layer, int kv_head) const {
    return keys(cache, layer, num_kv_heads + kv_head);
  }
  // The numbers of a position's key are kKeyBlock apart; the numbers of its value are adjacent.
  float* key(float* cache, int layer, int kv_head, int position) const {
    return keys(cache, layer, kv_head) + size_t(position / kKeyBlock) * kKeyBlock * head_dim +
           position % kKeyBlock;
  }
  float* value(float* cache, int layer, int kv_head, int position) const {
    return values(cache, layer, kv_head) + size_t(position) * head_dim;
  }
};

// Zeros whose pages take memory only once they are written: most streams do not fill their caches.
// The pages are small even where the system uses huge ones for everything, because the first number
// of a head would then take a whole huge page.
class LazyFloats {
 public:
  explicit LazyFloats(size_t count) : bytes_(std::max(count, size_t{1}) * sizeof(float)) {
    void* memory =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<float*>(memory);
#ifdef MADV_NOHUGEPAGE
    madvise(memory_, bytes_, MADV_NOHUGEPAGE);
#endif
  }
  ~LazyFloats() { munmap(memory_, bytes_); }
  LazyFloats(const LazyFloats&) = delete;
  LazyFloats& operator=(const LazyFloats&) = delete;
  float* data() const { return memory_; }

 private:
  size_t bytes_;
  float* memory_;
};

struct Slot {
  explicit Slot(size_t cache_floats, size_t code_cache_floats)
      : cache(cache_floats), code_cache(code_cache_floats) {}

  LazyFloats cache, code_cache;  // keys and values of the talker, of the code predictor
  StreamOptions options{};
  std::vector<float> hidden, pad, text;  // text: rows [.., hidden_size]
  std::vector<uint8_t> seen;             // code-0 tokens drawn in this part
  std::vector<int> codes;                // of the previous frame
  int position = 0, frame = 0;
};

// A row of a pass: its slot's cache, and its position there.
struct Row {
  float* cache;
  int position;
};

// The memory that only one worker writes.
struct Scratch {
  Inputs inputs;
  std::vector<float> scores, draw;
};

struct Model {
  Pool* pool;
  int num_code_groups, vocab_size, code_vocab_size;
  int codec_eos_id, suppressed_from, min_frames;
  Stack talker, predictor;
  Matrix codec_head, projection;  // projection has no blocks if the model has no projection
  std::vector<float> projection_bias;
  std::vector<Matrix> lm_heads;
  std::vector<MatrixSource> code_tables;  // in the caller's memory
  std::vector<std::unique_ptr<Slot>> slots;
  std::atomic<bool> is_cancelled{false};

  // The workers of a pass share these: one stage writes them, the stages after a barrier read them.
  std::vector<float> x, qkv, attention, mlp, logits, code_inputs;
  std::vector<Row> rows;
  std::vector<Scratch> scratch;  // by worker

  // Adds row `code` of a table [.., hidden_size] of embeddings to `to`.
  void add_embedding(float* to, int group, int code) const {
    const MatrixSource& table = code_tables[group];
    const size_t first = size_t(code) * table.num_cols;
    if (table.format == kSourceFloat32) {
      const float* row = static_cast<const float*>(table.values) + first;
      for (int i = 0; i < table.num_cols; ++i) to[i] += row[i];
    } else {
      const uint16_t* row = static_cast<const uint16_t*>(table.values) + first;
      for (int i = 0; i < table.num_cols; ++i) to[i] += widen_bf16(row[i]);
    }
  }
};

// Copies the keys and values of a position out of a cache into `kept`, or the other way.
inline void copy_cache(const Stack& stack, float* cache, int position, float* kept, bool to_cache) {
  const auto copy = [=](float& cached, float& copied) {
    to_cache ? cached = copied : copied = cached;
  };
  for (size_t layer = 0; layer < stack.layers.size(); ++layer)
    for (int head = 0; head < stack.num_kv_heads; ++head) {
      float* key = stack.key(cache, int(layer), head, position);
      float* value = stack.value(cache, int(layer), head, position);
      for (int d = 0; d < stack.head_dim; ++d) copy(key[size_t(d) * kKeyBlock], *kept++);
      for (int d = 0; d < stack.head_dim; ++d) copy(value[d], *kept++);
    }
}

inline Layer make_layer(const StackSource& source, int index) {
  const MatrixSource* m = source.matrices + index * 4;
  const float* const* v = source.vectors + index * 7;
  const int q_size = source.num_heads * source.head_dim;
  const int kv_size = source.num_kv_heads * source.head_dim;
  Layer layer;
  layer.qkv = make_matrix(m[0]), layer.o = make_matrix(m[1]);
  layer.gate_up = make_matrix(m[2], 2), layer.down = make_matrix(m[3]);
  layer.input_norm.assign(v[0], v[0] + source.hidden_size);
  layer.post_norm.assign(v[1], v[1] + source.hidden_size);
  if (v[2]) {
    layer.q_norm.assign(v[2], v[2] + source.head_dim);
    layer.k_norm.assign(v[3], v[3] + source.head_dim);
  }
  if (v[4]) {
    layer.qkv_bias.assign(v[4], v[4] + q_size);
    for (int i : {5, 6}) layer.qkv_bias.insert(layer.qkv_bias.end(), v[i], v[i] + kv_size);
  }
  return layer;
}

inline Stack make_stack(const StackSource& source) {
  Stack stack;
  stack.hidden_size = source.hidden_size, stack.intermediate_size = source.intermediate_size;
  stack.num_heads = source.num_heads, stack.num_kv_heads = source.num_kv_heads;
  stack.head_dim = source.head_dim;
  stack.max_positions = (source.max_positions + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  stack.rms_norm_eps = source.rms_norm_eps;
  const size_t num_angles = size_t(source.max_positions) * source.head_dim / 2;
  stack.rope_cos.assign(source.rope_cos, source.rope_cos + num_angles);
  stack.rope_sin.assign(source.rope_sin, source.rope_sin + num_angles);
  for (int i = 0; i < source.num_layers; ++i) stack.layers.push_back(make_layer(source, i));
  stack.final_norm.assign(source.final_norm, source.final_norm + source.hidden_size);
  return stack;
}

// Packs matrices into one; see qwen_cpu_pack.
inline void pack(Pool& pool, const MatrixSource* parts, int num_parts, bool take_turns,
                 uint8_t* packed) {
  const std::vector<SourceRow> rows = rows_of(parts, num_parts, take_turns);
  Matrix matrix = make_matrix(parts[0]);
  matrix.num_blocks = int(rows.size()) / kBlockRows;
  // The workers that will read a page write it first, so that it lies in their own memory.
  pool.run([&](int worker, int num_workers) {
    const Share share = share_of(matrix.num_blocks, worker, num_workers);
    for (int i = share.first; i < share.end; ++i)
      pack_block(matrix, rows.data() + size_t(i) * kBlockRows, packed + i * matrix.block_bytes());
  });
}

inline std::unique_ptr<Model> make_model(Pool* pool, const ModelSource& source) {
  auto model = std::make_unique<Model>();
  model->pool = pool;
  model->num_code_groups = source.num_code_groups;
  model->vocab_size = source.codec_head.num_rows;
  model->code_vocab_size = source.lm_heads[0].num_rows;
  model->codec_eos_id = source.codec_eos_id, model->suppressed_from = source.suppressed_from;
  model->min_frames = source.min_frames;
  model->talker = make_stack(source.talker), model->predictor = make_stack(source.predictor);
  model->codec_head = make_matrix(source.codec_head);
  if (source.projection.num_rows) {
    model->projection = make_matrix(source.projection);
    model->projection_bias.assign(source.projection_bias,
                                  source.projection_bias + source.projection.num_rows);
  }
  for (int i = 0; i < source.num_code_groups - 1; ++i)
    model->lm_heads.push_back(make_matrix(source.lm_heads[i]));
  model->code_tables.assign(source.code_tables, source.code_tables + source.num_code_groups);

  const Stack &talker = model->talker, &predictor = model->predictor;
  const size_t num_rows = std::max(kPassRows, 2 * source.num_slots);
  const auto widest = [&](auto size) { return size_t(std::max(size(talker), size(predictor))); };
  const size_t hidden = widest([](const Stack& s) { return s.hidden_size; });
  const size_t q_size = widest([](const Stack& s) { return s.q_size(); });
  const size_t inner = widest([](const Stack& s) { return s.intermediate_size; }) + kGateRows;
  const size_t vocab = std::max(model->vocab_size, model->code_vocab_size) + kBlockRows;
  model->x.resize(num_rows * (hidden + kBlockRows));
  model->code_inputs.resize(num_rows * talker.hidden_size);
  model->qkv.resize(num_rows * widest([](const Stack& s) { return s.qkv_stride(); }));
  model->attention.resize(num_rows * q_size), model->mlp.resize(num_rows * inner);
  model->logits.resize(source.num_slots * vocab);
  model->rows.resize(num_rows);
  model->scratch.resize(pool->num_threads());
  for (Scratch& scratch : model->scratch) {
    scratch.inputs.reserve(int(num_rows), int(std::max({hidden, q_size, inner})));
    scratch.scores.resize(widest([](const Stack& s) { return s.max_positions; }) + kKeyBlock);
    scratch.draw.resize(2 * vocab);
  }
  for (int i = 0; i < source.num_slots; ++i)
    model->slots.push_back(std::make_unique<Slot>(talker.cache_floats(), predictor.cache_floats()));
  return model;
}

}  // namespace qwen_tts
