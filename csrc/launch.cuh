// Host side of the kernels: finds the largest grid, and launches it. Each kernel has its own source
// file, so that several cores can compile them at the same time.
#pragma once
#include "layer.cuh"

namespace qwen_tts {

constexpr size_t kSmemBytes = sizeof(BlockSmem);

// Finds how many blocks of a kernel can be resident at once on the current device: a grid barrier
// needs all of them. It also grants the kernel its shared memory there. Call it once for each
// device, before the first launch; a launch then queries nothing.
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
  // The driver refuses a grid that cannot be resident, instead of starting it and letting it hang.
  return launch_cooperative(kernel, num_blocks, kNumThreads, kSmemBytes, stream, params);
}

// Set the number of blocks of each kernel that can be resident at once.
cudaError_t max_step_blocks(int* num_blocks);
cudaError_t max_few_step_blocks(int* num_blocks);
cudaError_t max_forward_blocks(int* num_blocks);

int launch_few_step(const StepParams& params, int num_blocks, void* stream);

}  // namespace qwen_tts
