// Frames of speech: step_kernel and its launcher.
#include "frame.cuh"
#include "launch.cuh"

namespace qwen_tts {

// One block per SM: shared memory and registers are planned for that.
__global__ void __launch_bounds__(kNumThreads, 1)
    step_kernel(const __grid_constant__ StepParams p) {
  Context context(p.model, p.slots, p.workspace, p.timeout_ns, dynamic_smem());
  FrameLoop(p, context).run();
  copy_async_wait<0>();  // weights that nobody will read
  context.barrier.leave();
}

cudaError_t max_step_blocks(int* num_blocks) { return max_blocks(step_kernel, num_blocks); }

}  // namespace qwen_tts

extern "C" int qwen_tts_step(const qwen_tts::StepParams* params, int32_t num_blocks, void* stream) {
  return qwen_tts::launch(qwen_tts::step_kernel, *params, num_blocks, stream);
}
