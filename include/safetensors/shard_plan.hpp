// Which tensors go to which file of a model, and what the files are called.
//
// The rule and the names are those of huggingface_hub. Pure functions of names and sizes: no file
// is opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/export.hpp"
#include "safetensors/layout.hpp"

namespace safetensors {

/// The most files that a model may have: their names have five digits.
inline constexpr std::size_t kMaxShards = 99'999;

/// The default limit of a shard.
inline constexpr std::uint64_t kDefaultShardSize = 5'000'000'000;

/// The tensors of each file of a model.
struct ShardPlan {
  /// The indices of the tensors, by file. There is at least one file, possibly without tensors.
  std::vector<std::vector<std::size_t>> shards;
  std::uint64_t total_nbytes = 0;  ///< of all tensors
};

/// Assigns tensors to files, in the order given: a file ends before the tensor that would bring it
/// above the limit. A tensor that exceeds the limit has a file of its own, and does not end the
/// file before it: of the sizes 2, 9, 2 and a limit of 5, the files are 9 and 2 + 2.
///
/// nbytes: of each tensor.
/// max_shard_nbytes: the limit of the tensors of a file.
/// Throws: Error kInvalidArgument if the limit is 0, or there are more than kMaxShards files;
///   kOverflow if the sizes add up to more than 64 bits.
[[nodiscard]] SAFETENSORS_API ShardPlan plan_shards(std::span<const std::uint64_t> nbytes,
                                                    std::uint64_t max_shard_nbytes);
/// The same for tensors that are not written yet. Throws also: what plan_layout() throws about a
/// single tensor.
[[nodiscard]] SAFETENSORS_API ShardPlan plan_shards(
    std::span<const TensorSpec> tensors, std::uint64_t max_shard_nbytes = kDefaultShardSize);

/// Returns the name of a file of a model: NAME.safetensors if it is the only one, else
/// NAME-00001-of-00003.safetensors.
///
/// number: from 1 on, at most `count`.
[[nodiscard]] SAFETENSORS_API std::string shard_file_name(std::string_view name, std::size_t number,
                                                          std::size_t count);

/// Returns the name of the index, which a model of several files has:
/// NAME.safetensors.index.json.
[[nodiscard]] SAFETENSORS_API std::string index_file_name(std::string_view name);

/// Returns the text of the index of a model with several files.
///
/// shards: the names of the tensors, by file.
/// total_nbytes: of all tensors.
/// Requires: the names of tensors are UTF-8.
[[nodiscard]] SAFETENSORS_API std::string index_text(
    std::string_view name, std::span<const std::vector<std::string_view>> shards,
    std::uint64_t total_nbytes);

}  // namespace safetensors
