// The two kernels and their launchers.
#include "forward.cuh"
#include "frame.cuh"
#include "tts_kernel.h"

namespace qwen_tts {

static_assert(sizeof(kStageNames) / sizeof(kStageNames[0]) ==
              static_cast<size_t>(Stage::kNumStages));

// One block per SM: shared memory and registers are planned for that.
__global__ void __launch_bounds__(kNumThreads, 1)
    step_kernel(const __grid_constant__ StepParams p) {
  Context context(p.model, p.slots, p.workspace, p.timeout_ns, dynamic_smem());
  FrameLoop(p, context).run();
  copy_async_wait<0>();  // weights that nobody will read
  context.barrier.leave();
}

__global__ void __launch_bounds__(kNumThreads, 1)
    forward_kernel(const __grid_constant__ ForwardParams p) {
  Context context(p.model, p.slots, p.workspace, p.timeout_ns, dynamic_smem());
  if (p.use_predictor) {
    forward_rows<Predictor>(p, p.model.predictor, p.model.predictor_table, context);
  } else {
    forward_rows<Talker>(p, p.model.talker, p.model.frame_table, context);
  }
  copy_async_wait<0>();  // weights that nobody will read
  context.barrier.leave();
}

namespace {

constexpr size_t kSmemBytes = sizeof(BlockSmem);

// How many blocks of a kernel can be resident at once: a grid barrier needs all of them.
template <class Params>
cudaError_t max_blocks(void (*kernel)(Params), int* num_blocks) {
  int device = 0, num_sms = 0, per_sm = 0;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(kSmemBytes));
  if (!error) error = cudaGetDevice(&device);
  if (!error) error = cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  if (!error) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, kNumThreads, kSmemBytes);
  }
  *num_blocks = error ? 0 : num_sms * per_sm;
  return error ? error : *num_blocks ? cudaSuccess : cudaErrorCooperativeLaunchTooLarge;
}

template <class Params>
int launch(void (*kernel)(Params), const Params& params, int num_blocks, void* stream) {
  int most = 0;
  cudaError_t error = max_blocks(kernel, &most);
  if (error) return error;
  if (num_blocks == 0) num_blocks = most;
  // A grid that cannot be resident is refused by the driver, not started and left to hang.
  return launch_cooperative(kernel, num_blocks, kNumThreads, kSmemBytes, stream, params);
}

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
  d->num_threads = kNumThreads;
  d->max_splits = kMaxSplits;
  d->weights_f32 = WEIGHTS_F32;
  describe_stack<Talker>(d->talker, kTalkerVocab);
  describe_stack<Predictor>(d->predictor, kPredictorVocab);
}

int qwen_tts_max_blocks(int32_t* num_blocks) {
  int step_blocks = 0, forward_blocks = 0;
  cudaError_t error = max_blocks(step_kernel, &step_blocks);
  if (!error) error = max_blocks(forward_kernel, &forward_blocks);
  *num_blocks = step_blocks < forward_blocks ? step_blocks : forward_blocks;
  return error;
}

int qwen_tts_step(const StepParams* params, int32_t num_blocks, void* stream) {
  return launch(step_kernel, *params, num_blocks, stream);
}

int qwen_tts_forward(const ForwardParams* params, int32_t num_blocks, void* stream) {
  return launch(forward_kernel, *params, num_blocks, stream);
}

const char* qwen_tts_error_string(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

const char* qwen_tts_stage_name(uint32_t stage) {
  return stage < static_cast<uint32_t>(Stage::kNumStages) ? kStageNames[stage] : "unknown";
}
}
