// What the entry points return.
#pragma once
#include <new>
#include <stdexcept>
#include <system_error>

#include "cpu_decoder.h"

namespace qwen_tts {

// A call's Status, never an exception.
template <class Call>
int32_t status_of(Call call) {
  try {
    call();
    return kDone;
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  } catch (const std::length_error&) {  // a vector that no memory could hold
    return kOutOfMemory;
  } catch (const std::system_error&) {
    return kNoThreads;
  } catch (...) {
    return kUnforeseen;
  }
}

}  // namespace qwen_tts
