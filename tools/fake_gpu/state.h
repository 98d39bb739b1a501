// The state of the runtime that takes the place of CUDA's: devices, memory, streams, captures, and
// the functions that change it. See runtime.cpp.
#pragma once

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

namespace fake {

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

inline std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;
struct Block {
  size_t num_bytes;
  int device;
};
using Memory = std::map<uintptr_t, Block>;
inline Memory device_memory, pinned_memory;
inline size_t device_bytes[kNumDevices];
inline Stream legacy_streams[kNumDevices] = {{0}, {1}};
inline std::set<Stream*> streams{&legacy_streams[0], &legacy_streams[1]};
inline std::map<const void*, std::string> kernel_names;
inline long last_serial = 0;
inline unsigned long long last_capture = 0;
inline int global_captures = 0;
inline int (*run_operation)(int) = nullptr;

inline thread_local int current_device = 0;
inline thread_local cudaError_t last_error = cudaSuccess;
inline thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
inline thread_local int captures_of_thread = 0;

inline Stream* stream_of(cudaStream_t stream) {
  const bool is_legacy = !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  return is_legacy ? &legacy_streams[current_device] : reinterpret_cast<Stream*>(stream);
}
inline Event* event_of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }
inline Graph* graph_of(void* graph) { return static_cast<Graph*>(graph); }

inline cudaError_t fail(cudaError_t error, const char* what) {
  std::fprintf(stderr, "fake GPU: %s: cudaError %d\n", what, static_cast<int>(error));
  return last_error = error;
}

// The error of a call that may wait or disturb a capture.
inline cudaError_t refuse_in_capture(const char* what) {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  const bool others = global_captures && thread_mode == cudaStreamCaptureModeGlobal;
  if (!captures_of_thread && !others) return cudaSuccess;
  for (Stream* stream : streams) stream->invalidated |= stream->capture != nullptr;
  return fail(cudaErrorStreamCaptureUnsupported, what);
}

inline void finish(Stream* stream, long serial = last_serial) {
  while (!stream->queue.empty() && stream->queue.front().serial <= serial) {
    const Pending pending = std::move(stream->queue.front());
    stream->queue.pop_front();
    pending.run();
  }
}
inline void enqueue(Stream* stream, std::function<void()> run) {
  stream->queue.push_back({++last_serial, std::move(run)});
}
inline bool is_pending(const Event& event) {
  return event.stream && streams.count(event.stream) && !event.stream->queue.empty() &&
         event.stream->queue.front().serial <= event.serial;
}

inline bool holds(const Memory& memory, const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  auto block = memory.upper_bound(wanted);
  return block != memory.begin() && wanted < (--block)->first + block->second.num_bytes;
}

inline int device_of(const void* address) {  // the device whose device_memory holds it
  return (--device_memory.upper_bound(reinterpret_cast<uintptr_t>(address)))->second.device;
}

inline cudaError_t copy(void* target, const void* source, size_t num_bytes, Stream* stream) {
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

inline cudaError_t not_done(const void* kernel) {
  const auto found = kernel_names.find(kernel);
  const std::string name = found == kernel_names.end() ? "a kernel" : found->second;
  if (name.find("spin_kernel") != std::string::npos) return cudaSuccess;  // torch.cuda._sleep
  return fail(cudaErrorNotSupported, name.c_str());
}

}  // namespace fake
