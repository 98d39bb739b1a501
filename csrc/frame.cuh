// Frames of speech. A frame is one code for each codebook, 80 ms of audio:
//
//   talker step       reads the embedding of the previous frame plus one row of text. A stream's
//                     first frame skips it: its hidden state is the prompt's result.
//   codec head        logits of code 0, which is then drawn. EOS ends the stream without a frame.
//   code predictor    a small stack with a fresh KV cache per frame. Positions 0 and 1 are the
//                     hidden state and code 0; every further position is the previous code.
//                     Position g gives the logits of code g.
//
// Row r of a pass belongs to the r-th stream that still decodes. Block r % num_blocks() does the
// work that only row r needs: drawing, and preparing the next input.
#pragma once
#include "layer.cuh"

namespace qwen_tts {

// The row of frame_table and predictor_table that holds `code` of codebook `group`.
__device__ __forceinline__ size_t table_row(int group, int code) {
  return group == 0 ? code : kTalkerVocab + size_t{kPredictorVocab} * (group - 1) + code;
}

// Copies table[row] to x, by one block. Rows come from memory: all loads of a row start at once.
template <int kHidden>
__device__ void copy_embedding(float* x, const void* table, size_t row) {
  const Weight* embedding = static_cast<const Weight*>(table) + row * kHidden;
#pragma unroll 1
  for (int i = 4 * opaque(thread_idx()); i < kHidden; i += 4 * kNumThreads) {
    float four[4];
    load_elements(four, embedding + i);
    store_elements(x + i, four);
  }
}

// Copies kSize elements, by one block; both arrays are global and 16-byte aligned.
template <int kSize>
__device__ void copy_row(float* to, const float* from) {
#pragma unroll 1
  for (int i = 4 * opaque(thread_idx()); i < kSize; i += 4 * kNumThreads) {
    *reinterpret_cast<float4*>(to + i) = load_activation4(from + i);
  }
}

//   kMostRows  most rows of a pass; positions 0 and 1 of the predictor are two rows per stream
template <int kMostRows>
class FrameLoop {
 public:
  __device__ FrameLoop(const StepParams& params, Context& context)
      : p_(params), c_(context), weight_stream_(context.smem.rings) {}

  // All threads of all blocks call this. It is always inlined, whatever the compiler thinks of its
  // size: as a call it would need a stack frame.
  __device__ __forceinline__ void run() {
    if (thread_idx() < p_.num_streams) c_.smem.streams[thread_idx()] = thread_idx();
    if (thread_idx() == 0) {
      c_.smem.num_rows = p_.num_streams;
      c_.smem.frame = 0;
    }
    prime(c_.smem.rings, Team::whole_grid(), layer_start<Talker>(c_.model.talker, 0));
    __syncthreads();
    while (frame() < p_.num_frames) {
      if (!talker_step() || !draw_code_0()) return;
      if (all_ended()) return;
      for (int group = 1; group < kNumCodeGroups; ++group) {
        if (!predictor_step(group) || !draw_code(group)) return;
      }
      end_frame();
      if (num_rows() == 0) return;
    }
  }

 private:
  __device__ int frame() const { return c_.smem.frame; }        // counted within this launch
  __device__ int num_rows() const { return c_.smem.num_rows; }  // streams that still decode
  __device__ const Stream& stream(int row) const { return p_.streams[c_.smem.streams[row]]; }
  __device__ int frame_of(int row) const { return stream(row).frame + frame(); }
  __device__ int32_t* codes(int row) const {
    return c_.slots.codes + static_cast<size_t>(stream(row).slot) * kNumCodeGroups;
  }
  __device__ float* hidden(int row) const {
    return c_.slots.hidden + static_cast<size_t>(stream(row).slot) * Talker::kHidden;
  }
  // The address of the logits of a row and one code. All codes share one place, unless a test keeps
  // the logits of every code.
  __device__ float* logits(int row, int group) const {
    const size_t step = static_cast<size_t>(frame()) * kNumCodeGroups + group;
    return c_.workspace.logits + step * p_.logits_step + c_.smem.streams[row] * kMaxVocab;
  }
  // The index of a row's current frame in the launch's outputs.
  __device__ size_t output(int row) const {
    return static_cast<size_t>(c_.smem.streams[row]) * p_.num_frames + frame();
  }

