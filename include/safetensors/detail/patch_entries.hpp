// The entries of a patch file and of a journal. For this project's own bindings: it may change at
// any time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace safetensors::detail {

/// What the names of the entries with the record and with the values of a tensor begin with.
inline constexpr std::string_view kRecordPrefix = "r/";
inline constexpr std::string_view kValuesPrefix = "v/";

/// The most bytes of the name of a state.
inline constexpr std::size_t kMaxLabelSize = 256;

/// Returns the names of the two entries of a tensor.
[[nodiscard]] inline std::string record_entry(std::string_view tensor) {
  return std::string(kRecordPrefix).append(tensor);
}
[[nodiscard]] inline std::string values_entry(std::string_view tensor) {
  return std::string(kValuesPrefix).append(tensor);
}

}  // namespace safetensors::detail
