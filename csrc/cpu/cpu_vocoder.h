// The C interface of the CPU vocoder. vocoder/cpu/library.py mirrors it with ctypes.
//
// It is part of the decoder's library, works in the same pool, and reports errors in the same way.
#pragma once
#include "cpu_decoder.h"

#pragma GCC visibility push(default)
extern "C" {

// A causal convolution: step t of the output uses the steps t - i * dilation of the input, the
// oldest tap first. With a stride it is transposed: one input step makes `stride` output steps. A
// matrix is a convolution of one tap; a depthwise convolution has out_channels 0 and taps
// [num_taps, in_channels].
struct ConvolutionSource {
  const float* taps;       // [num_taps, in_channels, stride * out_channels]; read by `pack` alone,
                           // but for a depthwise convolution
  const float* bias;       // [out_channels], or null
  const float* frequency;  // [in_channels] of the snake activation in front, or null
  const float* amplitude;
  int32_t num_taps, in_channels, out_channels, stride, dilation;
  int32_t history;  // offset in a state of the last (num_taps - 1) * dilation inputs, activated
};

struct VocoderSource {
  int32_t num_codebooks, codebook_size, codebook_dim, samples_per_frame;
  // [num_codebooks * codebook_size, codebook_dim] in float32, or float16; read in place.
  const uint8_t* tables;
  // The transformer; for each layer a state has num_past rows of unrotated keys, and values.
  int32_t num_layers, num_heads, num_kv_heads, head_dim, num_past, max_frames;
  float rms_norm_eps, layer_norm_eps;
  const float *rope_cos, *rope_signed_sin;  // [num_past + max_frames, head_dim]
  int32_t num_keys;                         // offset in a state of the number of valid keys
  int32_t num_upsamplings, num_blocks, units_per_block;
  int32_t is_half;    // 1: tables and packed weights are float16, not float32
  int32_t is_direct;  // 1: no convolution uses transforms, for comparisons
  // In the order of the network: the codebooks' projection (of the first table beside the sum of
  // the others), pre_conv, input_proj; for each layer qkv (its history is that of keys and values),
  // o, gate beside up (as stride 2), down; output_proj; for each upsampling the transposed
  // convolution, the depthwise one and two matrices; decoder.0; for each block the transposed
  // convolution and two convolutions per residual unit; the last convolution.
  const ConvolutionSource* convolutions;
  // For each layer: norm, scale of attention, norm, scale of the mlp; the last norm; for each
  // upsampling: weight and bias of the norm, gamma.
  const float* const* vectors;
  // What qwen_cpu_vocoder_pack wrote, or the same in float16, all finite; read in place.
  const uint8_t* packed;
};

struct VocoderRequest {
  const int32_t* codes;  // [num_streams, num_frames, num_codebooks]
  float* const* states;  // [num_streams]
  int32_t num_streams, num_frames;
  int32_t num_silent;  // number of first frames that end after the transformer
  float* pcm;  // [num_streams, (num_frames - num_silent) * samples_per_frame], or null; may be NaN
};

// Writes the sizes of the structs above, in order, which library.py compares with its own.
void qwen_cpu_vocoder_struct_bytes(int32_t* sizes);

// Writes the size of the packed weights, of which a pass reads each byte once.
int32_t qwen_cpu_vocoder_packed_bytes(const VocoderSource* source, int64_t* num_bytes);

// Packs the weights, in float32, into memory at a multiple of 64 bytes; is_half must be 0.
int32_t qwen_cpu_vocoder_pack(void* pool, const VocoderSource* source, void* packed);

// `vocoder` receives the handle. The pool and the packed weights must outlive the vocoder.
int32_t qwen_cpu_vocoder_create(void* pool, const VocoderSource* source, void** vocoder);
void qwen_cpu_vocoder_destroy(void* vocoder);

// Returns kBadCode, and leaves the states as they are, if a code is not in its codebook.
int32_t qwen_cpu_vocoder_step(void* vocoder, const VocoderRequest* request);

}  // extern "C"
#pragma GCC visibility pop
