// A stack of Qwen3 decoder layers, stage by stage; one template for talker and predictor.
#pragma once
#include "attention.cuh"
#include "barrier.cuh"
#include "matvec.cuh"
#include "prompt_attention.cuh"
#include "sampling.cuh"
#include "short_attention.cuh"

namespace qwen_tts {

// Bytes of a slot in all weight rings. The rings get what the stages leave of SMEM_BYTES, which is
// the most shared memory that a block may have.
constexpr int kSlotBytes =
    kNumWarps * kVectorsOfWeight * kWarpSize * static_cast<int>(sizeof(uint4));

constexpr int kOtherBytes = 2048;  // most bytes of BlockSmem's members besides stage and rings

// The predictor uses short attention if its keys and values fit in shared memory beside a small
// ring, and if its rows fit in the place from which o_proj reads them.
constexpr bool kPredictorIsShort =
    SHORT_ATTENTION && kNumCodeGroups <= kWarpSize && Predictor::kHeadsPerKv <= 8 &&
    kRowsEverywhere * row_stride(kOProjCols<Predictor>) <= kMaxRows * row_stride(kChunkCols) &&
    sizeof(ShortAttentionSmem<Predictor>) + kOtherBytes + 2 * kSlotBytes <= SMEM_BYTES;
template <class Dims>
constexpr bool kIsShort = kPredictorIsShort && Dims::kMaxPositions != 0;
template <class Dims>
using LayerAttention = std::conditional_t<kIsShort<Dims>, ShortAttention<Dims>, Attention<Dims>>;
template <class Dims>
using LayerAttentionSmem =
    std::conditional_t<kIsShort<Dims>, ShortAttentionSmem<Dims>, AttentionSmem<Dims>>;

// Shared memory of the stage that runs; nothing in it survives a grid barrier.
union StageSmem {
  MatvecSmem matvec;
  LayerAttentionSmem<Talker> talker_attention;
  LayerAttentionSmem<Predictor> predictor_attention;
  PromptContext<Talker> prompt_attention;
  SamplingSmem sampling;
  NormSmem norm;
  int table_rows[kNumCodeGroups];  // of a frame's embedding
};

constexpr int kReservedBytes = static_cast<int>(sizeof(StageSmem)) + kOtherBytes;
static_assert(kReservedBytes + kSlotBytes <= SMEM_BYTES, "the stages do not fit shared memory");
constexpr int kFittingSlots = (SMEM_BYTES - kReservedBytes) / kSlotBytes;
constexpr int kRingSlots = kFittingSlots < LOOKAHEAD_TILES ? kFittingSlots : LOOKAHEAD_TILES;

// The rows of a launch that a pass takes, and the rows that this block's team takes (forward.cuh).
struct ForwardPlan {
  int num_teams, num_passes;
  int pass;                    // the index of the next pass
  int begin, count;            // of the pass, within the launch
  int team_begin, team_count;  // of the team, within the pass
  PromptRows prompt;           // the rows of the pass
};

// The shared memory of a block.
struct BlockSmem {
#if STAGE_TIMES
  StageTimesSmem times;
#endif
  StageSmem stage;
  WeightRings<kRingSlots> rings;
  Pass pass;
  int frame;                 // counted within this launch
  int num_rows;              // streams that still decode
  int streams[kMaxRows];     // their numbers, by row
  int talker_row[kMaxRows];  // a stream's row in the talker's pass; -1: none
  BarrierSmem barrier;
  ForwardPlan forward;
};
static_assert(sizeof(BlockSmem) <= SMEM_BYTES);

// The objects that every stage can use.
struct Context {
  const Model& model;
  const SlotBuffers& slots;
  const Workspace& workspace;
  BlockSmem& smem;
  GridBarrier barrier;

