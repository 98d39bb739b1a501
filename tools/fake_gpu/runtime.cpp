// A libcudart for a machine without a GPU: streams, events, captures and copies as CUDA's runtime
// API describes them, with host memory as the device's. run.py lets PyTorch's CUDA build load it;
// operations.py does on the CPU what PyTorch's kernels would do.
//
// Copies between host and device happen as late as CUDA allows: when a call waits for their stream
// or the stream goes on. So code that reads them too early, or overwrites their source too soon,
// gets wrong bytes. Everything else happens at once, which CUDA allows, too. During a capture
// nothing happens, and what CUDA forbids fails.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr int kNumDevices = 2;
constexpr size_t kDeviceBytes = size_t{8} << 30;

// One node of a graph: an operation of operations.py, or bytes to copy or set.
struct Node {
  int operation = -1;
  void* target = nullptr;
  const void* source = nullptr;  // null: bytes are set to `value`
  size_t num_bytes = 0;
  int value = 0;
};
using Graph = std::vector<Node>;

struct Pending {
  long serial;
  std::function<void()> run;
};

struct Stream {
  int device = 0;
  std::deque<Pending> queue;
  Graph* capture = nullptr;
  bool invalidated = false;
  cudaStreamCaptureMode mode{};
  unsigned long long capture_id = 0;
};

struct Event {
  Stream* stream = nullptr;
  long serial = 0;
  double milliseconds = 0;
  bool captured = false;
};

std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;
struct Block {
  size_t num_bytes;
  int device;
};
using Memory = std::map<uintptr_t, Block>;
Memory device_memory, pinned_memory;
size_t device_bytes[kNumDevices];
Stream legacy_streams[kNumDevices] = {{0}, {1}};
std::set<Stream*> streams{&legacy_streams[0], &legacy_streams[1]};
std::map<const void*, std::string> kernel_names;
long last_serial = 0;
unsigned long long last_capture = 0;
int global_captures = 0;
int (*run_operation)(int) = nullptr;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
thread_local int captures_of_thread = 0;

Stream* stream_of(cudaStream_t stream) {
  const bool is_legacy = !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  return is_legacy ? &legacy_streams[current_device] : reinterpret_cast<Stream*>(stream);
}
Event* event_of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }
Graph* graph_of(void* graph) { return static_cast<Graph*>(graph); }

cudaError_t fail(cudaError_t error, const char* what) {
  std::fprintf(stderr, "fake GPU: %s: cudaError %d\n", what, static_cast<int>(error));
  return last_error = error;
}

// The error of a call that may wait or touch what is captured.
cudaError_t refuse_in_capture(const char* what) {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  const bool others = global_captures && thread_mode == cudaStreamCaptureModeGlobal;
  if (!captures_of_thread && !others) return cudaSuccess;
  for (Stream* stream : streams) stream->invalidated |= stream->capture != nullptr;
  return fail(cudaErrorStreamCaptureUnsupported, what);
}

void finish(Stream* stream, long serial = last_serial) {
  while (!stream->queue.empty() && stream->queue.front().serial <= serial) {
    const Pending pending = std::move(stream->queue.front());
    stream->queue.pop_front();
    pending.run();
  }
}
void enqueue(Stream* stream, std::function<void()> run) {
  stream->queue.push_back({++last_serial, std::move(run)});
}
bool is_pending(const Event& event) {
  return event.stream && streams.count(event.stream) && !event.stream->queue.empty() &&
         event.stream->queue.front().serial <= event.serial;
}

bool holds(const Memory& memory, const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  auto block = memory.upper_bound(wanted);
  return block != memory.begin() && wanted < (--block)->first + block->second.num_bytes;
}

int device_of(const void* address) {  // the device whose device_memory holds it
  return (--device_memory.upper_bound(reinterpret_cast<uintptr_t>(address)))->second.device;
}

cudaError_t copy(void* target, const void* source, size_t num_bytes, Stream* stream) {
  const bool to_device = holds(device_memory, target);
  const bool inside = to_device && holds(device_memory, source);
  const bool pinned = holds(pinned_memory, to_device ? source : target);
  if (stream->capture) {
    if (!inside && !pinned) {
      stream->invalidated = true;
      return fail(cudaErrorStreamCaptureUnsupported, "capture of a copy of ordinary memory");
    }
    stream->capture->push_back({-1, target, source, num_bytes});
  } else if (pinned && !inside) {
    enqueue(stream, [=] { std::memcpy(target, source, num_bytes); });
  } else {
    finish(stream);
    std::memcpy(target, source, num_bytes);
  }
  return cudaSuccess;
}

cudaError_t not_done(const void* kernel) {
  const auto found = kernel_names.find(kernel);
  const std::string name = found == kernel_names.end() ? "a kernel" : found->second;
  if (name.find("spin_kernel") != std::string::npos) return cudaSuccess;  // torch.cuda._sleep
  return fail(cudaErrorNotSupported, name.c_str());
}

}  // namespace