  // The activations of the rows whose residual begins at `x`.
  __device__ PassActivations<kMostRows> activations(float* x) const { return {x, c_.workspace}; }

  // Runs the previous frame of every stream that has one through the talker; then writes the hidden
  // states of all streams to workspace.hidden.
  __device__ __forceinline__ bool talker_step() {
    // One thread reads for the whole grid whether the host has cancelled the launch. The word is in
    // host memory, so the read starts here, and its result is reported at the next wait. Blocks
    // leave at that barrier or the one after; until then they write nothing that a caller keeps.
    const unsigned cancelled =
        block_idx() == 0 && thread_idx() == 0 ? load_from_host(c_.workspace.cancel) : 0;
    const auto heed_cancel = [&] {
      if (cancelled) c_.barrier.report(LaunchStatus::kCancelled, Stage::kInput, frame());
    };
    const int num_steps = plan_talker_pass();
    const Workspace& w = c_.workspace;
    if (num_steps) {
      for (int row = 0; row < num_rows(); ++row) {
        if (owns_row(row) && c_.smem.talker_row[row] >= 0) frame_embedding(row);
      }
      const Stack& talker = c_.model.talker;
      const auto before_layers = [&] {
        open_layer<Talker>(weight_stream_, talker, 0);
        heed_cancel();
      };
      if (!c_.barrier.sync(Stage::kInput, frame(), before_layers)) return false;
      const auto after = [&] { return Forecast{tile_grid(codec_head()), after_codec_head().next}; };
      if (!decoder_layers<Talker>(
              activations(w.x), talker, talker.num_layers, weight_stream_,
              PassAttention<Talker>{talker, c_}, after, [] {}, c_)) {
        return false;
      }
    } else {
      heed_cancel();  // there is no wait during which the read could arrive
    }
    for (int row = 0; row < num_rows(); ++row) {
      if (!owns_row(row)) continue;
      const int talker_row = c_.smem.talker_row[row];
      float* target = w.hidden + static_cast<size_t>(row) * Talker::kHidden;
      if (talker_row >= 0) {
        rms_norm<Talker::kHidden>(hidden(row),
                                  w.x + static_cast<size_t>(talker_row) * Talker::kHidden,
                                  static_cast<const Weight*>(c_.model.talker.final_norm),
                                  c_.model.talker.rms_norm_eps, c_.smem.stage.norm);
      }
      copy_row<Talker::kHidden>(target, hidden(row));
    }
    const auto before_codec_head = [&] {
      weight_stream_.open(tile_grid(codec_head()), after_codec_head());
    };
    return c_.barrier.sync(Stage::kFinalNorm, frame(), before_codec_head);
  }

  // Fills smem.pass and smem.talker_row; returns the number of rows in the talker's pass.
  __device__ int plan_talker_pass() {
    int num_steps = 0;
    for (int row = 0; row < num_rows(); ++row) {
      const bool steps = frame_of(row) > 0;
      if (thread_idx() == 0) {
        const Stream& s = stream(row);
        c_.smem.talker_row[row] = steps ? num_steps : -1;
        // A stream whose first frame was drawn in this launch took no talker step for that frame.
        const int position = s.position + frame() - (s.frame == 0);
        if (steps) {
          c_.smem.pass.rows[num_steps] = {
              s.slot, position, num_steps, {position, position, position}};
        }
      }
      num_steps += steps;
    }
    if (thread_idx() == 0) {
      c_.smem.pass.num_rows = num_steps;
      c_.smem.pass.sequence_rows = 1;
    }
    __syncthreads();
    return num_steps;
  }

