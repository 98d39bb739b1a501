// Prompt rows: forward_kernel and its launcher.
// A team's block has many tiles; rows that do not fit would be read again for every few of them.
#undef CHUNK_COLS
#define CHUNK_COLS FORWARD_CHUNK_COLS
#include "forward.cuh"
#include "launch.cuh"

namespace qwen_tts {

// One block per SM: shared memory and registers are planned for that.
__global__ void __launch_bounds__(kNumThreads, 1)
    forward_kernel(const __grid_constant__ ForwardParams p) {
  Context context(p.model, p.slots, p.workspace, p.timeout_ns, dynamic_smem());
  if (p.use_predictor) {
    const Stack& predictor = p.model.predictor;
    forward_rows<Predictor>(p, predictor, p.model.predictor_table,
                            PassAttention<Predictor>{predictor, context}, context);
  } else {
    const auto attention_of = [&](int layer, const Weight* head_norms) {
      return ForwardAttention(p, layer, head_norms, context.smem);
    };
    forward_rows<Talker>(p, p.model.talker, p.model.frame_table, attention_of, context);
  }
  copy_async_wait<0>();  // weights that no product will read
  context.barrier.leave();
}

cudaError_t max_forward_blocks(int* num_blocks) { return max_blocks(forward_kernel, num_blocks); }

}  // namespace qwen_tts

extern "C" int qwen_tts_forward(const qwen_tts::ForwardParams* params, int32_t num_blocks,
                                void* stream) {
  return qwen_tts::launch(qwen_tts::forward_kernel, *params, num_blocks, stream);
}
