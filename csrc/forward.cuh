// Runs rows through one stack without drawing codes: a prompt (prefill), or one position at a time.
//
// A block multiplies 16 rows at most, so teams of blocks (common.cuh) share the rows of a prompt.
// The teams meet at the same barriers; only attention reads rows of other teams.
#pragma once
#include "frame.cuh"

namespace qwen_tts {

constexpr int kMostTeams = kMaxForwardRows / kMaxRows;

// The talker's attention: for one position as in a frame (Attention), for several as in a prompt.
class ForwardAttention {
 public:
  __device__ ForwardAttention(const ForwardParams& p, int layer, const Weight* head_norms,
                              BlockSmem& smem)
      : is_prompt_(p.num_rows > 1),
        single_(p.model.talker, layer, head_norms, smem.pass, p.workspace,
                smem.stage.talker_attention),
        prompt_(p.model.talker, layer, head_norms, smem.forward.prompt, p.workspace,
                smem.stage.prompt_attention) {}

  static __device__ constexpr bool everywhere() { return false; }
  __device__ void prefetch_cache() const {
    if (!is_prompt_) single_.prefetch_cache();
  }
  __device__ __forceinline__ void run() {
    if (is_prompt_) {
      prompt_.run();
    } else {
      single_.run();
    }
  }

 private:
  bool is_prompt_;
  Attention<Talker> single_;
  PromptAttention<Talker> prompt_;
};

// The counterpart of PassActivations for the rows of this block's team.
template <class Dims>
struct TeamActivations {
  static constexpr int kMostRows = kMaxRows;
  const Workspace& w;
  const int& first_row;

  __device__ float* x() const { return at(w.x, Dims::kHidden); }
  __device__ float* qkv() const { return at(w.qkv, Dims::kQkvSize); }
  __device__ float* attention() const { return at(w.attention, Dims::kQSize); }
  __device__ float* mlp() const { return at(w.mlp, Dims::kIntermediate); }

 private:
  __device__ float* at(float* rows, size_t stride) const { return rows + first_row * stride; }
};

// Plans the rows of the next pass, and the rows of `team` in it. One thread calls this.
__device__ __forceinline__ void plan_pass(const ForwardParams& p, int team, BlockSmem& smem) {
  ForwardPlan& plan = smem.forward;
  const int pass = plan.pass++;
  plan.begin = p.num_rows * pass / plan.num_passes;
  plan.count = p.num_rows * (pass + 1) / plan.num_passes - plan.begin;
  plan.team_begin = plan.count * team / plan.num_teams;
  plan.team_count = plan.count * (team + 1) / plan.num_teams - plan.team_begin;
  plan.prompt = {p.slot, p.first_position + plan.begin, plan.count,
                 p.rope_positions ? p.rope_positions + plan.begin : nullptr, p.num_rows};
  smem.pass.num_rows = smem.pass.sequence_rows = plan.team_count;
}

// Embeds p.num_rows consecutive positions, runs them through the layers, and normalises the result.
// A weight pass takes at most as many positions as the teams have rows, and all passes take about
// equally many. A token id of -1 stands for a prepared embedding. `attention_of` is an argument of
// decoder_layers(). All threads of all blocks call this.
template <class Dims, class AttentionOf>
__device__ __forceinline__ void forward_rows(const ForwardParams& p, const Stack& stack,
                                             const void* table, const AttentionOf& attention_of,
                                             Context& c) {
  constexpr int kHidden = Dims::kHidden;
  ForwardPlan& plan = c.smem.forward;
  const auto team = [&] { return block_idx() % plan.num_teams; };
  if (thread_idx() == 0) {
    const int most_rows = kMaxRows * (Dims::kMaxPositions ? 1 : min(kMostTeams, num_blocks()));
    const int num_passes = (p.num_rows + most_rows - 1) / most_rows;
    plan.num_passes = num_passes;
    plan.pass = 0;
    plan.num_teams = (p.num_rows + kMaxRows * num_passes - 1) / (kMaxRows * num_passes);
  }
  __syncthreads();
  prime<true>(c.smem.rings, Team::of(team(), plan.num_teams), layer_start<Dims>(stack, 0));
  for (bool more = true; more;) {
    if (thread_idx() == 0) plan_pass(p, team(), c.smem);
    __syncthreads();
    if (thread_idx() < plan.team_count) {
      const int row = plan.begin + plan.team_begin + thread_idx();
      const int position = p.first_position + row;
      PassRow& pass_row = c.smem.pass.rows[thread_idx()];
      pass_row = {p.slot, position, 0, {position, position, position}};
      for (int axis = 0; p.rope_positions && axis < 3; ++axis) {
        pass_row.rope_positions[axis] = p.rope_positions[axis * p.num_rows + row];
      }
    }
    for (int i = block_idx(); i < plan.count; i += num_blocks()) {
      float* x = c.workspace.x + static_cast<size_t>(i) * kHidden;
      const int row = plan.begin + i;
      if (p.tokens[row] >= 0) {
        copy_embedding<kHidden>(x, table, p.tokens[row]);
      } else {
        copy_row<kHidden>(x, p.embeds + static_cast<size_t>(row) * kHidden);
      }
    }
    WeightStream<kRingSlots, true> weight_stream(c.smem.rings);
    const auto before_layers = [&] { open_layer<Dims>(weight_stream, stack, 0); };
    if (!c.barrier.sync(Stage::kInput, plan.begin, before_layers)) return;
    const auto again = [&] { return layer_start<Dims>(stack, 0); };
    const TeamActivations<Dims> activations{c.workspace, plan.team_begin};
    if (!decoder_layers<Dims>(
            activations, stack, p.num_layers, weight_stream, attention_of, again, [] {}, c)) {
      return;
    }
    for (int i = block_idx(); i < plan.count; i += num_blocks()) {
      const float* x = c.workspace.x + static_cast<size_t>(i) * kHidden;
      const int row = plan.begin + i;
      const auto normalise_to = [&](float* out) {
        rms_norm<kHidden>(out, x, static_cast<const Weight*>(stack.final_norm), stack.rms_norm_eps,
                          c.smem.stage.norm);
      };
      if (p.hidden) normalise_to(p.hidden + static_cast<size_t>(row) * kHidden);
      if (p.keep_last && row + 1 == p.num_rows) {
        normalise_to(c.slots.hidden + static_cast<size_t>(p.slot) * kHidden);
      }
    }
    // This needs no grid barrier: the block that overwrites a row of x has itself just read it.
    more = plan.begin + plan.count < p.num_rows;
    __syncthreads();  // the plan has been read
  }
}

}  // namespace qwen_tts