  // x = E(previous frame) + text, the input of the talker step of `row`. One block calls this.
  __device__ void frame_embedding(int row) {
    const int text_row = frame_of(row) - 1;
    const SlotBuffers& slots = c_.slots;
    const size_t slot = stream(row).slot;
    const float* text =
        text_row < stream(row).num_text_rows
            ? slots.text_rows +
                  (slot * slots.max_text_rows + text_row % slots.max_text_rows) * Talker::kHidden
            : slots.pad_embed + slot * Talker::kHidden;
    const Weight* table = static_cast<const Weight*>(c_.model.frame_table);
    float* x = c_.workspace.x + static_cast<size_t>(c_.smem.talker_row[row]) * Talker::kHidden;
    int* table_rows = c_.smem.stage.table_rows;
    __syncthreads();  // the block has read the table_rows of the previous row
    for (int group = thread_idx(); group < kNumCodeGroups; group += kNumThreads) {
      table_rows[group] = static_cast<int>(table_row(group, __ldcg(codes(row) + group)));
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 2 * opaque(thread_idx()); i < Talker::kHidden; i += 2 * kNumThreads) {
      float sums[2] = {}, addends[2];
#pragma unroll  // rows come from memory: all loads at once
      for (int group = 0; group < kNumCodeGroups; ++group) {
        load_elements(addends,
                      table + static_cast<size_t>(table_rows[group]) * Talker::kHidden + i);
        sums[0] += addends[0], sums[1] += addends[1];
      }
      load_elements(addends, text + i);
      sums[0] += addends[0], sums[1] += addends[1];
      store_elements(x + i, sums);
    }
  }

  __device__ PackedMatrix<kTalkerVocab, Talker::kHidden> codec_head() const {
    return {c_.model.codec_head};
  }
  __device__ PackedMatrix<Predictor::kHidden, Talker::kHidden> projection() const {
    return {c_.model.projection};
  }

  __device__ Forecast after_codec_head() const {
    const Forecast predictor = layer_start<Predictor>(c_.model.predictor, 0);
    if constexpr (!kHasProjection) return predictor;
    return {tile_grid(projection()), predictor.next};
  }

  // Computes the logits of code 0 from workspace.hidden, draws it, writes the predictor's inputs.
  __device__ __forceinline__ bool draw_code_0() {
    const Workspace& w = c_.workspace;
    const InputRows<false, kMostRows> rows{w.hidden, Talker::kHidden, num_rows()};
    const auto store_logits = [&](int row, int i, float2 sum) {
      *reinterpret_cast<float2*>(logits(row, 0) + i) = sum;
    };
    MatvecSmem& smem = c_.smem.stage.matvec;
    matvec(weight_stream_, codec_head(), rows, store_logits, smem);
    if constexpr (kHasProjection) {
      const float* bias = c_.model.projection_bias;
      weight_stream_.open(tile_grid(projection()), layer_start<Predictor>(c_.model.predictor, 0));
      __syncthreads();  // the codec head no longer uses smem
      matvec(
          weight_stream_, projection(), rows,
          [&](int row, int i, float2 sum) {
            float* x = w.x + static_cast<size_t>(2 * row) * Predictor::kHidden + i;
            *reinterpret_cast<float2*>(x) = make_float2(sum.x + bias[i], sum.y + bias[i + 1]);
          },
          smem);
    }
    const auto before_draw = [&] { prepare_first_draw(0); };
    if (!c_.barrier.sync(Stage::kCodecHead, frame(), before_draw)) return false;

    prefetch_vectors<Predictor>(c_.model.predictor, 0);
    for (int row = 0; row < num_rows(); ++row) {
      if (!owns_row(row)) continue;
      uint32_t* seen = c_.slots.seen + static_cast<size_t>(stream(row).slot) * (kTalkerVocab / 32);
      const TokenRules rules{seen, stream(row).talker.repetition_penalty, c_.model.suppressed_from,
                             c_.model.codec_eos_id, frame_of(row) < c_.model.min_frames};
      const int code = draw(row, 0, rules);
      // The predictor's positions 0 and 1. An ended stream keeps its rows until the frame is over.
      float* x = w.x + static_cast<size_t>(2 * row) * Predictor::kHidden;
      if constexpr (!kHasProjection) copy_row<Talker::kHidden>(x, hidden(row));
      copy_embedding<Predictor::kHidden>(x + Predictor::kHidden, c_.model.predictor_table,
                                         table_row(0, code));
      if (thread_idx() == 0) {
        const int idx = c_.smem.streams[row];
        if (!p_.forced && code == c_.model.codec_eos_id) p_.ended[idx] = 1;
        if (!p_.ended[idx]) {
          p_.num_done[idx] = frame() + 1;
          seen[code / 32] |= 1u << (code % 32);
        }
      }
    }
    const auto before_predictor = [&] { open_predictor(); };
    return c_.barrier.sync(Stage::kSampleCode0, frame(), before_predictor);
  }

