// How the weight layer raises.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "safetensors/weights/error.hpp"

namespace safetensors::weights {

/// Throws WeightsError. `subject` is the tensor or key at fault, `offset` where it was
/// seen.
[[noreturn]] void fail(Errc code, const std::filesystem::path& path, std::string_view subject,
                       const std::string& message, std::uint64_t offset = 0);

/// Throws the core's error as one of this layer's. `path` and `subject` are those of the result
/// where the error has none.
[[noreturn]] void rethrow_core_error(const safetensors::Error& error,
                                     const std::filesystem::path& path,
                                     std::string_view subject = {});

/// Calls `work`. Errors of the core come out as this layer's, with `path` and `subject` as above.
template <typename Work>
decltype(auto) with_error_context(const std::filesystem::path& path, std::string_view subject,
                                  Work&& work) {
  try {
    return work();
  } catch (const WeightsError&) {
    throw;
  } catch (const safetensors::Error& error) {
    rethrow_core_error(error, path, subject);
  }
}

}  // namespace safetensors::weights
