// The CPU decoder's entry points. frame.h lists the stages of a frame.
//
// The design is the CUDA kernel's, with threads: workers that live as long as the engine run a
// whole frame together. Each reads its own part of every matrix at the speed of memory, and they
// meet at barriers. Arithmetic is float32, or exact integers where weights are int8.
#include "cpu_decoder.h"

#include <signal.h>
#include <unistd.h>

#include "frame.h"
#include "status.h"

using qwen_tts::Model;
using qwen_tts::Pool;
using qwen_tts::Slot;
using qwen_tts::status_of;

namespace {

// The handler is gone when it runs, so that the same read then ends the process.
void explain_bus_error(int) {
  constexpr char kText[] =
      "error: a file of the model was shortened or overwritten, or its disk is gone (SIGBUS).\n"
      "Copy the model again, to a file that nothing writes to while it is in use.\n";
  if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) return;
}

}  // namespace

extern "C" {

void qwen_cpu_struct_bytes(int32_t* sizes) {
  const size_t bytes[] = {sizeof(MatrixSource), sizeof(StackSource), sizeof(ModelSource),
                          sizeof(StreamOptions), sizeof(StepRequest)};
  for (size_t each : bytes) *sizes++ = int32_t(each);
}

const char* qwen_cpu_instruction_set() { return qwen_tts::kInstructionSet; }

void* qwen_cpu_pool_create(int32_t num_threads) {
  struct sigaction action = {};
  if (!sigaction(SIGBUS, nullptr, &action) && action.sa_handler == SIG_DFL) {
    action.sa_handler = explain_bus_error, action.sa_flags = SA_RESETHAND;
    sigaction(SIGBUS, &action, nullptr);
  }
  Pool* pool = nullptr;
  status_of([&] { pool = new Pool(num_threads); });
  return pool;
}

void qwen_cpu_pool_destroy(void* pool) { delete static_cast<Pool*>(pool); }

int64_t qwen_cpu_packed_bytes(const MatrixSource* packed, int32_t num_parts) {
  return int64_t(qwen_tts::make_matrix(*packed, num_parts).bytes());
}

int32_t qwen_cpu_pack(void* pool, const MatrixSource* parts, int32_t num_parts, int32_t take_turns,
                      void* packed) {
  return status_of([&] {
    qwen_tts::pack(*static_cast<Pool*>(pool), parts, num_parts, take_turns,
                   static_cast<uint8_t*>(packed));
  });
}

int32_t qwen_cpu_decoder_create(void* pool, const ModelSource* source, void** decoder) {
  return status_of(
      [&] { *decoder = qwen_tts::make_model(static_cast<Pool*>(pool), *source).release(); });
}

void qwen_cpu_decoder_destroy(void* decoder) { delete static_cast<Model*>(decoder); }

int32_t qwen_cpu_decoder_prefill(void* decoder, int32_t slot_idx, const StreamOptions* options,
                                 const float* embeds, int32_t num_positions, int32_t num_kept,
                                 const float* pad_embed) {
  return status_of([&] {
    Model& model = *static_cast<Model*>(decoder);
    Slot& slot = *model.slots[slot_idx];
    const qwen_tts::Stack& stack = model.talker;
    slot.options = *options;
    slot.frame = 0;
    slot.text.clear();
    slot.pad.assign(pad_embed, pad_embed + stack.hidden_size);
    slot.hidden.resize(stack.hidden_size);
    slot.codes.assign(model.num_code_groups, 0);
    slot.seen.assign(model.vocab_size, 0);
    qwen_tts::run_prompt(model, slot, embeds, num_positions, num_kept);
  });
}

void qwen_cpu_decoder_copy_cache(void* decoder, int32_t slot_idx, int32_t position, float* kept,
                                 int32_t to_cache) {
  Model& model = *static_cast<Model*>(decoder);
  qwen_tts::copy_cache(model.talker, model.slots[slot_idx]->cache.data(), position, kept, to_cache);
}

int32_t qwen_cpu_decoder_write_text(void* decoder, int32_t slot_idx, const float* rows,
                                    int32_t num_rows) {
  return status_of([&] {
    Model& model = *static_cast<Model*>(decoder);
    std::vector<float>& text = model.slots[slot_idx]->text;
    text.insert(text.end(), rows, rows + size_t(num_rows) * model.talker.hidden_size);
  });
}

int32_t qwen_cpu_decoder_step(void* decoder, const StepRequest* request) {
  return status_of([&] { qwen_tts::run_step(*static_cast<Model*>(decoder), *request); });
}

void qwen_cpu_decoder_cancel(void* decoder) { static_cast<Model*>(decoder)->is_cancelled = true; }

}  // extern "C"
