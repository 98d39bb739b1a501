// Dimensions of the model that this library is compiled for. decoders/kernel/build.py writes every
// -D from the checkpoint's config.json; this file has no default for anything a checkpoint holds.
#pragma once
#include "port.cuh"

namespace qwen_tts {

#if WEIGHTS_F32  // exact mode: codes equal those of a float32 reference
using Weight = float;
#else
using Weight = bf16;
#endif
using Cache = Weight;  // the element type of keys and values

// Packed weights (packing.py): tiles of 8 output rows x 64 columns, stored one after another along
// the columns. A lane of a warp holds a tile in pieces of 16 bytes: one piece for int8, two for
// bf16, four for f32. Lane 4g+t has weights of row g.
constexpr int kTileRows = 8;
constexpr int kTileCols = 64;

// Whether any stack has int8 layers. Their matrices have an f32 scale for each output row; heads,
// the projection, embeddings, norms and biases have the type Weight.
constexpr bool kAnyInt8 = TALKER_INT8 || PREDICTOR_INT8;

constexpr int kMaxRows = 16;  // rows (streams or prompt positions) that a block multiplies at once
constexpr int kFewRows = 8;   // rows of one tensor-core product; few_step_kernel has no more
constexpr int kMaxForwardRows = 128;  // prompt positions of one weight pass, shared by teams
constexpr int kNumThreads = NUM_THREADS;
constexpr int kNumWarps = kNumThreads / kWarpSize;
static_assert(kNumThreads % kWarpSize == 0 && kNumWarps >= 2 && kNumWarps <= 32);

// One stack of decoder layers: the talker's or the code predictor's.
template <int kHidden_, int kIntermediate_, int kNumHeads_, int kNumKvHeads_, int kHeadDim_,
          bool kQkvBias_, bool kQkNorm_, bool kInt8_, int kMaxPositions_ = 0>
struct StackDims {
  static constexpr int kHidden = kHidden_;
  static constexpr int kIntermediate = kIntermediate_;
  static constexpr int kNumHeads = kNumHeads_;
  static constexpr int kNumKvHeads = kNumKvHeads_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kQSize = kNumHeads * kHeadDim;
  static constexpr int kKvSize = kNumKvHeads * kHeadDim;
  static constexpr int kQkvSize = kQSize + 2 * kKvSize;
  static constexpr int kHeadsPerKv = kNumHeads / kNumKvHeads;
  static constexpr bool kQkvBias = kQkvBias_;           // Qwen2 adds a bias to q, k and v
  static constexpr bool kQkNorm = kQkNorm_;             // Qwen3 normalises the heads of q and k
  static constexpr bool kInt8 = kInt8_;                 // whether the layers' matrices are int8
  static constexpr int kMaxPositions = kMaxPositions_;  // 0: as many as its cache holds
  static_assert(kHidden % 32 == 0 && kIntermediate % 32 == 0 && kQSize % 32 == 0,
                "whole sectors of activations");
  static_assert(kHeadDim % 16 == 0 && kHeadDim <= 256, "a head is cut into 16-byte pieces");
  static_assert(kNumHeads % kNumKvHeads == 0, "query heads share key/value heads evenly");
};

using Talker =
    StackDims<TALKER_HIDDEN_SIZE, TALKER_INTERMEDIATE_SIZE, TALKER_NUM_HEADS, TALKER_NUM_KV_HEADS,
              TALKER_HEAD_DIM, TALKER_QKV_BIAS, TALKER_QK_NORM, TALKER_INT8>;
using Predictor = StackDims<PREDICTOR_HIDDEN_SIZE, PREDICTOR_INTERMEDIATE_SIZE, PREDICTOR_NUM_HEADS,
                            PREDICTOR_NUM_KV_HEADS, PREDICTOR_HEAD_DIM, PREDICTOR_QKV_BIAS,
                            PREDICTOR_QK_NORM, PREDICTOR_INT8, NUM_CODE_GROUPS>;

constexpr int kTalkerVocab = TALKER_VOCAB_SIZE;
constexpr int kPredictorVocab = PREDICTOR_VOCAB_SIZE;
constexpr int kNumCodeGroups = NUM_CODE_GROUPS;
static_assert(kTalkerVocab % 32 == 0 && kPredictorVocab % kTileRows == 0);
static_assert(kNumCodeGroups >= 2);

// The talker's hidden state and embeddings pass through a projection where the widths differ.
constexpr bool kHasProjection = Talker::kHidden != Predictor::kHidden;

constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int kMaxHidden = larger(Talker::kHidden, Predictor::kHidden);
constexpr int kMaxVocab = larger(kTalkerVocab, kPredictorVocab);

}  // namespace qwen_tts
