// The part of the runtime that has streams and events.
#include "state.h"

using namespace fake;

extern "C" {

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

}  // extern "C"
