// Host side of the kernels: how large a grid may be, and its start. Each kernel is a source file
// of its own, so that two cores compile them together.
#pragma once
#include "layer.cuh"

namespace qwen_tts {

constexpr size_t kSmemBytes = sizeof(BlockSmem);

// How many blocks of a kernel can be resident at once on the current device: a grid barrier needs
// all of them. Also lets the kernel have its shared memory there. Once for each device, before the
// first launch: a launch asks nothing.
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
  // A grid that cannot be resident is refused by the driver, not started and left to hang.
  return launch_cooperative(kernel, num_blocks, kNumThreads, kSmemBytes, stream, params);
}

// Blocks of each kernel that can be resident at once.
cudaError_t max_step_blocks(int* num_blocks);
cudaError_t max_few_step_blocks(int* num_blocks);
cudaError_t max_forward_blocks(int* num_blocks);

int launch_few_step(const StepParams& params, int num_blocks, void* stream);

}  // namespace qwen_tts
