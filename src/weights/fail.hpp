// How the weight layer raises.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "safetensors/weights/error.hpp"

namespace safetensors::weights {

/// A path for an error text, as UTF-8 wherever it is.
[[nodiscard]] std::string shown(const std::filesystem::path& path);

/// Throws weights::Error. `subject` is the tensor or key at fault, `offset` where it was seen.
[[noreturn]] void fail(Errc code, const std::filesystem::path& path, std::string_view subject,
                       const std::string& message, std::uint64_t offset = 0);

/// Throws the core's error as one of this layer's. `subject` as above.
[[noreturn]] void fail_as_core(const safetensors::Error& error, const std::filesystem::path& path,
                               std::string_view subject = {});

/// Calls `work`; errors of the core come out as this layer's.
template <typename Work>
decltype(auto) with_errors_of(const std::filesystem::path& path, std::string_view subject,
                              Work&& work) {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const safetensors::Error& error) {
    fail_as_core(error, path, subject);
  }
}

}  // namespace safetensors::weights
