// The CPU vocoder's entry points. vocoder.h lists the stages of a piece.
#include "cpu_vocoder.h"

#include "status.h"
#include "vocoder.h"

using qwen_tts::Pool;
using qwen_tts::status_of;
using qwen_tts::VocoderModel;

extern "C" {

void qwen_cpu_vocoder_struct_bytes(int32_t* sizes) {
  const size_t bytes[] = {sizeof(ConvolutionSource), sizeof(VocoderSource), sizeof(VocoderRequest)};
  for (size_t each : bytes) *sizes++ = int32_t(each);
}

int32_t qwen_cpu_vocoder_packed_bytes(const VocoderSource* source, int64_t* num_bytes) {
  return status_of([&] { *num_bytes = int64_t(qwen_tts::packed_bytes(*source)); });
}

int32_t qwen_cpu_vocoder_pack(void* pool, const VocoderSource* source, void* packed) {
  return status_of(
      [&] { qwen_tts::pack(*static_cast<Pool*>(pool), *source, static_cast<uint8_t*>(packed)); });
}

int32_t qwen_cpu_vocoder_create(void* pool, const VocoderSource* source, void** vocoder) {
  return status_of(
      [&] { *vocoder = qwen_tts::make_vocoder(static_cast<Pool*>(pool), *source).release(); });
}

void qwen_cpu_vocoder_destroy(void* vocoder) { delete static_cast<VocoderModel*>(vocoder); }

int32_t qwen_cpu_vocoder_step(void* vocoder, const VocoderRequest* request) {
  auto& model = *static_cast<VocoderModel*>(vocoder);
  if (!qwen_tts::are_codes(model, *request)) return kBadCode;
  return status_of([&] { qwen_tts::run_request(model, *request); });
}

}  // extern "C"
