// Probes that run one stage alone, for tests/decoders/kernel. Each probe launches a small kernel
// whose arguments are those of the stage, in global memory. Only test builds have them.
#include "frame.cuh"

namespace qwen_tts {
namespace {

struct MatvecProbe {
  const void* packed;
  const float* scales;  // null: the matrix holds Weight, else int8
  const float* x;
  const void* norm_weight;
  float* y;
  int32_t num_rows;
  int32_t num_passes;  // number of times the matrix is read, as its own successor in the stream
};

// Runs the talker's down_proj (plain rows) or qkv_proj (normed rows), on each block's share.
template <class Matrix, class Input>
__device__ void run_matvec(const MatvecProbe& p, const Input& rows) {
  BlockSmem& smem = *reinterpret_cast<BlockSmem*>(dynamic_smem());
  const Matrix matrix{p.packed, p.scales};
  const TileGrid grid = tile_grid(matrix);
  const TileGrid again = p.num_passes > 1 ? grid : TileGrid{};
  prime(smem.rings, Team::whole_grid(), {grid, again});
  WeightStream<kRingSlots> stream(smem.rings);
  for (int pass = 0; pass < p.num_passes; ++pass) {
    stream.open(grid, {pass + 1 < p.num_passes ? grid : TileGrid{},
                       pass + 2 < p.num_passes ? grid : TileGrid{}});
    __syncthreads();  // the block has finished the previous pass
    matvec(
        stream, matrix, rows,
        [&](int row, int i, float2 sum) {
          *reinterpret_cast<float2*>(&p.y[static_cast<size_t>(row) * Matrix::kOut + i]) = sum;
        },
        smem.stage.matvec);
  }
  copy_async_wait<0>();
}

template <int kOut, int kIn, class Input>
__device__ void run_either(const MatvecProbe& p, const Input& rows) {
  if constexpr (kAnyInt8) {
    if (p.scales) return run_matvec<PackedMatrix<kOut, kIn, true>>(p, rows);
  }
  run_matvec<PackedMatrix<kOut, kIn>>(p, rows);
}

__global__ void __launch_bounds__(kNumThreads, 1) matvec_kernel(MatvecProbe p) {
  if (p.norm_weight) {
    const NormedRows rows{p.x, Talker::kHidden, p.num_rows,
                          static_cast<const Weight*>(p.norm_weight), 1e-6f};
    run_either<Talker::kQkvSize, Talker::kHidden>(p, rows);
  } else {
    const Rows rows{p.x, Talker::kIntermediate, p.num_rows};
    run_either<Talker::kHidden, Talker::kIntermediate>(p, rows);
  }
}

struct NormRopeProbe {
  Stack stack;
  float* out;          // [num_heads, head_dim]
  const float* heads;  // [num_heads, head_dim]
  const void* weight;  // [head_dim]
  float* normed_row;   // [hidden]
  const float* row;
  const void* row_weight;
  int32_t num_heads;
  int32_t positions[3];
};

__global__ void __launch_bounds__(kNumThreads, 1) norm_rope_kernel(NormRopeProbe p) {
  BlockSmem& smem = *reinterpret_cast<BlockSmem*>(dynamic_smem());
  float* head = smem.stage.talker_attention.fresh_keys[0] + warp_idx() * Talker::kHeadDim;
  const PassRow row{0, 0, 0, {p.positions[0], p.positions[1], p.positions[2]}};
  for (int i = warp_idx(); i < p.num_heads; i += kNumWarps) {
    RotatedHead<Talker::kHeadDim, Talker::kQkNorm, 3>(p.heads + i * Talker::kHeadDim,
                                                      static_cast<const Weight*>(p.weight),
                                                      row.rope_position(), p.stack)
        .finish(p.stack, [&](int j, const auto& values) { store_elements(head + j, values); });
    __syncwarp();
    for (int j = lane_idx(); j < Talker::kHeadDim; j += kWarpSize) {
      p.out[i * Talker::kHeadDim + j] = head[j];
    }
    __syncwarp();
  }
  __syncthreads();
  rms_norm<Talker::kHidden>(p.normed_row, p.row, static_cast<const Weight*>(p.row_weight),
                            p.stack.rms_norm_eps, smem.stage.norm);
}

struct AttentionProbe {
  Stack stack;
  Workspace workspace;
  const void* head_norms;
  int32_t slots[16];
  int32_t positions[16];
  int32_t first_rows[16];
  int32_t num_rows;
};

__device__ void plan(const AttentionProbe& p, BlockSmem& smem) {
  if (thread_idx() < p.num_rows) {
    const int i = thread_idx(), position = p.positions[i];
    smem.pass.rows[i] = {p.slots[i], position, p.first_rows[i], {position, position, position}};
  }
  if (thread_idx() == 0) {
    smem.pass.num_rows = smem.pass.sequence_rows = p.num_rows;
    for (int i = p.num_rows - 1; i > 0; --i) {  // where the second sequence begins
      if (p.first_rows[i] == i) smem.pass.sequence_rows = i;
    }
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kNumThreads, 1) attention_kernel(AttentionProbe p) {
  BlockSmem& smem = *reinterpret_cast<BlockSmem*>(dynamic_smem());
  plan(p, smem);
  Attention<Talker>(p.stack, 0, static_cast<const Weight*>(p.head_norms), smem.pass, p.workspace,
                    smem.stage.talker_attention)
      .run();
}

// Fills a stage with NaNs, as floats and as bf16: a stage may use nothing that another one left.
__device__ void poison(StageSmem& stage) {
  unsigned* words = reinterpret_cast<unsigned*>(&stage);
  for (size_t i = thread_idx(); i < sizeof stage / sizeof(unsigned); i += kNumThreads) {
    words[i] = 0x7fff7fffu;
  }
  __syncthreads();
}

// Treats the rows as one prompt, whose first position is that of row 0.
__global__ void __launch_bounds__(kNumThreads, 1) prompt_attention_kernel(AttentionProbe p) {
  BlockSmem& smem = *reinterpret_cast<BlockSmem*>(dynamic_smem());
  poison(smem.stage);
  const PromptRows prompt{p.slots[0], p.positions[0], p.num_rows, nullptr, 0};
  PromptAttention<Talker>(p.stack, 0, static_cast<const Weight*>(p.head_norms), prompt, p.workspace,
                          smem.stage.prompt_attention)
      .run();
}

// Every block computes this for itself; the last block copies its result to the workspace.
__global__ void __launch_bounds__(kNumThreads, 1) short_attention_kernel(AttentionProbe p) {
  BlockSmem& smem = *reinterpret_cast<BlockSmem*>(dynamic_smem());
  poison(smem.stage);
  plan(p, smem);
  const ShortAttention<Predictor> attention(p.stack, 0, static_cast<const Weight*>(p.head_norms),
                                            smem.pass, p.workspace, smem.stage.predictor_attention);
  attention.prefetch_cache();
  __syncthreads();
  attention.run();
  if (!attention.everywhere() || block_idx() != num_blocks() - 1) return;
  const auto activation = [&](int row, int col) {
    const float* words = smem.stage.matvec.activations + row * row_stride(kOProjCols<Predictor>);
#if WEIGHTS_F32
    return words[col];
#else
    const auto part = [&](int which) {
      const unsigned pair = __float_as_uint(words[col / 4 * 4 + col % 4 / 2 * 2 + which]);
      return col % 2 ? upper_bf16(pair) : lower_bf16(pair);
    };
    return part(0) + part(1);
#endif
  };
  for (int row = 0; row < p.num_rows; ++row) {
    float padding = 0;
    for (int i = Predictor::kQSize; i < kOProjCols<Predictor>; ++i) padding += activation(row, i);
    for (int i = thread_idx(); i < Predictor::kQSize; i += kNumThreads) {
      p.workspace.attention[row * Predictor::kQSize + i] = activation(row, i) + padding;
    }
  }
}

struct SamplingProbe {
  const float* logits;   // [num_draws, vocab]
  const uint32_t* seen;  // [vocab / 32] or null
  int32_t* tokens;       // [num_draws]
  float* noise;          // [num_draws, vocab] or null
  SamplingParams params;
  int32_t vocab;
  int32_t num_draws;  // draw i has frame number i
  int32_t suppressed_from, eos, eos_banned;
  uint32_t seed_low, seed_high, part, codebook;
};

__global__ void __launch_bounds__(kNumThreads, 1) sampling_kernel(SamplingProbe p) {
  BlockSmem& smem = *reinterpret_cast<BlockSmem*>(dynamic_smem());
  const TokenRules rules{p.seen, p.params.repetition_penalty, p.suppressed_from, p.eos,
                         p.eos_banned != 0};
  for (int draw = block_idx(); draw < p.num_draws; draw += num_blocks()) {
    const DrawAddress address{p.seed_low, p.seed_high, p.part, static_cast<uint32_t>(draw),
                              p.codebook};
    prepare_draw(p.vocab, p.params, address, smem.stage.sampling);
    __syncthreads();
    const int token = draw_token(p.logits + static_cast<size_t>(draw) * p.vocab, p.vocab, p.params,
                                 rules, smem.stage.sampling);
    if (thread_idx() == 0) p.tokens[draw] = token;
    for (int i = thread_idx(); p.noise && i < p.vocab; i += kNumThreads) {
      p.noise[static_cast<size_t>(draw) * p.vocab + i] = smem.stage.sampling.noise[i];
    }
    __syncthreads();
  }
}

struct BarrierProbe {
  Control* control;
  int32_t* board;  // [2, num_blocks * threads]
  int32_t* errors;
  int32_t* synced;  // [num_blocks] barriers passed
  int32_t num_rounds;
  int32_t absent_block;  // this block leaves without reaching the barrier; -1: none
  int32_t reporting_block;
  int32_t pad;
  uint64_t timeout_ns;
};

__global__ void __launch_bounds__(kNumThreads, 1) barrier_kernel(BarrierProbe p) {
  BlockSmem& smem = *reinterpret_cast<BlockSmem*>(dynamic_smem());
  GridBarrier barrier(p.control, p.timeout_ns, smem.barrier);
  const int per_round = num_blocks() * kNumThreads;
  for (int round = 0; round < p.num_rounds; ++round) {
    if (round == p.num_rounds / 2) {
      if (block_idx() == p.absent_block) return;
      if (block_idx() == p.reporting_block && thread_idx() == 0) {
        barrier.report(LaunchStatus::kCancelled, Stage::kSampleCode, 7);
      }
    }
    int32_t* board = p.board + round % 2 * per_round;
    board[block_idx() * kNumThreads + thread_idx()] = round;
    if (!barrier.sync(Stage::kOProj, round)) break;
    if (thread_idx() == 0) p.synced[block_idx()] = round + 1;
    // Every thread reads what the threads with its index wrote in all blocks.
    for (int block = 0; block < num_blocks(); ++block) {
      if (__ldcg(&board[block * kNumThreads + thread_idx()]) != round) {
        atomicAdd(reinterpret_cast<unsigned*>(p.errors), 1u);
      }
    }
  }
  barrier.leave();
}

template <class Params>
int run(void (*kernel)(Params), const Params& params, int num_blocks) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(sizeof(BlockSmem)));
  return launch_cooperative(kernel, num_blocks, kNumThreads, sizeof(BlockSmem), nullptr, params);
}

}  // namespace
}  // namespace qwen_tts

using namespace qwen_tts;

extern "C" {
int probe_matvec(const MatvecProbe* p, int blocks) { return run(matvec_kernel, *p, blocks); }
int probe_norm_rope(const NormRopeProbe* p) { return run(norm_rope_kernel, *p, 1); }
int probe_attention(const AttentionProbe* p, int blocks) {
  return run(attention_kernel, *p, blocks);
}
int probe_prompt_attention(const AttentionProbe* p, int blocks) {
  return run(prompt_attention_kernel, *p, blocks);
}
int probe_short_attention(const AttentionProbe* p, int blocks) {
  return run(short_attention_kernel, *p, blocks);
}
int probe_sampling(const SamplingProbe* p, int blocks) { return run(sampling_kernel, *p, blocks); }
int probe_barrier(const BarrierProbe* p, int blocks) { return run(barrier_kernel, *p, blocks); }
}
