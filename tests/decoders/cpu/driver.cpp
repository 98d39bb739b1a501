// Runs the CPU decoder and vocoder through their C interfaces on random weights, and prints codes,
// logits and samples.
//
// Tests compile it together with the sources of both: with sanitizers, which cannot watch a library
// inside Python, and for other processors, which an emulator then plays.
//
//   driver THREADS [fork | starve]    starve: make every call with each of its allocations failing
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cpu_decoder.h"
#include "cpu_vocoder.h"

// How many allocations succeed before one fails, over all threads; negative: none fails.
static std::atomic<int> failing{-1};

static void* allocate(size_t size, size_t align) {
  void* memory = nullptr;
  if (failing.load() >= 0 && failing.fetch_sub(1) == 0) throw std::bad_alloc();
  if (posix_memalign(&memory, align, size)) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t size) { return allocate(size, 16); }
void* operator new(size_t size, std::align_val_t align) { return allocate(size, size_t(align)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace {

constexpr int kGroups = 4, kVocab = 72, kCodes = 40, kEos = 70, kSlots = 6, kPositions = 96;

// Returns a number in -1 .. 1; the sequence is the same on every machine.
uint32_t state;
float random_value() {
  state = state * 1664525u + 1013904223u;
  return float(state >> 8) / float(1 << 23) - 1.0f;
}

struct Kind {
  const char* name;
  int32_t format, group;
};

// A model's weights, kept alive, and the structs that point to them.
class Weights {
 public:
  Weights(Kind kind, int hidden, int code_hidden, bool has_bias) : kind_(kind) {
    state = 1;
    // The narrowest and the widest heads.
    model_.talker = stack(hidden, 80, 2, 4, 2, has_bias ? 256 : 32, kPositions, has_bias);
    model_.predictor = stack(code_hidden, 48, 1, 2, 1, 48, kGroups, false);
    model_.num_code_groups = kGroups, model_.codec_eos_id = kEos;
    model_.suppressed_from = kCodes, model_.min_frames = 2, model_.num_slots = kSlots;
    model_.codec_head = matrix(kVocab, hidden);
    if (hidden != code_hidden) {
      model_.projection = matrix(code_hidden, hidden);
      model_.projection_bias = floats(code_hidden, 0.1f);
    }
    for (int i = 1; i < kGroups; ++i) heads_.push_back(matrix(kCodes, code_hidden));
    const Kind kind_of_tables = {"", kind.format == kSourceBf16 ? kSourceBf16 : kSourceFloat32, 0};
    kind_ = kind_of_tables;
    for (int i = 0; i < kGroups; ++i) tables_.push_back(matrix(i ? kCodes : kVocab, hidden));
    model_.lm_heads = heads_.data(), model_.code_tables = tables_.data();
  }
  const ModelSource& model() const { return model_; }

 private:
  const float* floats(int count, float size, float middle = 0) {
    floats_.emplace_back(count);
    for (float& each : floats_.back()) each = middle + size * random_value();
    return floats_.back().data();
  }

  MatrixSource matrix(int num_rows, int num_cols) {
    const size_t count = size_t(num_rows) * num_cols;
    const float size = 1.5f / std::sqrt(float(num_cols));
    bytes_.emplace_back(count * (kind_.format == kSourceFloat32 ? 4 : 2));
    void* values = bytes_.back().data();
    for (size_t i = 0; i < count; ++i) {
      const float value = random_value();
      uint32_t bits;
      const float scaled = value * size;
      static_assert(sizeof bits == sizeof scaled, "");
      __builtin_memcpy(&bits, &scaled, sizeof bits);
      if (kind_.format == kSourceFloat32) static_cast<float*>(values)[i] = scaled;
      if (kind_.format == kSourceBf16) static_cast<uint16_t*>(values)[i] = uint16_t(bits >> 16);
      if (kind_.format == kSourceInt8) static_cast<int8_t*>(values)[i] = int8_t(value * 127);
      if (kind_.format == kSourceInt4)
        static_cast<int8_t*>(values)[i] = int8_t(std::floor(value * 8));
      if (kind_.format == kSourceInt6)
        static_cast<int8_t*>(values)[i] = int8_t(std::floor(value * 32));
    }
    const float* scales = nullptr;
    if (kind_.format != kSourceFloat32 && kind_.format != kSourceBf16) {
      const int per_row = kind_.group ? (num_cols + kind_.group - 1) / kind_.group : 1;
      floats_.emplace_back(size_t(num_rows) * per_row);
      for (float& each : floats_.back()) each = 0x1p-10f * float(8 + (state = state * 5 + 3) % 8);
      scales = floats_.back().data();
    }
    return {values, scales, num_rows, num_cols, kind_.format, kind_.group};
  }

  StackSource stack(int hidden, int inner, int num_layers, int num_heads, int num_kv_heads,
                    int head_dim, int num_positions, bool has_bias) {
    matrices_.emplace_back(), vectors_.emplace_back();
    auto& matrices = matrices_.back();
    auto& vectors = vectors_.back();
    const int q_size = num_heads * head_dim, kv_size = num_kv_heads * head_dim;
    for (int layer = 0; layer < num_layers; ++layer) {
      for (int rows : {q_size, kv_size, kv_size}) matrices.push_back(matrix(rows, hidden));
      matrices.push_back(matrix(hidden, q_size));
      for (int i = 0; i < 2; ++i) matrices.push_back(matrix(inner, hidden));
      matrices.push_back(matrix(hidden, inner));
      for (int size : {hidden, hidden, head_dim, head_dim})
        vectors.push_back(floats(size, 0.2f, 1.0f));
      for (int size : {q_size, kv_size, kv_size})
        vectors.push_back(has_bias ? floats(size, 0.1f) : nullptr);
    }
    std::vector<float> cosines, sines;
    for (int position = 0; position < num_positions; ++position)
      for (int i = 0; i < head_dim / 2; ++i) {
        const double angle = position * std::pow(1e4, -2.0 * i / head_dim);
        cosines.push_back(float(std::cos(angle))), sines.push_back(float(std::sin(angle)));
      }
    floats_.push_back(cosines);
    const float* cosine = floats_.back().data();
    floats_.push_back(sines);
    const float* sine = floats_.back().data();
    return {hidden,
            inner,
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            num_positions,
            1e-6f,
            cosine,
            sine,
            matrices.data(),
            vectors.data(),
            floats(hidden, 0.2f, 1.0f)};
  }

  Kind kind_;
  ModelSource model_{};
  std::deque<std::vector<float>> floats_;
  std::deque<std::vector<char>> bytes_;
  std::deque<std::vector<MatrixSource>> matrices_;
  std::deque<std::vector<const float*>> vectors_;
  std::vector<MatrixSource> heads_, tables_;
};

void expect(bool is_true, const char* what) {
  if (is_true) return;
  std::printf("FAILED: %s\n", what);
  std::exit(1);
}

// A model whose matrices are packed, each in memory of its own: a sanitizer reports reads past it.
class Packed {
 public:
  Packed(void* pool, const ModelSource& source) : pool_(pool), model_(source) {
    for (StackSource* stack : {&model_.talker, &model_.predictor}) {
      matrices_.emplace_back();
      for (int layer = 0; layer < stack->num_layers; ++layer) {
        const MatrixSource* m = stack->matrices + layer * 7;
        matrices_.back().push_back(pack(m, 3, false));
        matrices_.back().push_back(pack(m + 3, 1, false));
        matrices_.back().push_back(pack(m + 4, 2, true));
        matrices_.back().push_back(pack(m + 6, 1, false));
      }
      stack->matrices = matrices_.back().data();
    }
    model_.codec_head = pack(&source.codec_head, 1, false);
    if (source.projection.num_rows) model_.projection = pack(&source.projection, 1, false);
    for (int i = 1; i < kGroups; ++i) heads_.push_back(pack(source.lm_heads + i - 1, 1, false));
    model_.lm_heads = heads_.data();
  }
  ~Packed() {
    for (void* each : memory_) std::free(each);
  }
  Packed(const Packed&) = delete;
  Packed& operator=(const Packed&) = delete;
  const ModelSource& model() const { return model_; }

 private:
  MatrixSource pack(const MatrixSource* parts, int num_parts, bool take_turns) {
    MatrixSource packed = *parts;
    packed.num_rows = 0;
    for (int i = 0; i < num_parts; ++i) packed.num_rows += parts[i].num_rows;
    memory_.push_back(nullptr);
    const int64_t bytes = qwen_cpu_packed_bytes(&packed, take_turns ? num_parts : 1);
    expect(!posix_memalign(&memory_.back(), 64, bytes), "memory");
    expect(qwen_cpu_pack(pool_, parts, num_parts, take_turns, memory_.back()) == kDone, "packing");
    packed.values = memory_.back(), packed.scales = nullptr;
    return packed;
  }

  void* pool_;
  ModelSource model_;
  std::deque<std::vector<MatrixSource>> matrices_;
  std::vector<MatrixSource> heads_;
  std::vector<void*> memory_;
};

// Repeats a call: first its first allocation fails, then its second, and so on until none fails.
// The call must report each failure.
void starve(const char* what, const std::function<int32_t()>& call) {
  int num_failed = 0;
  for (bool is_over = false; !is_over; ++num_failed) {
    failing = num_failed;
    const int32_t status = call();
    is_over = failing >= 0;
    failing = -1;
    expect(status == (is_over ? kDone : kOutOfMemory), what);
  }
  std::printf("%s: %d allocations\n", what, num_failed - 1);
}

// Draws frames of some slots and prints them.
void step(void* decoder, const std::vector<int>& slots, int num_frames) {
  const size_t num = slots.size(), frames = num * num_frames;
  std::vector<int> codes(frames * kGroups), done(num), ended(num), bad(num);
  std::vector<float> talker(frames * kVocab), code(frames * (kGroups - 1) * kCodes);
  const StepRequest request = {slots.data(), int(num),     num_frames, nullptr,       codes.data(),
                               done.data(),  ended.data(), bad.data(), talker.data(), code.data()};
  expect(qwen_cpu_decoder_step(decoder, &request) == kDone, "a step");
  for (size_t i = 0; i < num; ++i) {
    expect(bad[i] < 0, "finite logits");
    std::printf("slot %d frames %d ended %d codes", slots[i], done[i], ended[i]);
    for (int k = 0; k < done[i] * kGroups; ++k)
      std::printf(" %d", codes[i * num_frames * kGroups + k]);
    std::printf("\nlogits");
    for (int k = 0; k < done[i] * kVocab; k += 7)
      std::printf(" %.7g", talker[i * num_frames * kVocab + k]);
    for (int k = 0; k < done[i] * (kGroups - 1) * kCodes; k += 5)
      std::printf(" %.7g", code[i * num_frames * (kGroups - 1) * kCodes + k]);
    std::printf("\n");
  }
}

// Draws frames while another thread cancels steps at random moments; no frame may be lost.
void race(void* decoder) {
  std::atomic<bool> is_over{false};
  std::thread canceller([&] {
    while (!is_over) {
      qwen_cpu_decoder_cancel(decoder);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  const std::vector<int> forced(20 * kGroups, 1);
  int slots[] = {5}, done[1] = {0}, ended[1], bad[1], codes[20 * kGroups];
  for (int num_done = 0; num_done < 20; num_done += done[0]) {
    StepRequest request = {slots, 1, 20 - num_done, forced.data(), codes, done, ended, bad, 0, 0};
    expect(qwen_cpu_decoder_step(decoder, &request) == kDone && bad[0] < 0, "a cancelled step");
  }
  is_over = true;
  canceller.join();
}

// Runs a prompt that is not a number: the first codebook is reported.
void find_nan(void* decoder, int hidden) {
  const std::vector<float> rows(size_t(5) * hidden, NAN);
  const StreamOptions options = {{1.0f, 1.0f, 1.0f, 0, 0}, {1.0f, 1.0f, 1.0f, 0, 0}, 1, 1};
  expect(qwen_cpu_decoder_prefill(decoder, 0, &options, rows.data(), 5, 0, rows.data()) == kDone,
         "a prompt of NaN");
  int slots[] = {0}, done[1], ended[1], bad[1], codes[kGroups];
  const StepRequest request = {slots, 1, 1, nullptr, codes, done, ended, bad, nullptr, nullptr};
  expect(qwen_cpu_decoder_step(decoder, &request) == kDone, "a step of NaN");
  expect(bad[0] == 0 && !done[0] && !ended[0], "logits that are not finite");
}

void speak(void* pool, const ModelSource& source) {
  void* decoder = nullptr;
  const Packed packed(pool, source);
  const ModelSource& model = packed.model();
  expect(qwen_cpu_decoder_create(pool, &model, &decoder) == kDone, "making the decoder");
  const int hidden = model.talker.hidden_size;
  std::vector<float> rows(size_t(kPositions) * hidden);
  state = 8;  // no two logits are so close that plain code, which rounds otherwise, draws another
  for (float& each : rows) each = random_value();
  for (int slot = 0; slot < kSlots; ++slot) {
    // The prompts of slots 4 and 5 begin like that of slot 3, and take its keys and values.
    const int length = 5 + 17 * (slot < 4 ? slot : 3) + slot / 4, kept = slot < 4 ? 0 : 40;
    const StreamOptions options = {
        {0.9f, slot % 2 ? 0.8f : 1.0f, 1.05f, slot == 2 ? 0 : 9, slot != 0},
        {0.8f, 1.0f, 1.0f, 7, slot != 0},
        1,
        uint64_t(slot)};
    const StackSource& talker = model.talker;
    std::vector<float> copied(2 * talker.num_layers * talker.num_kv_heads * talker.head_dim);
    for (int position = 0; position < kept; ++position) {
      qwen_cpu_decoder_copy_cache(decoder, 3, position, copied.data(), 0);
      qwen_cpu_decoder_copy_cache(decoder, slot, position, copied.data(), 1);
    }
    expect(qwen_cpu_decoder_prefill(decoder, slot, &options, rows.data(), length, kept,
                                    rows.data() + hidden) == kDone,
           "a prompt");
    expect(qwen_cpu_decoder_write_text(decoder, slot, rows.data() + 2 * hidden, slot) == kDone,
           "text");
  }
  step(decoder, {0}, 2);
  step(decoder, {0, 1, 2, 3, 4, 5}, 3);
  step(decoder, {4, 2}, 2);
  std::thread canceller([=] { qwen_cpu_decoder_cancel(decoder); });
  canceller.join();
  step(decoder, {1, 3}, 2);  // cancelled: ends before its first frame
  step(decoder, {1, 3}, 2);
  find_nan(decoder, hidden);
  race(decoder);
  qwen_cpu_decoder_destroy(decoder);
}

StreamOptions sampled(uint64_t seed) {
  return {{0.9f, 0.8f, 1.05f, 9, 1}, {0.8f, 0.9f, 1.0f, 7, 1}, 1, seed};
}

// Makes a decoder, runs a prompt, adds text and draws a frame; in each, each allocation fails once.
void starve_decoder(const ModelSource& source) {
  void *pool = nullptr, *decoder = nullptr;
  starve("a pool", [&] { return (pool = qwen_cpu_pool_create(3)) ? kDone : kOutOfMemory; });
  const Packed packed(pool, source);
  const ModelSource& model = packed.model();
  void* again = std::malloc(size_t(qwen_cpu_packed_bytes(model.lm_heads, 1)));
  starve("packing", [&] { return qwen_cpu_pack(pool, source.lm_heads, 1, 0, again); });
  std::free(again);
  starve("a decoder", [&] { return qwen_cpu_decoder_create(pool, &model, &decoder); });
  const int hidden = model.talker.hidden_size, length = 20;
  const std::vector<float> rows(size_t(length) * hidden, 0.5f);
  const StreamOptions options = sampled(3);
  starve("a prompt", [&] {
    return qwen_cpu_decoder_prefill(decoder, 0, &options, rows.data(), length, 0, rows.data());
  });
  starve("text", [&] { return qwen_cpu_decoder_write_text(decoder, 0, rows.data(), 9); });
  int slots[] = {0}, done[1], ended[1], bad[1], codes[2 * kGroups];
  const StepRequest request = {slots, 1, 2, nullptr, codes, done, ended, bad, nullptr, nullptr};
  starve("a step", [&] { return qwen_cpu_decoder_step(decoder, &request); });
  expect(done[0] == 2 || ended[0], "frames behind all that");
  qwen_cpu_decoder_destroy(decoder);
  qwen_cpu_pool_destroy(pool);
}

// A vocoder and the states of its streams. Its first block has 64 channels, so that transforms are
// used, and the next has 24.
class Vocoder {
 public:
  enum Stored { kFloat32, kRounded, kFloat16 };  // kRounded: float32 with the values of float16
  explicit Vocoder(void* pool, bool is_starved = false, Stored stored = kFloat32)
      : is_starved_(is_starved) {
    state = 3;
    source_.num_codebooks = 3, source_.codebook_size = 20, source_.codebook_dim = 6;
    source_.tables = reinterpret_cast<const uint8_t*>(floats(3 * 20 * 6, 0.5f));
    source_.num_layers = 2, source_.num_heads = 4, source_.num_kv_heads = 2, source_.head_dim = 6;
    source_.num_past = 7, source_.max_frames = 8;
    source_.rms_norm_eps = 1e-5f, source_.layer_norm_eps = 1e-6f;
    source_.rope_cos = floats(15 * 6, 1), source_.rope_signed_sin = floats(15 * 6, 1);
    source_.num_keys = reserve(1);
    source_.num_upsamplings = source_.num_blocks = 2, source_.units_per_block = 1;
    source_.samples_per_frame = 2 * 2 * 3 * 2;
    add(1, 12, 20), add(3, 20, 20), add(1, 20, 16);
    for (int layer = 0; layer < source_.num_layers; ++layer) {
      add(1, 16, 48, 1, 1, false);
      convolutions_.back().history = reserve(7 * 24);
      add(1, 24, 16, 1, 1, false), add(1, 16, 28, 2, 1, false), add(1, 28, 16, 1, 1, false);
      for (int i = 0; i < 4; ++i) vectors_.push_back(floats(16, 0.2f, 0.8f));
    }
    vectors_.push_back(floats(16, 0.2f, 1.0f));
    add(1, 16, 20);
    for (int i = 0; i < 2; ++i) {
      add(1, 20, 20, 2), add(7, 20, 0), add(1, 20, 80), add(1, 80, 20);
      for (float middle : {1.0f, 0.0f, 0.5f}) vectors_.push_back(floats(20, 0.2f, middle));
    }
    add(7, 20, 64);
    add(2, 64, 64, 3, 1, true), add(7, 64, 64, 1, 3, true), add(1, 64, 64, 1, 1, true);
    add(2, 64, 24, 2, 1, true), add(7, 24, 24, 1, 9, true), add(1, 24, 24, 1, 1, true);
    add(7, 24, 1, 1, 1, true);
    source_.convolutions = convolutions_.data(), source_.vectors = vectors_.data();
    int64_t num_bytes = 1;
    const auto measure = [&] { return qwen_cpu_vocoder_packed_bytes(&source_, &num_bytes); };
    if (is_starved) starve("the size of a vocoder", measure);
    expect((is_starved || measure() == kDone) && num_bytes % 64 == 0, "a size for files");
    packed_.reset(static_cast<uint8_t*>(std::aligned_alloc(64, num_bytes)));
    source_.packed = packed_.get();
    const auto pack = [&] { return qwen_cpu_vocoder_pack(pool, &source_, packed_.get()); };
    if (is_starved) starve("packing a vocoder", pack);
    expect(is_starved || pack() == kDone, "packing a vocoder");
    if (stored != kFloat32) round(num_bytes / 4, stored == kFloat16);
    const auto make = [&] { return qwen_cpu_vocoder_create(pool, &source_, &handle_); };
    if (is_starved) starve("a vocoder", make);
    expect(is_starved || make() == kDone, "making the vocoder");
  }
  ~Vocoder() { qwen_cpu_vocoder_destroy(handle_); }

  // Decodes random codes of new streams in chunks of these lengths, and prints the samples.
  void decode(int num_streams, int num_silent, const std::vector<int>& chunks) {
    std::vector<std::vector<float>> states(num_streams, std::vector<float>(num_values_));
    std::vector<float*> addresses;
    for (auto& each : states) addresses.push_back(each.data());
    for (int num_frames : chunks) {
      std::vector<int32_t> codes(num_streams * num_frames * source_.num_codebooks);
      for (int32_t& each : codes) each = int32_t((random_value() + 1) * 9.99f);
      std::vector<float> pcm(num_streams * (num_frames - num_silent) * source_.samples_per_frame);
      const VocoderRequest request = {codes.data(), addresses.data(), num_streams,
                                      num_frames,   num_silent,       pcm.data()};
      const auto step = [&] { return qwen_cpu_vocoder_step(handle_, &request); };
      if (is_starved_) starve("a chunk", step);
      expect(step() == kDone, "a chunk");
      codes.back() = source_.codebook_size;
      expect(qwen_cpu_vocoder_step(handle_, &request) == kBadCode, "a bad code");
      std::printf("samples");
      for (float each : pcm) std::printf(" %.7g", each);
      std::printf("\n");
    }
  }

 private:
  const float* floats(int count, float size, float middle = 0) {
    floats_.emplace_back(count);
    for (float& each : floats_.back()) each = middle + size * random_value();
    return floats_.back().data();
  }
  // Cuts floats to the bits of float16, and returns these. Some become so small that this format
  // has fewer bits for them.
  static std::vector<uint16_t> rounded(float* full, int64_t count) {
    std::vector<uint16_t> halves(count);
    for (int64_t i = 0; i < count; ++i) {
      const float scaled = full[i] * (i % 64 ? 0x1p-112f : 0x1p-124f);
      uint32_t bits;
      std::memcpy(&bits, &scaled, sizeof bits);
      halves[i] = uint16_t((bits >> 16 & 0x8000) | (bits >> 13 & 0x7fff));
      bits &= 0xffffe000;
      std::memcpy(&full[i], &bits, sizeof bits);
      full[i] *= 0x1p112f;
    }
    return halves;
  }
  // Rounds the tables, which are the first floats, and the packed weights, and stores them in
  // float16 if `is_half`.
  void round(int64_t count, bool is_half) {
    tables_ = rounded(floats_.front().data(), floats_.front().size());
    const auto halves = rounded(reinterpret_cast<float*>(packed_.get()), count);
    if (!is_half) return;
    source_.is_half = true;
    source_.tables = reinterpret_cast<const uint8_t*>(tables_.data());
    int64_t num_bytes = 0;
    expect(qwen_cpu_vocoder_packed_bytes(&source_, &num_bytes) == kDone, "a size for files");
    packed_.reset(static_cast<uint8_t*>(std::aligned_alloc(64, num_bytes)));
    std::memcpy(packed_.get(), halves.data(), 2 * count);
    source_.packed = packed_.get();
  }
  int reserve(int count) { return (num_values_ += count) - count; }
  void add(int num_taps, int in_channels, int out_channels, int stride = 1, int dilation = 1,
           bool has_snake = false) {
    const int outputs = out_channels ? stride * out_channels : 1;
    const float size = 1.5f / std::sqrt(float(num_taps * (out_channels ? in_channels : 1)));
    ConvolutionSource c = {};
    c.taps = floats(num_taps * in_channels * outputs, size);
    if (in_channels != 16) c.bias = floats(out_channels ? out_channels : in_channels, 0.1f);
    if (has_snake) c.frequency = floats(in_channels, 0.3f, 0.7f);
    if (has_snake) c.amplitude = floats(in_channels, 0.3f, 0.7f);
    c.num_taps = num_taps, c.in_channels = in_channels, c.out_channels = out_channels;
    c.stride = stride, c.dilation = dilation;
    c.history = reserve((num_taps - 1) * dilation * in_channels);
    convolutions_.push_back(c);
  }

  VocoderSource source_{};
  const bool is_starved_;
  void* handle_ = nullptr;
  int num_values_ = 0;
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint8_t, Free> packed_;
  std::deque<std::vector<float>> floats_;
  std::vector<uint16_t> tables_;  // in float16
  std::vector<ConvolutionSource> convolutions_;
  std::vector<const float*> vectors_;
};

void be_heard(void* pool) {
  for (auto stored : {Vocoder::kRounded, Vocoder::kFloat16}) {
    std::printf(stored == Vocoder::kFloat16 ? "float16\n" : "rounded\n");
    Vocoder(pool, false, stored).decode(2, 0, {5, 1, 9});
  }
  std::printf("vocoder\n");
  Vocoder vocoder(pool);
  vocoder.decode(1, 0, {1, 2, 11, 4});
  vocoder.decode(3, 0, {8, 1, 5});
  vocoder.decode(17, 0, {1, 3});
  vocoder.decode(2, 3, {5});
}

}  // namespace

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : 1;
  void* pool = qwen_cpu_pool_create(num_threads);
  expect(pool != nullptr, "making threads");
  if (argc > 2 && std::string(argv[2]) == "starve") {
    for (int32_t format : {kSourceFloat32, kSourceInt8})
      starve_decoder(Weights(Kind{"", format, format == kSourceInt8 ? 64 : 0}, 80, 48, 1).model());
    Vocoder(pool, true).decode(3, 0, {8, 1});
    return 0;
  }
  std::fprintf(stderr, "%s\n", qwen_cpu_instruction_set());
  be_heard(pool);
  for (Kind kind : {Kind{"float32", kSourceFloat32, 0}, Kind{"bf16", kSourceBf16, 0},
                    Kind{"int8 rows", kSourceInt8, 0}, Kind{"int8 groups", kSourceInt8, 64},
                    Kind{"int6 groups", kSourceInt6, 32}, Kind{"int4 groups", kSourceInt4, 32}})
    for (int shape : {0, 1}) {
      std::printf("%s %d\n", kind.name, shape);
      const Weights weights(kind, shape ? 80 : 64, shape ? 48 : 64, shape == 1);
      speak(pool, weights.model());
      if (argc > 2 && std::string(argv[2]) == "fork") {
        std::fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
          if (!std::freopen("/dev/null", "w", stdout)) _exit(2);
          speak(pool, weights.model());
          _exit(0);
        }
        int status = 1;
        waitpid(child, &status, 0);
        expect(status == 0, "a forked child");
      }
    }
  qwen_cpu_pool_destroy(pool);
  return 0;
}
