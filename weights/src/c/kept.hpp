// What the C interface returns pointers to, and the provider does not have in the form of C.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/per_process.hpp"
#include "safetensors/weights.h"
#include "safetensors/weights/metadata.hpp"
#include "safetensors/weights/types.hpp"

namespace safetensors::weights {

/// Texts in one block of memory, each with a NUL behind it.
class TextTable {
 public:
  /// Requires: fewer bytes than memory can hold; the texts are valid during the call.
  explicit TextTable(const std::vector<std::string_view>& texts);
  TextTable(TextTable&&) = delete;
  ~TextTable() = default;

  [[nodiscard]] const safetensors_text* data() const noexcept { return items_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return items_.size(); }

 private:
  std::string bytes_;
  std::vector<safetensors_text> items_;
};

/// Makes each thing at the first request, and keeps it.
///
/// Thread safety: all threads may call all functions. A forked process makes its own; what its
///   parent had made stays valid in it.
/// Lifetime: what is returned is valid until this is destroyed.
class Kept {
 public:
  Kept() = default;
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() { state_.reset(); }

  /// Returns a text with a NUL behind it. Requires: `text` is valid as long as this.
  [[nodiscard]] const char* text(std::string_view text);
  /// Returns the table that `make` returns the texts of.
  template <typename Make>
  [[nodiscard]] const TextTable& table(const std::string& key, const Make& make) {
    State& state = state_.get();
    const std::lock_guard lock(state.mutex);
    const auto found = state.tables.find(key);
    return found == state.tables.end() ? state.tables.try_emplace(key, make()).first->second
                                       : found->second;
  }
  /// Returns the parts that `make` returns, those of the weight of this name.
  template <typename Make>
  [[nodiscard]] const std::vector<WeightPart>& parts(const std::string& name, const Make& make) {
    State& state = state_.get();
    const std::lock_guard lock(state.mutex);
    const auto found = state.parts.find(name);
    return found == state.parts.end() ? state.parts.try_emplace(name, make()).first->second
                                      : found->second;
  }

 private:
  struct State {
    std::mutex mutex;
    std::map<std::pair<const char*, std::size_t>, std::string> texts;
    std::map<std::string, TextTable> tables;
    std::map<std::string, std::vector<WeightPart>> parts;
  };
  PerProcess<State> state_;
};

}  // namespace safetensors::weights
