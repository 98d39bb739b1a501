// The part of the runtime that allocates, releases, copies and sets memory.
#include "state.h"

using namespace fake;

namespace {

cudaError_t allocate(void** address, size_t num_bytes, Memory& memory) {
  const Lock lock(mutex);
  if (const cudaError_t error = refuse_in_capture("an allocation")) return error;
  size_t nothing = 0;
  size_t& used = &memory == &device_memory ? device_bytes[current_device] : nothing;
  if (used + num_bytes > kDeviceBytes || posix_memalign(address, 4096, num_bytes)) {
    return last_error = cudaErrorMemoryAllocation;
  }
  std::memset(*address, 0xff, num_bytes);
  memory[reinterpret_cast<uintptr_t>(*address)] = {num_bytes, current_device};
  used += num_bytes;
  return cudaSuccess;
}
cudaError_t release(void* address, Memory& memory) {
  const Lock lock(mutex);
  if (!address) return cudaSuccess;
  if (const cudaError_t error = refuse_in_capture("a release of memory")) return error;
  const auto block = memory.find(reinterpret_cast<uintptr_t>(address));
  if (block == memory.end()) return fail(cudaErrorInvalidValue, "a release of memory");
  for (Stream* stream : streams) finish(stream);
  if (&memory == &device_memory) device_bytes[block->second.device] -= block->second.num_bytes;
  memory.erase(block);
  std::free(address);
  return cudaSuccess;
}

}  // namespace

extern "C" {

// ---- memory: all bits set at first, which is NaN
cudaError_t cudaMalloc(void** address, size_t num_bytes) {
  return allocate(address, num_bytes, device_memory);
}
cudaError_t cudaFree(void* address) { return release(address, device_memory); }
cudaError_t cudaHostAlloc(void** address, size_t num_bytes, unsigned) {
  return allocate(address, num_bytes, pinned_memory);
}
cudaError_t cudaFreeHost(void* address) { return release(address, pinned_memory); }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  const Lock lock(mutex);
  const bool on_device = holds(device_memory, address), pinned = holds(pinned_memory, address);
  *attributes = {};
  if (on_device) {
    attributes->device = device_of(address);
  }
  attributes->type = on_device ? cudaMemoryTypeDevice
                     : pinned  ? cudaMemoryTypeHost
                               : cudaMemoryTypeUnregistered;
  if (on_device || pinned) attributes->devicePointer = const_cast<void*>(address);
  if (pinned) attributes->hostPointer = const_cast<void*>(address);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t num_bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const Lock lock(mutex);
  return copy(target, source, num_bytes, stream_of(stream));
}
cudaError_t cudaMemcpy(void* target, const void* source, size_t num_bytes, cudaMemcpyKind) {
  const Lock lock(mutex);
  if (const cudaError_t error = refuse_in_capture("cudaMemcpy")) return error;
  finish(&legacy_streams[current_device]);
  std::memcpy(target, source, num_bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* target, int value, size_t num_bytes, cudaStream_t stream) {
  const Lock lock(mutex);
  if (Graph* graph = stream_of(stream)->capture) {
    graph->push_back({-1, target, nullptr, num_bytes, value});
  } else {
    finish(stream_of(stream));
    std::memset(target, value, num_bytes);
  }
  return cudaSuccess;
}

}  // extern "C"
