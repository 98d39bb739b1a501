// The C interface of the CPU decoder. decoders/cpu/library.py mirrors it with ctypes.
//
// Each instruction set has a library of its own. The caller owns every tensor; the decoder copies
// vectors and reads packed matrices and tables in place. Functions that can fail return a Status
// and leave the decoder usable.
#pragma once
#include <cstdint>

// All other symbols are hidden: two libraries in a process must not share inline functions.
#pragma GCC visibility push(default)
extern "C" {

enum Status : int32_t {
  kDone = 0,
  kOutOfMemory = 1,
  kNoThreads = 2,
  kBadCode = 3,
  kUnforeseen = 4,  // a fault in this library
};

// The formats in which the caller stores a matrix.
enum SourceFormat : int32_t {
  kSourceFloat32 = 0,
  kSourceBf16 = 1,
  kSourceInt8 = 2,
  kSourceInt4 = 3,  // bytes of -8 .. 7, with a scale for each 32 columns
  kSourceInt6 = 4,  // the same of -32 .. 31
};

// A matrix [num_rows, num_cols]: row-major as in a checkpoint, or packed by qwen_cpu_pack. A packed
// one has no `scales`, which lie among its values, and starts at a multiple of 64 bytes.
struct MatrixSource {
  const void* values;
  const float* scales;  // of integers: [num_rows], or [num_rows, ceil(num_cols / group)]
  int32_t num_rows, num_cols;
  int32_t format;
  int32_t group;  // columns that share a scale; 0: each row has one scale
};

struct StackSource {
  int32_t hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim;
  int32_t max_positions;
  float rms_norm_eps;
  const float *rope_cos, *rope_sin;  // [max_positions, head_dim / 2]
  const MatrixSource* matrices;      // packed, [num_layers][4]: q, k and v; o; gate and up; down
  // [num_layers][7]: input norm, post-attention norm, q norm, k norm, and the biases of q, k and v
  // or null.
  const float* const* vectors;
  const float* final_norm;
};

struct ModelSource {
  StackSource talker, predictor;
  int32_t num_code_groups, codec_eos_id, suppressed_from, min_frames;
  int32_t num_slots;
  MatrixSource codec_head, projection;  // packed; the projection has no rows if there is none
  const float* projection_bias;
  const MatrixSource* lm_heads;     // packed, [num_code_groups - 1]
  const MatrixSource* code_tables;  // [num_code_groups], float32 or bf16; read in place
};

struct Sampling {
  float temperature, top_p;
  float repetition_penalty;  // read for the talker alone
  int32_t top_k, do_sample;
};

struct StreamOptions {
  Sampling talker, predictor;
  uint32_t part;
  uint64_t seed;
};

struct StepRequest {
  const int32_t* slots;  // [num_streams]
  int32_t num_streams, num_frames;
  const int32_t* forced;  // [num_streams, num_frames, num_code_groups], or null
  int32_t* codes;         // [num_streams, num_frames, num_code_groups]
  int32_t* num_done;      // [num_streams] frames drawn
  int32_t* ended;         // [num_streams] 1: the end of speech was drawn
  int32_t* bad_codebook;  // [num_streams] -1, or the codebook whose logits were not finite
  float* talker_logits;   // [num_streams, num_frames, vocab_size], or null
  float* code_logits;     // [num_streams, num_frames, num_code_groups - 1, code_vocab], or null
};

// Writes the sizes of the structs above, in order, which library.py compares with its own.
void qwen_cpu_struct_bytes(int32_t* sizes);
const char* qwen_cpu_instruction_set();

// Creates threads that sleep until there is work. One pool serves one engine and runs its jobs one
// after another. Returns null if the system refuses a thread. From the first pool on, a process
// that reads bytes of a mapped file that are gone says so before it ends, unless it has a handler
// of SIGBUS.
void* qwen_cpu_pool_create(int32_t num_threads);
void qwen_cpu_pool_destroy(void* pool);

// The size of a packed matrix, of which `values` is not read. `num_parts` matrices take turns in
// it.
int64_t qwen_cpu_packed_bytes(const MatrixSource* packed, int32_t num_parts);
// Packs row-major matrices of equal width and format into one: their rows one after another or,
// with take_turns, 32 / num_parts rows of each in every block.
int32_t qwen_cpu_pack(void* pool, const MatrixSource* parts, int32_t num_parts, int32_t take_turns,
                      void* packed);

// Makes a decoder of packed weights; `decoder` receives the handle. The weights and the pool must
// outlive the decoder.
int32_t qwen_cpu_decoder_create(void* pool, const ModelSource* source, void** decoder);
void qwen_cpu_decoder_destroy(void* decoder);

// Copies the keys and values of a prompt's position out of a slot's cache, or into it: kept
// [num_layers, num_kv_heads, 2, head_dim]. They depend on no later position, so prompts that begin
// alike can share them.
void qwen_cpu_decoder_copy_cache(void* decoder, int32_t slot, int32_t position, float* kept,
                                 int32_t to_cache);

// Starts a stream: embeds [num_positions, hidden_size], of which the first num_kept positions are
// already in the slot's cache; pad_embed [hidden_size].
int32_t qwen_cpu_decoder_prefill(void* decoder, int32_t slot, const StreamOptions* options,
                                 const float* embeds, int32_t num_positions, int32_t num_kept,
                                 const float* pad_embed);
// Appends text rows [num_rows, hidden_size].
int32_t qwen_cpu_decoder_write_text(void* decoder, int32_t slot, const float* rows,
                                    int32_t num_rows);
int32_t qwen_cpu_decoder_step(void* decoder, const StepRequest* request);
void qwen_cpu_decoder_cancel(void* decoder);

}  // extern "C"
#pragma GCC visibility pop
