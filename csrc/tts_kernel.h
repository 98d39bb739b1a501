// The C ABI of the kernel library, and the plain structs that host and device share.
// decoders/kernel/library.py mirrors the structs with ctypes and compares sizes with
// qwen_tts_describe().
//
// The library allocates nothing and keeps nothing. Every pointer is to device memory (in the
// emulation host memory) that the caller must keep until the stream is synchronised.
#pragma once
#include <stdint.h>

namespace qwen_tts {

// The place of a launch, for errors and the stage table of README.md.
enum class Stage : uint32_t {
  kNone,
  kInput,
  kQkvProj,
  kAttention,
  kOProj,
  kGateUpProj,
  kDownProj,
  kFinalNorm,
  kCodecHead,
  kSampleCode0,
  kLmHead,
  kSampleCode,
  kNumStages,
};

// Printable names of the stages, in the order of Stage.
constexpr const char* kStageNames[] = {"none",       "input",         "qkv_proj",  "attention",
                                       "o_proj",     "gate_up_proj",  "down_proj", "final_norm",
                                       "codec_head", "sample_code_0", "lm_head",   "sample_code"};

enum class LaunchStatus : uint32_t {
  kOk,
  kTimeout,    // a block did not reach a grid barrier in time
  kCancelled,  // by the host: finished frames are whole, and no further frame was begun
};

// Grid barrier and flags of one launch. All are zero when the launch starts, and again when it ends
// without an error; after an error the host clears them. A launch enqueued behind one that fails
// has a Control of its own, which stays untouched.
struct Control {
  uint32_t arrived;  // blocks at a barrier, counted over the launch; bit 31: there is an error
  uint32_t pad[31];  // so that the polled word has a cache line of its own
  uint32_t left;     // blocks that finished the launch
  uint32_t error;    // pack_error(); 0: no error
};

// One stage of one block, in a build with stamps (stage_times.cuh). A block's first record is its
// header: cycles and nanoseconds at the start of the launch and at the end of its last stage.
struct StageRecord {
  uint64_t stamps[6];  // cycles of the block's SM, in the order of Stamp; 0: the stage has none
  uint32_t stage, layer;
};
constexpr int kMaxStageRecords = 4096;  // for each block; four frames have some 2200 stages

struct Stack {
  const void* layers;      // [num_layers, LayerWeights::kSize] Weight (layer.cuh)
  const void* final_norm;  // [hidden] Weight
  const float* rope_cos;   // [max_positions, head_dim / 2]
  const float* rope_sin;
  void* keys;    // [num_layers, num_slots, num_kv_heads, max_positions, head_dim] Cache
  void* values;  // the same
  int32_t num_layers;
  int32_t num_slots;
  int32_t max_positions;
  int32_t mrope_height_pairs;  // pairs turned by the height and by the width position;
  int32_t mrope_width_pairs;   // 0 and 0: plain RoPE
  float rms_norm_eps;
};

struct Model {
  Stack talker;
  Stack predictor;
  const void* codec_head;        // [talker vocab, talker hidden] packed
  const void* lm_heads;          // [num_code_groups - 1] x [predictor vocab, hidden] packed
  const void* projection;        // [predictor hidden, talker hidden] packed, or null
  const float* projection_bias;  // [predictor hidden]
  // The rows that add up to E(frame): the talker's codec embedding, one table per further code.
  const void* frame_table;      // [talker vocab + (groups - 1) predictor vocab, talker hidden]
  const void* predictor_table;  // the same rows as predictor inputs, [.., its hidden]
  int32_t codec_eos_id;
  int32_t suppressed_from;  // ids from here on are never drawn, except EOS
  int32_t min_frames;       // frames of a part before EOS may be drawn
};

// The state of all streams on the device between launches, indexed by slot.
struct SlotBuffers {
  float* hidden;           // [num_slots, talker hidden], after the final norm, of the last position
  int32_t* codes;          // [num_slots, num_code_groups] of the last frame
  uint32_t* seen;          // [num_slots, talker vocab / 32]: code-0 tokens drawn in this part
  const float* text_rows;  // [num_slots, max_text_rows, talker hidden], a ring
  const float* pad_embed;  // [num_slots, talker hidden]
  int32_t max_text_rows;
};

// Scratch memory; its contents do not outlive a launch. n is kMaxForwardRows. A frame uses kMaxRows
// rows of each member, and of x twice as many, for the predictor's positions 0 and 1.
struct Workspace {
  float* x;                     // [n, max hidden] residual
  float* hidden;                // [kMaxRows, talker hidden] what the codec head reads
  float* qkv;                   // [n, max qkv size]
  float* attention;             // [n, max q size]
  float* mlp;                   // [n, max intermediate]
  float* logits;                // [kMaxRows, max vocab]
  float* attention_partials;    // [kMaxRows, heads, kMaxSplits, head_dim + 2] of the larger stack
  uint32_t* attention_tickets;  // [kMaxRows, max kv heads]; like `control`, of one launch alone
  Control* control;
  const uint32_t* cancel;    // host memory that the device can read; not 0: begin no further frame
  StageRecord* stage_times;  // [num_blocks, kMaxStageRecords], zeros, or null; only with stamps
};

struct SamplingParams {
  float temperature;
  float top_p;               // 1: off
  float repetition_penalty;  // 1: off
  int32_t top_k;             // 0: off
  int32_t do_sample;         // 0: argmax
};

struct Stream {
  int32_t slot;
  int32_t position;       // where the next talker step writes keys and values
  int32_t frame;          // the next frame to draw, counted within the part
  int32_t part;           // index of the part of a long text
  int32_t num_text_rows;  // number of text rows written so far
  uint32_t seed_low, seed_high;
  SamplingParams talker, predictor;
};

// StepParams::ended of a stream whose logits of codebook `ended - kBadLogits` hold NaN, or nothing
// finite. Its frames before are whole.
constexpr int32_t kBadLogits = 2;

struct StepParams {
  Model model;
  SlotBuffers slots;
  Workspace workspace;
  Stream streams[16];
  int32_t num_streams;
  int32_t num_frames;
  const int32_t* forced;  // [num_streams, num_frames, num_code_groups] or null
  int32_t* codes;         // out [num_streams, num_frames, num_code_groups]
  int32_t* num_done;      // out [num_streams] frames drawn
  int32_t* ended;         // [num_streams] in 0, out 1: EOS was drawn, or kBadLogits and more
  int64_t logits_step;    // floats from one code's logits to the next; 0: each overwrites the last
  uint64_t timeout_ns;    // of one grid barrier
};

// Parameters of a launch that runs rows through one stack without sampling: prefill, or one step.
struct ForwardParams {
  Model model;
  SlotBuffers slots;
  Workspace workspace;
  int32_t use_predictor;  // 1: the predictor's stack, 0: the talker's
  int32_t num_layers;     // number of layers to run, from the first on
  int32_t slot;
  int32_t first_position;  // of row 0 in the KV cache
  int32_t num_rows;
  int32_t keep_last;              // 1: the last row becomes SlotBuffers::hidden of the slot
  const int32_t* tokens;          // [num_rows] rows of codec table 0; -1: take the row of `embeds`
  const float* embeds;            // [num_rows, hidden]
  const int32_t* rope_positions;  // [3, num_rows] time, height, width; null: the cache positions
  float* hidden;                  // out [num_rows, hidden] after the final norm, or null
  uint64_t timeout_ns;
};

struct Description {        // the sizes for which this library was built
  int32_t struct_bytes[3];  // of StepParams, ForwardParams, Control
  int32_t max_rows;
  int32_t max_forward_rows;
  int32_t num_threads;
  int32_t max_splits;
  int32_t weights_f32;
  int32_t max_stage_records;  // for each block; 0: built without stamps
  int32_t talker[7];          // hidden, intermediate, heads, kv heads, head_dim, vocab, code groups
  int32_t predictor[7];
};

}  // namespace qwen_tts

extern "C" {
// Functions return a cudaError_t; 0 is success. Launches are asynchronous on `stream`.
void qwen_tts_describe(qwen_tts::Description* description);
// Sets how many blocks of either kernel can be resident at once on the current device, or 0 and an
// error code. Call it once for each device before launching anything there: it also makes the
// settings that the launches need.
int qwen_tts_max_blocks(int32_t* num_blocks);
// num_blocks: from 1 to the number that qwen_tts_max_blocks() set.
int qwen_tts_step(const qwen_tts::StepParams* params, int32_t num_blocks, void* stream);
int qwen_tts_forward(const qwen_tts::ForwardParams* params, int32_t num_blocks, void* stream);
const char* qwen_tts_error_string(int error);
const char* qwen_tts_stage_name(uint32_t stage);
}