  __device__ void open_predictor() { open_layer<Predictor>(weight_stream_, c_.model.predictor, 0); }

  // Runs the predictor on the positions up to `group`, and computes the logits of that code.
  __device__ __forceinline__ bool predictor_step(int group) {
    const Stack& predictor = c_.model.predictor;
    // These are functions, so that their results do not occupy registers through the layers.
    const auto head = [&] {
      using Head = PackedMatrix<kPredictorVocab, Predictor::kHidden>;
      return Head{static_cast<const unsigned char*>(c_.model.lm_heads) +
                  (group - 1) * Head::kBytes};
    };
    const auto again = [&] { return layer_start<Predictor>(predictor, 0); };
    const bool frame_ends = group + 1 == kNumCodeGroups;
    const auto after_head = [&] {
      return frame_ends ? layer_start<Talker>(c_.model.talker, 0) : again();
    };
    const int rows_per_stream = group == 1 ? 2 : 1;  // position 0 shares a pass with position 1
    const int pass_rows = num_rows() * rows_per_stream;
    for (int first = 0; first < pass_rows; first += kMostRows) {
      const int count = min(kMostRows, pass_rows - first);
      const int i = opaque(thread_idx());
      if (i < count) {
        const int row = (first + i) / rows_per_stream;
        const int position = group == 1 ? i % 2 : group;
        c_.smem.pass.rows[i] = {
            row, position, i - (group == 1 ? i % 2 : 0), {position, position, position}};
      }
      if (thread_idx() == 0) {
        c_.smem.pass.num_rows = count;
        c_.smem.pass.sequence_rows = rows_per_stream;
      }
      __syncthreads();
      const bool more = first + count < pass_rows;
      const auto after = [&] {
        if (more) return again();
        return Forecast{tile_grid(head()), after_head().next};
      };
      const auto before_after = [&] {
        if (more) {
          open_predictor();
        } else {
          weight_stream_.open(tile_grid(head()), after_head());
        }
      };
      if (!decoder_layers<Predictor>(
              activations(c_.workspace.x + static_cast<size_t>(first) * Predictor::kHidden),
              predictor, predictor.num_layers, weight_stream_,
              PassAttention<Predictor>{predictor, c_}, after, before_after, c_)) {
        return false;
      }
    }
    // The last position of every stream.
    const float* x = c_.workspace.x + (rows_per_stream - 1) * Predictor::kHidden;
    const InputRows<true, kMostRows> rows{
        x, size_t{Predictor::kHidden} * rows_per_stream, num_rows(),
        static_cast<const Weight*>(predictor.final_norm), predictor.rms_norm_eps};
    matvec(
        weight_stream_, head(), rows,
        [&](int row, int i, float2 sum) {
          *reinterpret_cast<float2*>(logits(row, group) + i) = sum;
        },
        c_.smem.stage.matvec);
    const auto before_draw = [&] { prepare_first_draw(group); };
    return c_.barrier.sync(Stage::kLmHead, group, before_draw);
  }

