// The text whose digest is that of a model (docs/verify.md). For this project's own bindings: it
// may change at any time.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "safetensors/digest.hpp"
#include "safetensors/export.hpp"

namespace safetensors::detail {

/// Returns the hexadecimal digits of a digest.
[[nodiscard]] SAFETENSORS_API std::string hex_of(const Digest& digest);

/// Makes the text, which has a line for each tensor, and passes it on piece by piece.
class WholeText {
 public:
  using Take = std::function<void(std::string_view piece)>;

  explicit WholeText(Take take) : take_(std::move(take)) {}

  /// Adds the tensor whose name follows in the order of names, by bytes.
  SAFETENSORS_API void add(std::string_view name, const Digest& digest);
  /// Passes on the rest.
  SAFETENSORS_API void finish();

 private:
  void take_if_long();

  Take take_;
  std::string text_;
};

}  // namespace safetensors::detail