extern "C" {

// ---- for operations.py
void fake_set_operations(int (*run)(int)) { run_operation = run; }
int fake_is_capturing(cudaStream_t stream) {
  const Lock lock(mutex);
  return stream_of(stream)->capture != nullptr;
}
void fake_record(cudaStream_t stream, int operation) {
  const Lock lock(mutex);
  stream_of(stream)->capture->push_back({operation});
}
void fake_finish(cudaStream_t stream) {
  const Lock lock(mutex);
  finish(stream_of(stream));
}
// Whether the current device is that of a stream and of a memory block.
int fake_is_here(cudaStream_t stream, const void* address) {
  const Lock lock(mutex);
  return stream_of(stream)->device == current_device && holds(device_memory, address) &&
         device_of(address) == current_device;
}
void fake_refuse(cudaStream_t stream, const char* what) {
  const Lock lock(mutex);
  stream_of(stream)->invalidated = true;
  fail(cudaErrorStreamCaptureUnsupported, what);
}

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

// ---- memory: all bits set at first, which is NaN
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

// ---- streams: PyTorch's own do not wait for the legacy stream
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const Lock lock(mutex);
  *stream = reinterpret_cast<cudaStream_t>(*streams.insert(new Stream{current_device}).first);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}
cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(mutex);
  if (const cudaError_t error = refuse_in_capture("cudaStreamSynchronize")) return error;
  finish(stream_of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Lock lock(mutex);
  if (const cudaError_t error = refuse_in_capture("cudaStreamQuery")) return error;
  if (stream_of(stream)->queue.empty()) return cudaSuccess;
  finish(stream_of(stream));  // a second call reports the same error
  return last_error = cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t of_event, unsigned) {
  const Lock lock(mutex);
  const Event event = *event_of(of_event);
  if (event.captured != (stream_of(stream)->capture != nullptr)) {
    return fail(cudaErrorStreamCaptureIsolation, "cudaStreamWaitEvent across a capture");
  }
  if (event.stream && event.stream != stream_of(stream)) {
    enqueue(stream_of(stream), [=] {
      if (is_pending(event)) finish(event.stream, event.serial);
    });
  }
  return cudaSuccess;
}

// ---- events
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(mutex);
  if (stream_of(stream)->device != current_device) {
    return fail(cudaErrorInvalidResourceHandle, "cudaEventRecord on another device's stream");
  }
  const std::chrono::duration<double, std::milli> now =
      std::chrono::steady_clock::now().time_since_epoch();
  *event_of(event) = {stream_of(stream), ++last_serial, now.count(),
                      stream_of(stream)->capture != nullptr};
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(mutex);
  if (const cudaError_t error = refuse_in_capture("cudaEventQuery")) return error;
  if (!is_pending(*event_of(event))) return cudaSuccess;
  finish(event_of(event)->stream, event_of(event)->serial);
  return last_error = cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(mutex);
  if (const cudaError_t error = refuse_in_capture("cudaEventSynchronize")) return error;
  if (is_pending(*event_of(event))) finish(event_of(event)->stream, event_of(event)->serial);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = static_cast<float>(event_of(to)->milliseconds - event_of(from)->milliseconds);
  return cudaSuccess;
}

// ---- captures and graphs
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t of_stream, cudaStreamCaptureMode mode) {
  const Lock lock(mutex);
  Stream* stream = stream_of(of_stream);
  if (stream == &legacy_streams[stream->device] || stream->capture) {
    return fail(cudaErrorStreamCaptureUnsupported, "cudaStreamBeginCapture");
  }
  finish(stream);
  stream->capture = new Graph;
  stream->invalidated = false;
  stream->mode = mode;
  stream->capture_id = ++last_capture;
  captures_of_thread += mode != cudaStreamCaptureModeRelaxed;
  global_captures += mode == cudaStreamCaptureModeGlobal;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t of_stream, cudaGraph_t* graph) {
  const Lock lock(mutex);
  Stream* stream = stream_of(of_stream);
  if (!stream->capture) return fail(cudaErrorIllegalState, "cudaStreamEndCapture");
  captures_of_thread -= stream->mode != cudaStreamCaptureModeRelaxed;
  global_captures -= stream->mode == cudaStreamCaptureModeGlobal;
  *graph = reinterpret_cast<cudaGraph_t>(stream->capture);
  stream->capture = nullptr;
  if (!stream->invalidated) return cudaSuccess;
  *graph = nullptr;
  return fail(cudaErrorStreamCaptureInvalidated, "cudaStreamEndCapture");
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Lock lock(mutex);
  if (stream_of(stream) == &legacy_streams[current_device]) {
    if (const cudaError_t error = refuse_in_capture("use of the legacy stream")) return error;
  }
  *status = !stream_of(stream)->capture      ? cudaStreamCaptureStatusNone
            : stream_of(stream)->invalidated ? cudaStreamCaptureStatusInvalidated
                                             : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* num_dependencies) {
  if (const cudaError_t error = cudaStreamIsCapturing(stream, status)) return error;
  if (id) *id = stream_of(stream)->capture_id;
  if (graph) *graph = reinterpret_cast<cudaGraph_t>(stream_of(stream)->capture);
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (num_dependencies) *num_dependencies = 0;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* num_nodes) {
  *num_nodes = graph_of(graph)->size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long) {
  *executable = reinterpret_cast<cudaGraphExec_t>(new Graph(*graph_of(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph_of(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete graph_of(executable);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (fake_is_capturing(stream)) return fail(cudaErrorStreamCaptureUnsupported, "cudaGraphLaunch");
  for (const Node& node : *graph_of(executable)) {
    if (node.operation >= 0) {  // without the lock: it takes Python's
      fake_finish(stream);
      if (run_operation(node.operation)) return fail(cudaErrorLaunchFailure, "cudaGraphLaunch");
    } else if (node.source) {
      cudaMemcpyAsync(node.target, node.source, node.num_bytes, cudaMemcpyDefault, stream);
    } else {
      cudaMemsetAsync(node.target, node.value, node.num_bytes, stream);
    }
  }
  return cudaSuccess;
}

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
}