  __device__ Context(const Model& model_, const SlotBuffers& slots_, const Workspace& workspace_,
                     uint64_t timeout_ns, unsigned char* smem_bytes)
      : model(model_),
        slots(slots_),
        workspace(workspace_),
        smem(*reinterpret_cast<BlockSmem*>(smem_bytes)),
        barrier(workspace_.control, timeout_ns, smem.barrier) {
    if (thread_idx() == 0) begin_stage_times(workspace_.stage_times);
  }
};

// The weights of one layer, one after another in this order.
template <class Dims>
class LayerWeights {
 public:
  template <int kOut, int kIn>
  using Matrix = PackedMatrix<kOut, kIn, Dims::kInt8>;
  using Qkv = Matrix<Dims::kQkvSize, Dims::kHidden>;  // rows q, k, v
  using O = Matrix<Dims::kHidden, Dims::kQSize>;
  using GateUp = Matrix<2 * Dims::kIntermediate, Dims::kHidden>;  // rows gate 0, up 0, gate 1, ...
  using Down = Matrix<Dims::kHidden, Dims::kIntermediate>;
  static constexpr size_t kMatrixBytes = Qkv::kBytes + O::kBytes + GateUp::kBytes + Down::kBytes;
  // f32 scales of the rows of all matrices, in the order of the matrices
  static constexpr size_t kScaleBytes =
      Dims::kInt8 ? sizeof(float) * (Qkv::kOut + O::kOut + GateUp::kOut + Down::kOut) : 0;
  static constexpr size_t kNorms = 2 * Dims::kHidden + (Dims::kQkNorm ? 2 * Dims::kHeadDim : 0);
  static constexpr size_t kBias = Dims::kQkvBias ? Dims::kQkvSize : 0;
  static constexpr size_t kBytes = kMatrixBytes + kScaleBytes + sizeof(Weight) * (kNorms + kBias);
  static_assert(kBytes % 16 == 0, "the next layer is aligned, too");

  __device__ LayerWeights(const Stack& stack, int layer)
      : first_(static_cast<const unsigned char*>(stack.layers) + layer * kBytes) {}

  // These are functions: members would keep eight addresses in registers through a layer.
  __device__ Qkv qkv_proj() const { return {first_, scales()}; }
  __device__ O o_proj() const { return {at<Qkv::kBytes>(), scales() + Qkv::kOut}; }
  __device__ GateUp gate_up_proj() const {
    return {at<Qkv::kBytes + O::kBytes>(), scales() + Qkv::kOut + O::kOut};
  }
  __device__ Down down_proj() const {
    return {first_ + kMatrixBytes - Down::kBytes, scales() + Qkv::kOut + O::kOut + GateUp::kOut};
  }
  __device__ const float* scales() const {
    return reinterpret_cast<const float*>(first_ + kMatrixBytes);
  }
  __device__ const Weight* input_norm() const {  // [kHidden]
    return reinterpret_cast<const Weight*>(first_ + kMatrixBytes + kScaleBytes);
  }
  __device__ const Weight* post_norm() const { return input_norm() + Dims::kHidden; }
  // [2, kHeadDim], for q and for k; only if the model normalises heads
  __device__ const Weight* head_norms() const { return post_norm() + Dims::kHidden; }
  // [kQkvSize], only if the model has it
  __device__ const Weight* qkv_bias() const { return input_norm() + kNorms; }

 private:
  // The compiler computes these addresses at a matrix's forecast and keeps them until its product.
  // In a kernel with int8 layers (1.7B, sm_90a) it then spills one, which `opaque` prevents; in
  // others `opaque` itself makes a kernel spill.
  template <size_t kOffset>
  __device__ const unsigned char* at() const {
    if constexpr (kAnyInt8) return first_ + opaque(static_cast<int>(kOffset));
    return first_ + kOffset;
  }

