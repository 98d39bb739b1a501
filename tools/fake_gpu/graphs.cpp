// The part of the runtime that captures and launches graphs, and what operations.py calls.
#include "state.h"

using namespace fake;

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

}  // extern "C"
