// Runs a kernel of instructions.ptx, translated to C++, with one block.
#include "emulation/cuda_emulation.h"

struct alignas(8) Buffers {
  void *in, *out;
};

extern "C" int run(void (*kernel)(Buffers), void* in, void* out, int num_threads) {
  constexpr size_t kSharedBytes = 1024;
  const Buffers buffers{in, out};
  return emulation::launch(dim3(1), dim3(num_threads), kSharedBytes, [=] { kernel(buffers); });
}