  const unsigned char* first_;
};

// The first two matrices of a layer.
template <class Dims>
__device__ Forecast layer_start(const Stack& stack, int layer) {
  const LayerWeights<Dims> weights(stack, layer);
  return {tile_grid(weights.qkv_proj()), tile_grid(weights.o_proj())};
}

// Prefetches a layer's norm vectors to L2. The weight stream does not carry them, and a whole stage
// would wait for memory at their first use. The last block does it: the first ones draw codes. The
// scales, which lie in front of them, are ten times as large, so every block prefetches a part.
template <class Dims>
__device__ void prefetch_vectors(const Stack& stack, int layer) {
  constexpr int kLine = 128;
  const int thread = opaque(thread_idx());
  const auto prefetch = [](const void* first, int num_bytes, int line, int step) {
#pragma unroll 1
    for (int i = line * kLine; i < num_bytes; i += step * kLine) {
      prefetch_l2(static_cast<const unsigned char*>(first) + i);
    }
  };
  using Layer = LayerWeights<Dims>;
  const Layer weights(stack, layer);
  if constexpr (Dims::kInt8) {
    prefetch(weights.scales(), Layer::kScaleBytes, thread * num_blocks() + block_idx(),
             kNumThreads * num_blocks());
  }
  if (block_idx() != num_blocks() - 1) return;
  prefetch(weights.input_norm(), Layer::kNorms * sizeof(Weight), thread, kNumThreads);
}

// Prefetches to L2 what a layer reads besides its matrices. `pass` is this layer's pass or the one
// before it.
template <class Dims>
__device__ void prefetch_layer(const Stack& stack, int layer, const Pass& pass) {
  prefetch_vectors<Dims>(stack, layer);
  if constexpr (kIsShort<Dims>) ShortAttention<Dims>::prefetch_to_l2(stack, layer, pass);
}

// Constructs the attention of a layer over the rows of smem.pass, for decoder_layers().
template <class Dims>
struct PassAttention {
  const Stack& stack;
  Context& c;

  __device__ __forceinline__ LayerAttention<Dims> operator()(int layer,
                                                             const Weight* head_norms) const {
    return LayerAttention<Dims>(stack, layer, head_norms, c.smem.pass, c.workspace,
                                *reinterpret_cast<LayerAttentionSmem<Dims>*>(&c.smem.stage));
  }
};

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// Opens the first matrix of a layer, while the grid waits at the barrier in front of that layer.
template <class Dims, class Stream>
__device__ __forceinline__ void open_layer(Stream& weight_stream, const Stack& stack, int layer) {
  const LayerWeights<Dims> weights(stack, layer);
  weight_stream.open(tile_grid(weights.qkv_proj()),
                     {tile_grid(weights.o_proj()), tile_grid(weights.gate_up_proj())});
}

// Addresses of the rows that this block multiplies in a pass, in global memory that all blocks see.
// x is [pass.num_rows, Dims::kHidden], qkv [.., kQkvSize], attention [.., kQSize], mlp [..,
// kIntermediate]. They are functions, so that registers hold no addresses through the layers. A
// pass has at most kMostRows rows.
template <int kMostRows_>
struct PassActivations {
  static constexpr int kMostRows = kMostRows_;
  float* first;  // the first row of x
  const Workspace& w;

