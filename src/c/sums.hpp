// The handle of sums in the C interface.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "safetensors/model.hpp"
#include "safetensors/safetensors.h"
#include "safetensors/sums.hpp"
#include "safetensors/verify.hpp"

namespace safetensors::c {

/// Sums that were read. Immutable.
struct OpenSums {
  explicit OpenSums(Sums read) : sums(std::move(read)), by_file(sums) {}
  OpenSums(const OpenSums&) = delete;
  OpenSums& operator=(const OpenSums&) = delete;

  const Sums sums;
  const SumsByFile by_file;
};

/// Writes the text of a digest, with a NUL, to SAFETENSORS_DIGEST_SIZE bytes.
void put_digest(const Digest& digest, char* to);

/// Returns the tensors of sums that a model lacks. Valid while the sums live.
[[nodiscard]] std::vector<TensorSums> absent_of(const Sums& sums, const Model& model);
/// Throws: Error kDamaged if a model lacks a tensor of sums.
void refuse_absent(const Sums& sums, const Model& model);

}  // namespace safetensors::c

struct safetensors_sums {
  std::shared_ptr<const safetensors::c::OpenSums> sums;  // shared with the files that are compared
};
