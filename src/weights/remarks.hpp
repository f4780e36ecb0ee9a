// What tensors of safetensors give reason to warn of, one line for each kind of module.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "safetensors/weights/types.hpp"

namespace safetensors::weights {

class Remarks {
 public:
  /// Counts a tensor; `remark` is the QuantChoice's of a pack, else empty.
  void note(const WeightInfo& info, const std::string& remark);
  /// Appends the warnings.
  void say(std::vector<std::string>& warnings) const;

 private:
  std::map<std::pair<std::string, std::string>, std::size_t> packs_;  // by kind and remark
  std::size_t unknown_ = 0;  // packs without parameters, and without anything to choose by
  std::size_t bare_f8_ = 0;  // F8 without a scheme's scales
};

}  // namespace safetensors::weights
