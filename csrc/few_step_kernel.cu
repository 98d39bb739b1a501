// Frames of one to four streams: few_step_kernel. Its passes have at most eight rows, which take
// one tensor-core product where step_kernel takes two. Sums have the same bits in both.
#include "frame.cuh"
#include "launch.cuh"

namespace qwen_tts {

__global__ void __launch_bounds__(kNumThreads, 1)
    few_step_kernel(const __grid_constant__ StepParams p) {
  run_step<kFewRows>(p);
}

cudaError_t max_few_step_blocks(int* num_blocks) { return max_blocks(few_step_kernel, num_blocks); }

int launch_few_step(const StepParams& params, int num_blocks, void* stream) {
  return launch(few_step_kernel, params, num_blocks, stream);
}

}  // namespace qwen_tts
