// Errors about a tensor.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/text.hpp"
#include "safetensors/error.hpp"

namespace safetensors {

/// Throws an error of a function that does not know which tensor it is about, with the tensor.
[[noreturn]] inline void fail_tensor(const Error& error, std::string_view name,
                                     const std::filesystem::path& file = {}) {
  fail(error.code(), std::string(error.what()) + ": tensor `" + clipped(name) + "`",
       {.path = file, .subject = std::string(name)});
}

}  // namespace safetensors
