// What a GPU offers a frame kernel, measured without that kernel: a grid barrier and a trip to L2
// in the middle of a frame's traffic, the exchange of activations with and without a barrier,
// bandwidth by way of reading, kinds of grid barriers, and the skeleton of a frame (its weight
// slices, activation round trips and barriers, without the arithmetic). It prints one JSON object a
// line, the most decisive first. Each part is a file of this folder.
//
//   nvcc -std=c++17 -O3 -arch=sm_90a tools/gpu_check/gpu_bench/gpu_bench.cu && ./a.out
//
// With a host compiler and csrc/emulation/*.cpp the same kernels run by emulation on a few bytes,
// which proves that they end and read the right words; those times mean nothing.
#include "barriers.cuh"
#include "exchange.cuh"
#include "reading.cuh"
#include "skeleton.cuh"
#include "traffic.cuh"

int main() {
  using namespace qwen_tts;
  const Machine m = machine();
  measure_barriers_in_traffic(m);
  measure_l2_latency(m);
  measure_exchange(m);
  measure_copy(m);
  measure_reading(m);
  measure_barrier<Barrier::kCounter>(m);
  measure_barrier<Barrier::kCounterPause>(m);
  measure_barrier<Barrier::kReleaseWord>(m);
  measure_barrier<Barrier::kSlots>(m);
  measure_barrier<Barrier::kEightCounters>(m);
  if (!kEmulated) measure_barrier<Barrier::kGridSync>(m);
  for (int bytes_per_weight : {2, 1}) {
    measure_frame(m, "0.6B", 1024, bytes_per_weight);
    measure_frame(m, "1.7B", 2048, bytes_per_weight);
  }
  return 0;
}
