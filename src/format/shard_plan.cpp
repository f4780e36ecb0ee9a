#include "safetensors/shard_plan.hpp"

#include <utility>

#include "base/ascii_text.hpp"
#include "base/checked.hpp"
#include "base/text.hpp"
#include "format/model_names.hpp"
#include "format/tensor_nbytes.hpp"
#include "safetensors/detail/saved_names.hpp"
#include "safetensors/error.hpp"

namespace safetensors {

ShardPlan plan_shards(std::span<const std::uint64_t> nbytes, std::uint64_t max_shard_nbytes) {
  if (max_shard_nbytes == 0) fail(ErrorCode::kInvalidArgument, "a shard size of 0 is too small");
  ShardPlan plan;
  std::vector<std::size_t> current;
  std::uint64_t room = max_shard_nbytes;
  for (std::size_t i = 0; i < nbytes.size(); ++i) {
    const auto total = checked_add(plan.total_nbytes, nbytes[i]);
    if (!total) fail(ErrorCode::kOverflow, "the tensors have more bytes than 64 bits can count");
    plan.total_nbytes = *total;
    if (nbytes[i] > max_shard_nbytes) {
      plan.shards.push_back({i});
      continue;
    }
    if (nbytes[i] > room) {
      plan.shards.push_back(std::move(current));
      current.clear();
      room = max_shard_nbytes;
    }
    current.push_back(i);
    room -= nbytes[i];
  }
  if (!current.empty() || plan.shards.empty()) plan.shards.push_back(std::move(current));
  if (plan.shards.size() > kMaxShards) {
    fail(ErrorCode::kInvalidArgument, "max_shard_nbytes=" + std::to_string(max_shard_nbytes) +
                                          " makes " + grouped(plan.shards.size()) +
                                          " shards; a model may have " + grouped(kMaxShards));
  }
  return plan;
}

ShardPlan plan_shards(std::span<const TensorSpec> tensors, std::uint64_t max_shard_nbytes) {
  std::vector<std::uint64_t> nbytes;
  nbytes.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) nbytes.push_back(nbytes_of(tensor));
  return plan_shards(nbytes, max_shard_nbytes);
}

std::string shard_file_name(std::string_view name, std::size_t number, std::size_t count) {
  return std::string(name) +
         (count == 1 ? std::string(detail::kModelFileSuffix) : numbered_end(number, count));
}

std::string index_file_name(std::string_view name) {
  return shard_file_name(name, 1, 1) + std::string(detail::kIndexSuffix);
}

std::string index_text(std::string_view name, std::span<const std::vector<std::string_view>> shards,
                       std::uint64_t total_nbytes) {
  // As json.dumps(..., indent=2) of Python has it, which the Hub's own tools call.
  std::string text = "{\n  \"metadata\": {\n    \"total_size\": ";
  append_number(text, total_nbytes);
  text += "\n  },\n  \"weight_map\": {";
  bool is_first = true;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    std::string file;
    append_ascii_json(file, shard_file_name(name, i + 1, shards.size()));
    for (const std::string_view tensor : shards[i]) {
      text += is_first ? "\n    " : ",\n    ";
      is_first = false;
      append_ascii_json(text, tensor);
      text += ": ";
      text += file;
    }
  }
  text += is_first ? "}\n}" : "\n  }\n}";
  return text;
}

}  // namespace safetensors