  __device__ float* x() const { return first; }
  __device__ float* qkv() const { return w.qkv; }
  __device__ float* attention() const { return w.attention; }
  __device__ float* mlp() const { return w.mlp; }
};

// Computes x = x + attention(norm(x)); x = x + mlp(norm(x)), `num_layers` times, for the rows of
// smem.pass. A stage is a computation and a barrier. While the grid waits at the barrier, a block
// calls the lambda `before_<next stage>`, which prepares that stage.
//   rows           a PassActivations, or a class with its members
//   weight_stream  open at layer 0
//   attention_of   (layer, head norms) -> the attention of all rows of the grid, in the same
//                  workspace
//   after          () -> Forecast: the matrices after the last layer. It is a function, so that
//                  their addresses do not stay in registers through the layers
//   before_after   () -> void: called while the grid waits after the last layer
// All threads of all blocks call this. Returns false if a barrier failed: the caller then leaves.
template <class Dims, class Activations, class Stream, class AttentionOf, class After,
          class BeforeAfter>
__device__ __forceinline__ bool decoder_layers(const Activations& rows, const Stack& stack,
                                               int num_layers, Stream& weight_stream,
                                               const AttentionOf& attention_of, const After& after,
                                               const BeforeAfter& before_after, Context& c) {
  constexpr int kHidden = Dims::kHidden, kIntermediate = Dims::kIntermediate;
  const Pass& pass = c.smem.pass;
  MatvecSmem& smem = c.smem.stage.matvec;
  const float eps = stack.rms_norm_eps;
  const AddTo add_to_residual{rows.x(), kHidden};
  using PlainInput = InputRows<false, Activations::kMostRows>;
  using NormedInput = InputRows<true, Activations::kMostRows>;

  for (int layer = 0; layer < num_layers; ++layer) {
    const LayerWeights<Dims> weights(stack, layer);
    const bool last = layer + 1 == num_layers;
    const auto following = [&] { return last ? after() : layer_start<Dims>(stack, layer + 1); };
    auto attention = attention_of(layer, weights.head_norms());

    const NormedInput normed_input{rows.x(), kHidden, pass.num_rows, weights.input_norm(), eps};
    matvec(
        weight_stream, weights.qkv_proj(), normed_input,
        [&](int row, int i, float2 sum) {
          if constexpr (Dims::kQkvBias) {
            const Weight* bias = weights.qkv_bias() + i;
            sum = make_float2(sum.x + to_float(bias[0]), sum.y + to_float(bias[1]));
          }
          *reinterpret_cast<float2*>(&rows.qkv()[static_cast<size_t>(row) * Dims::kQkvSize + i]) =
              sum;
        },
        smem);
    const auto open_o_proj = [&] {
      weight_stream.open(tile_grid(weights.o_proj()),
                         {tile_grid(weights.gate_up_proj()), tile_grid(weights.down_proj())});
      if (!last) prefetch_layer<Dims>(stack, layer + 1, pass);
    };
    const auto before_attention = [&] {
      attention.prefetch_cache();
      if (kIsShort<Dims>) open_o_proj();  // short attention may have no barrier behind it
    };
    if (!c.barrier.sync(Stage::kQkvProj, layer, before_attention)) return false;

    attention.run();
    const bool everywhere = attention.everywhere();
    const auto before_o_proj = [&] {
      if (!kIsShort<Dims>) open_o_proj();
    };
    if (!everywhere && !c.barrier.sync(Stage::kAttention, layer, before_o_proj)) return false;

    PlainInput attention_rows{rows.attention(), Dims::kQSize, pass.num_rows};
    attention_rows.loaded = everywhere;
    matvec(weight_stream, weights.o_proj(), attention_rows, add_to_residual, smem);
    const auto before_gate_up_proj = [&] {
      weight_stream.open(tile_grid(weights.gate_up_proj()),
                         {tile_grid(weights.down_proj()), following().next});
    };
    if (!c.barrier.sync(Stage::kOProj, layer, before_gate_up_proj)) return false;

    const NormedInput normed_middle{rows.x(), kHidden, pass.num_rows, weights.post_norm(), eps};
    matvec(
        weight_stream, weights.gate_up_proj(), normed_middle,
        [&](int row, int i, float2 gate_up) {
          rows.mlp()[static_cast<size_t>(row) * kIntermediate + i / 2] =
              silu(gate_up.x) * gate_up.y;
        },
        smem);
    const auto before_down_proj = [&] {
      weight_stream.open(tile_grid(weights.down_proj()), following());
    };
    if (!c.barrier.sync(Stage::kGateUpProj, layer, before_down_proj)) return false;

    const PlainInput mlp_rows{rows.mlp(), kIntermediate, pass.num_rows};
    matvec(weight_stream, weights.down_proj(), mlp_rows, add_to_residual, smem);
    const auto before_next_layer = [&] {
      if (last) {
        before_after();
      } else {
        open_layer<Dims>(weight_stream, stack, layer + 1);
      }
    };
    if (!c.barrier.sync(Stage::kDownProj, layer, before_next_layer)) return false;
  }
  return true;
}

}  // namespace qwen_tts
