// The prefix of upstream's texts in errors of saves. For this project's own bindings: it may change
// at any time.
#pragma once

#include "safetensors/error.hpp"

namespace safetensors::detail {

/// Runs `work` and adds the prefix to its errors.
template <typename Work>
auto serializing(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw error.with_context("Error while serializing: ");
  }
}

}  // namespace safetensors::detail
