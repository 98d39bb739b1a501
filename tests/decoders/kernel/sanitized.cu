// The program that runs under the sanitizers: the kernel on random weights, or a planted bug.
//   sanitized        runs prompts of 67 to 69 rows, draws 2 frames of 3 streams with the kernel
//                    for many streams, 2 more with the kernel for few, and 2 of one stream alone;
//                    prints a hash of the codes
//   sanitized BUG    runs a small kernel with the bug of this number (0: none); exits with 9 if its
//                    result is wrong
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "few_step_kernel.cu"
#include "forward_kernel.cu"
#include "step_kernel.cu"

using namespace qwen_tts;

namespace {

// ---- frames on random weights

template <class T>
std::vector<T>* keep(size_t size) {
  static std::vector<std::vector<T>*> alive;
  alive.push_back(new std::vector<T>(size));
  return alive.back();
}

template <class T>
T* zeros(size_t size) {
  return keep<T>(size)->data();
}

float next_random() {  // nearly normally distributed; callers scale it
  static uint64_t state = 88172645463325252ull;
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    sum += static_cast<float>(state >> 40) / (1 << 24) - 0.5f;
  }
  return sum * 1.7f;
}

template <class T>
T* random_values(size_t size, float scale, float offset = 0) {
  T* values = zeros<T>(size);
  for (size_t i = 0; i < size; ++i) values[i] = from_float<T>(offset + scale * next_random());
  return values;
}

template <int kOut, int kIn>
Weight* random_matrices(size_t count, float scale) {
  return random_values<Weight>(count * PackedMatrix<kOut, kIn>::kBytes / sizeof(Weight), scale);
}

template <class Dims>
unsigned char* random_layers(int num_layers) {
  using Layer = LayerWeights<Dims>;
  unsigned char* layers = zeros<unsigned char>(num_layers * Layer::kBytes);
  for (unsigned char* layer = layers; num_layers--; layer += Layer::kBytes) {
    size_t offset = 0;
    if constexpr (Dims::kInt8) {
      for (; offset < Layer::kMatrixBytes; ++offset) {
        layer[offset] = static_cast<signed char>(35 * next_random());
      }
      for (; offset < Layer::kMatrixBytes + Layer::kScaleBytes; offset += sizeof(float)) {
        *reinterpret_cast<float*>(layer + offset) = 0.002f + 0.0005f * next_random();
      }
    }
    for (; offset < Layer::kBytes; offset += sizeof(Weight)) {
      *reinterpret_cast<Weight*>(layer + offset) = from_float<Weight>(0.1f * next_random());
    }
  }
  return layers;
}

template <class Dims>
Stack make_stack(int num_layers, int num_slots, int max_positions, bool mrope) {
  const size_t cache = size_t{Dims::kKvSize} * num_layers * num_slots * max_positions;
  const size_t angles = size_t{Dims::kHeadDim} / 2 * max_positions;
  Stack stack{};
  stack.layers = random_layers<Dims>(num_layers);
  stack.final_norm = random_values<Weight>(Dims::kHidden, 0.1f, 1.0f);
  stack.rope_cos = random_values<float>(angles, 0.7f);
  stack.rope_sin = random_values<float>(angles, 0.7f);
  stack.keys = zeros<Cache>(cache);
  stack.values = zeros<Cache>(cache);
  stack.num_layers = num_layers;
  stack.num_slots = num_slots;
  stack.max_positions = max_positions;
  stack.mrope_height_pairs = stack.mrope_width_pairs = mrope ? 5 : 0;
  stack.rms_norm_eps = 1e-6f;
  return stack;
}

