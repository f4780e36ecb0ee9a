// Collects warnings about tensors of safetensors: one line for each kind of module.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "safetensors/weights/types.hpp"

namespace safetensors::weights {

class Remarks {
 public:
  /// Notes a tensor. `remark` is that of a pack's QuantChoice, else empty.
  void note(const WeightInfo& info, const std::string& remark);
  /// Notes a remark about a tensor of a scheme, whose name in the file this is.
  void note(std::string_view name, const std::string& remark);
  /// Adds a warning that is about no single kind of module.
  void warn(std::string text) { others_.push_back(std::move(text)); }
  /// Appends the warnings.
  void say(std::vector<std::string>& warnings) const;

 private:
  std::map<std::pair<std::string, std::string>, std::size_t> packs_;    // by kind and remark
  std::map<std::pair<std::string, std::string>, std::size_t> schemes_;  // likewise
  std::vector<std::string> others_;
  std::size_t unknown_ = 0;                  // packs whose parameters nothing states
  std::map<std::string, std::size_t> bare_;  // codes without scales, by their type
};

}  // namespace safetensors::weights