  __device__ __forceinline__ bool draw_code(int group) {
    if (group + 1 < kNumCodeGroups) {
      prefetch_layer<Predictor>(c_.model.predictor, 0, c_.smem.pass);
    }
    for (int row = 0; row < num_rows(); ++row) {
      if (!owns_row(row)) continue;
      const int code = draw(row, group, TokenRules{});
      if (group + 1 < kNumCodeGroups) {
        copy_embedding<Predictor::kHidden>(
            c_.workspace.x + static_cast<size_t>(row) * Predictor::kHidden,
            c_.model.predictor_table, table_row(group, code));
      }
    }
    const auto before_predictor = [&] {
      if (group + 1 < kNumCodeGroups) open_predictor();
    };
    return c_.barrier.sync(Stage::kSampleCode, group, before_predictor);
  }

  __device__ const SamplingParams& sampling(int row, int group) const {
    return group ? stream(row).predictor : stream(row).talker;
  }
  __device__ static int vocab_of(int group) { return group ? kPredictorVocab : kTalkerVocab; }

  __device__ void prepare_draw_of(int row, int group) {
    const Stream& s = stream(row);
    const DrawAddress address{s.seed_low, s.seed_high, static_cast<uint32_t>(s.part),
                              static_cast<uint32_t>(frame_of(row)), static_cast<uint32_t>(group)};
    prepare_draw(vocab_of(group), sampling(row, group), address, c_.smem.stage.sampling);
  }
  // Prepares the draw of this block's first row while the grid waits for the logits.
  __device__ void prepare_first_draw(int group) {
    if (block_idx() < num_rows()) prepare_draw_of(block_idx(), group);
  }

  // Draws and stores one code. Returns the code to continue with, which teacher forcing replaces.
  __device__ int draw(int row, int group, const TokenRules& rules) {
    if (row >= num_blocks()) {  // not this block's first row: its draw is not prepared yet
      prepare_draw_of(row, group);
      __syncthreads();
    }
    int code = draw_token(logits(row, group), vocab_of(group), sampling(row, group), rules,
                          c_.smem.stage.sampling);
    if (code < 0) {  // this stream ends without the frame, and the others go on
      const int idx = c_.smem.streams[row];
      if (thread_idx() == 0 && !p_.ended[idx]) {
        p_.ended[idx] = kBadLogits + group;
        p_.num_done[idx] = frame();
      }
      code = 0;
    }
    const size_t index = output(row) * kNumCodeGroups + group;
    if (thread_idx() == 0) p_.codes[index] = code;
    if (p_.forced) code = p_.forced[index];
    if (thread_idx() == 0) codes(row)[group] = code;
    return code;
  }

  __device__ bool row_ended(int row) const { return __ldcg(p_.ended + c_.smem.streams[row]) != 0; }

  __device__ bool all_ended() const {
    for (int row = 0; row < num_rows(); ++row) {
      if (!row_ended(row)) return false;
    }
    return true;
  }

  // Removes the rows of ended streams. On return every thread sees the new rows and their number.
  __device__ void end_frame() {
    if (thread_idx() == 0) {
      int num_left = 0;
      for (int row = 0; row < num_rows(); ++row) {
        if (!row_ended(row)) c_.smem.streams[num_left++] = c_.smem.streams[row];
      }
      c_.smem.num_rows = num_left;
      ++c_.smem.frame;
    }
    __syncthreads();
  }

  const StepParams& p_;
  Context& c_;
  WeightStream<kRingSlots> weight_stream_;  // opened while the grid waits in front of each matrix
};

// Decodes all frames of a launch of at most kMostRows rows. All threads of all blocks call this.
template <int kMostRows>
__device__ __forceinline__ void run_step(const StepParams& p) {
  Context context(p.model, p.slots, p.workspace, p.timeout_ns, dynamic_smem());
  FrameLoop<kMostRows>(p, context).run();
  copy_async_wait<0>();  // weights that no product will read
  context.barrier.leave();
}

}  // namespace qwen_tts