int run_frames() {
  constexpr int kSlots = 3, kPrompt = 69, kFrames = 2, kPositions = 92;  // two splits and two chunks of attention
  const size_t hidden = Talker::kHidden, groups = kNumCodeGroups;
  Model model{};
  model.talker = make_stack<Talker>(1, kSlots, kPositions, true);
  model.predictor = make_stack<Predictor>(1, kMaxRows, kNumCodeGroups, false);
  model.codec_head = random_matrices<kTalkerVocab, Talker::kHidden>(1, 0.3f);
  model.lm_heads = random_matrices<kPredictorVocab, Predictor::kHidden>(groups - 1, 0.3f);
  model.projection = random_matrices<Predictor::kHidden, Talker::kHidden>(1, 0.1f);
  model.projection_bias = random_values<float>(Predictor::kHidden, 0.1f);
  const size_t table_rows = kTalkerVocab + (groups - 1) * kPredictorVocab;
  model.frame_table = random_values<Weight>(table_rows * hidden, 0.5f);
  model.predictor_table = random_values<Weight>(table_rows * Predictor::kHidden, 0.5f);
  model.codec_eos_id = 140;
  model.suppressed_from = 128;
  model.min_frames = 2;
  const SlotBuffers slots{zeros<float>(kSlots * hidden),
                    zeros<int32_t>(kSlots * groups),
                    zeros<uint32_t>(kSlots * kTalkerVocab / 32),
                    random_values<float>(kSlots * 4 * hidden, 0.3f),
                    random_values<float>(kSlots * hidden, 0.3f),
                    4};
  const size_t qkv = larger(Talker::kQkvSize, Predictor::kQkvSize);
  const size_t heads = larger(Talker::kNumHeads * (Talker::kHeadDim + 2),
                              Predictor::kNumHeads * (Predictor::kHeadDim + 2));
  Workspace workspace{zeros<float>(kMaxForwardRows * kMaxHidden),
                      zeros<float>(kMaxRows * hidden),
                      zeros<float>(kMaxForwardRows * qkv),
                      zeros<float>(kMaxForwardRows * qkv),
                      zeros<float>(kMaxForwardRows * 512),
                      zeros<float>(kMaxRows * kMaxVocab),
                      zeros<float>(kMaxRows * heads * kMaxSplits),
                      zeros<uint32_t>(kMaxRows * 16),
                      zeros<Control>(1),
                      zeros<uint32_t>(1)};
  const uint64_t timeout_ns = 600'000'000'000;

  int step_blocks = 0, few_step_blocks = 0, forward_blocks = 0;
  if (max_step_blocks(&step_blocks) || max_few_step_blocks(&few_step_blocks) ||
      max_forward_blocks(&forward_blocks)) {
    return 1;
  }
  StepParams step{};
  for (int slot = 0; slot < kSlots; ++slot) {
    ForwardParams forward{};
    forward.model = model;
    forward.slots = slots;
    forward.workspace = workspace;
    forward.num_layers = 1;
    forward.slot = slot;
    forward.num_rows = kPrompt - slot;
    forward.keep_last = 1;
    forward.hidden = zeros<float>(kPrompt * hidden);
    int32_t* tokens = zeros<int32_t>(kPrompt);
    for (int i = 0; i < kPrompt; ++i) tokens[i] = i % 2 ? -1 : i;
    forward.tokens = tokens;
    forward.embeds = random_values<float>(kPrompt * hidden, 0.5f);
    forward.timeout_ns = timeout_ns;
    if (qwen_tts_forward(&forward, forward_blocks, nullptr)) return 1;
    const SamplingParams sampling{0.9f, slot ? 1.0f : 0.8f, 1.05f, slot == 1 ? 0 : 20, 1};
    // Stream 0 draws code 0 by argmax, which is quick: the block's next work must not overtake it.
    SamplingParams talker = sampling;
    talker.do_sample = slot != 0;
    step.streams[slot] = {slot, kPrompt - slot, 0, 1, 2, 77, 5, talker, sampling};
  }
  step.model = model;
  step.slots = slots;
  step.workspace = workspace;
  step.num_frames = kFrames;
  step.codes = zeros<int32_t>(kSlots * kFrames * groups);
  step.num_done = zeros<int32_t>(kSlots);
  step.ended = zeros<int32_t>(kSlots);
  step.timeout_ns = timeout_ns;
  uint32_t hash = 2166136261u;
  for (const int turn : {0, 1, 2}) {
    const int num_streams = turn < 2 ? kSlots : 1;
    step.num_streams = num_streams;
    const int error = turn ? qwen_tts_step(&step, step_blocks, nullptr)
                           : launch(step_kernel, step, step_blocks, nullptr);
    if (error || workspace.control->error) return 1;
    for (size_t i = 0; i < num_streams * kFrames * groups; ++i) {
      hash = (hash ^ step.codes[i]) * 16777619u;
    }
    for (Stream& stream : step.streams) {
      stream.position += kFrames - 1;  // an utterance's first frame takes no talker step
      stream.frame += kFrames;
    }
  }
  printf("codes %08x\n", hash);
  return 0;
}

// ---- planted bugs

enum Bug {
  kNone,
  kMissingSyncthreads,
  kMissingGridBarrier,
  kRelaxedArrival,
  kRelaxedPoll,
  kMissingSyncwarp,
  kSharedOverflow,
  kGlobalOverflow,
  kIndexPastArray,
};

struct PlantedSmem {
  float values[kNumThreads];
  float others[kNumThreads];
};

__global__ void planted(Bug bug, float* out, float* exchange, unsigned* counter, int past_end) {
  PlantedSmem& smem = *reinterpret_cast<PlantedSmem*>(dynamic_smem());
  const int thread = thread_idx(), size = num_blocks() * kNumThreads;
  const int own = block_idx() * kNumThreads + thread;
  smem.values[thread] = static_cast<float>(thread);
  if (bug != kMissingSyncthreads) __syncthreads();
  exchange[own] = smem.values[(thread + 33) % kNumThreads];
  if (bug == kSharedOverflow && thread == 0) (&smem.others[0])[kNumThreads + past_end] = 1;
  if (bug == kIndexPastArray && thread == 0) smem.values[kNumThreads - 1 + past_end] = 1;
  if (bug == kGlobalOverflow && own == 0) exchange[size + past_end] = 1;
  __syncthreads();
  if (bug != kMissingGridBarrier) {
    if (thread == 0) {
      if (bug == kRelaxedArrival) {
        atomicAdd(counter, 1u);
      } else {
        add_release(counter, 1);
      }
      const auto arrived = [&] {
        return bug == kRelaxedPoll ? load_relaxed(counter) : load_acquire(counter);
      };
      while (arrived() < static_cast<unsigned>(num_blocks())) pause();
    }
    __syncthreads();
  }
  out[own] = exchange[(own + kNumThreads) % size];
  __syncthreads();
  if (warp_idx() == 0) {
    smem.others[thread] = out[own];
    if (bug != kMissingSyncwarp) __syncwarp();
    out[own] = smem.others[thread ^ 1];
  }
}

int run_planted(Bug bug, int past_end) {
  constexpr int kBlocks = 2, kSize = kBlocks * kNumThreads;
  std::vector<float> out(kSize);
  float* exchange = new float[kSize];
  unsigned counter = 0;
  if (launch_cooperative(planted, kBlocks, kNumThreads, sizeof(PlantedSmem), nullptr, bug,
                         out.data(), exchange, &counter, past_end)) {
    return 1;
  }
  delete[] exchange;
  for (int i = 0; i < kSize; ++i) {
    const int thread = i % kNumThreads, source = thread < kWarpSize ? thread ^ 1 : thread;
    if (out[i] != static_cast<float>((source + 33) % kNumThreads)) return 9;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return argc > 1 ? run_planted(static_cast<Bug>(atoi(argv[1])), argc) : run_frames();
}
