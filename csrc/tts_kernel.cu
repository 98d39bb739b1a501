// The C ABI except for the two launchers: the library's description of itself.
#include "launch.cuh"
#include "tts_kernel.h"

namespace qwen_tts {

static_assert(sizeof(kStageNames) / sizeof(kStageNames[0]) ==
              static_cast<size_t>(Stage::kNumStages));

namespace {

template <class Dims>
void describe_stack(int32_t* out, int vocab) {
  const int32_t values[7] = {Dims::kHidden,     Dims::kIntermediate, Dims::kNumHeads,
                             Dims::kNumKvHeads, Dims::kHeadDim,      vocab,
                             kNumCodeGroups};
  for (int i = 0; i < 7; ++i) out[i] = values[i];
}

}  // namespace
}  // namespace qwen_tts

using namespace qwen_tts;

extern "C" {

void qwen_tts_describe(Description* d) {
  d->struct_bytes[0] = sizeof(StepParams);
  d->struct_bytes[1] = sizeof(ForwardParams);
  d->struct_bytes[2] = sizeof(Control);
  d->max_rows = kMaxRows;
  d->max_forward_rows = kMaxForwardRows;
  d->num_threads = kNumThreads;
  d->max_splits = kMaxSplits;
  d->weights_f32 = WEIGHTS_F32;
  d->max_stage_records = kStageTimes ? kMaxStageRecords : 0;
  describe_stack<Talker>(d->talker, kTalkerVocab);
  describe_stack<Predictor>(d->predictor, kPredictorVocab);
}

int qwen_tts_max_blocks(int32_t* num_blocks) {
  *num_blocks = 1 << 30;
  for (const auto most : {max_step_blocks, max_few_step_blocks, max_forward_blocks}) {
    int blocks = 0;
    if (const cudaError_t error = most(&blocks)) {
      *num_blocks = 0;
      return error;
    }
    if (blocks < *num_blocks) *num_blocks = blocks;
  }
  return cudaSuccess;
}

const char* qwen_tts_error_string(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

const char* qwen_tts_stage_name(uint32_t stage) {
  return stage < static_cast<uint32_t>(Stage::kNumStages) ? kStageNames[stage] : "unknown";
}
}
