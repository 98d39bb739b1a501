// A libcudart for a machine without a GPU: streams, events, captures and copies as CUDA's runtime
// API describes them, with host memory as the device's. run.py lets PyTorch's CUDA build load it;
// operations.py does on the CPU what PyTorch's kernels would do.
//
// Copies between host and device happen as late as CUDA allows: when a call waits for their stream
// or the stream goes on. Code that reads the target too early, or overwrites the source too soon,
// therefore gets wrong bytes. Everything else happens at once, which CUDA allows, too. During a
// capture nothing happens, and calls that CUDA forbids there fail.
#include "state.h"

using namespace fake;

extern "C" {

// ---- devices
cudaError_t cudaGetDeviceCount(int* count) {
  *count = kNumDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device >= kNumDevices) return fail(cudaErrorInvalidDevice, "cudaSetDevice");
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "No GPU (an H200 as its runtime sees it)");
  properties->totalGlobalMem = kDeviceBytes;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = 227 << 10;
  properties->sharedMemPerMultiprocessor = 228 << 10;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 64 << 10;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->l2CacheSize = 60 << 20;
  properties->textureAlignment = 512;
  properties->unifiedAddressing = properties->canMapHostMemory = 1;
  properties->concurrentKernels = properties->cooperativeLaunch = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, 0);
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? properties.major
           : attribute == cudaDevAttrMultiProcessorCount  ? properties.multiProcessorCount
           : attribute == cudaDevAttrTextureAlignment     ? 512
                                                          : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const Lock lock(mutex);
  if (const cudaError_t error = refuse_in_capture("cudaDeviceSynchronize")) return error;
  for (Stream* stream : streams) {
    if (stream->device == current_device) finish(stream);
  }
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const Lock lock(mutex);
  *total = kDeviceBytes;
  *free = kDeviceBytes - device_bytes[current_device];
  return cudaSuccess;
}

// ---- errors
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorName(cudaError_t error) {
  static thread_local char name[32];
  std::snprintf(name, sizeof name, "cudaError %d", static_cast<int>(error));
  return name;
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

// ---- kernels that operations.py has no operation for: none starts
void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, void*, void*,
                            void*, void*, int*) {
  kernel_names[kernel] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaSuccess; }
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return not_done(kernel);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* kernel, void**) {
  return not_done(kernel);
}

// ---- libcuda, as far as PyTorch calls it
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  *active = 1;
  return 0;
}
int cuDriverGetVersion(int* version) { return cudaDriverGetVersion(version); }

}  // extern "C"
