// The handle of sums in the C interface.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "safetensors/model.hpp"
#include "safetensors/safetensors.h"
#include "safetensors/sums.hpp"

/// Immutable.
struct safetensors_sums {
  std::shared_ptr<const safetensors::Sums> sums;  // shared with the files that are compared
};

namespace safetensors::c {

/// Writes the text of a digest, with a NUL, to SAFETENSORS_DIGEST_SIZE bytes.
void put_digest(const Digest& digest, char* to);

/// Returns the tensors of sums that a model lacks. Valid while the sums live.
[[nodiscard]] std::vector<TensorSums> absent_of(const Sums& sums, const Model& model);
/// Throws: Error kDamaged if a model lacks a tensor of sums.
void refuse_absent(const Sums& sums, const Model& model);

}  // namespace safetensors::c
