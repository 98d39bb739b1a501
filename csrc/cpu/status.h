// The status codes that the entry points return.
#pragma once
#include <new>
#include <stdexcept>
#include <system_error>

#include "cpu_decoder.h"

namespace qwen_tts {

// Returns a call's Status instead of letting an exception escape.
template <class Call>
int32_t status_of(Call call) {
  try {
    call();
    return kDone;
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  } catch (const std::length_error&) {  // a vector larger than any memory
    return kOutOfMemory;
  } catch (const std::system_error&) {
    return kNoThreads;
  } catch (...) {
    return kUnforeseen;
  }
}

}  // namespace qwen_tts
