// Frames of speech: step_kernel, and the launcher that chooses between it and few_step_kernel.
#include "frame.cuh"
#include "launch.cuh"

namespace qwen_tts {

// One block per SM: shared memory and registers are planned for that.
__global__ void __launch_bounds__(kNumThreads, 1)
    step_kernel(const __grid_constant__ StepParams p) {
  run_step<kMaxRows>(p);
}

cudaError_t max_step_blocks(int* num_blocks) { return max_blocks(step_kernel, num_blocks); }

}  // namespace qwen_tts

extern "C" int qwen_tts_step(const qwen_tts::StepParams* params, int32_t num_blocks, void* stream) {
  using namespace qwen_tts;
  if (2 * params->num_streams <= kFewRows) return launch_few_step(*params, num_blocks, stream);
  return launch(step_kernel, *params, num_blocks, stream);
}
