// What requests select from files, for reads and for loads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "c/one_or_many.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/device.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/safetensors.h"

struct safetensors_file;

namespace safetensors::c {

/// What a request selects.
///
/// Lifetime: valid while the open file lives.
struct Selected {
  const SafeOpen* from = nullptr;
  std::uint32_t file = 0;      ///< the number of `from`
  TensorInfo info{};           ///< a tensor, or a part of one that is contiguous
  OneOrMany<ByteRuns> runs{};  ///< what is selected of `info`; empty: all of it

  [[nodiscard]] std::uint64_t nbytes() const noexcept {
    return runs.empty() ? info.nbytes() : nbytes_of(runs.all());
  }
};

/// Sets `selected`, which is empty, to what a request selects of the file.
///
/// is_bulk: a part that is contiguous has no runs, so that it is read together with others.
///
/// Throws: what bytes_of(), entry_of() and take() throw; Error kInvalidArgument unless `reserved`
///   is 0, and `to` points to `room` bytes.
void select(const safetensors_file& file, const safetensors_request& request, bool is_bulk,
            Selected& selected);

/// Collects tensors for a Load, and the files that they are in.
class LoadList {
 public:
  /// `to` is as in LoadTensor. What a tensor needs of `from` stays valid while files() live.
  void add(const SafeOpen& from, std::uint32_t file, const TensorInfo& info,
           std::span<const ByteRuns> runs, std::uint64_t nbytes, std::uint64_t to);

  [[nodiscard]] const std::vector<LoadTensor>& tensors() const noexcept { return tensors_; }
  [[nodiscard]] const std::vector<SafeOpen>& files() const noexcept { return files_; }
  /// Returns the sources of the load. Throws: what SafeOpen::source() throws.
  [[nodiscard]] std::vector<std::shared_ptr<const ByteSource>> sources() const;

 private:
  std::vector<LoadTensor> tensors_;
  std::vector<SafeOpen> files_;
  std::map<std::uint32_t, std::uint32_t> sources_;  // of the number of a file
};

}  // namespace safetensors::c
