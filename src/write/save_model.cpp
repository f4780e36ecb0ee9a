// save_model(): a model from memory, in as many files as it takes.
#include <memory>
#include <utility>

#include "safetensors/detail/serializing.hpp"
#include "safetensors/model_writer.hpp"
#include "write/distinct_names.hpp"
#include "write/shard_saves.hpp"

namespace safetensors {

std::vector<std::filesystem::path> save_model(const std::filesystem::path& folder,
                                              std::span<const TensorData> tensors,
                                              const Metadata* metadata,
                                              const SaveModelOptions& options) {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(tensors.size());
  for (const TensorData& each : tensors) sizes.push_back(each.bytes.size());
  const ShardPlan plan = plan_shards(sizes, options.max_shard_nbytes);
  std::vector<std::vector<std::string_view>> names;
  for (const std::vector<std::size_t>& shard : plan.shards) {
    std::vector<std::string_view>& its_names = names.emplace_back();
    for (const std::size_t tensor : shard) its_names.push_back(tensors[tensor].name);
  }
  detail::serializing([&] { refuse_bad_names(names); });
  ShardSaves saves(folder, options, plan.shards.size(), plan.total_nbytes);
  for (const std::vector<std::size_t>& shard : plan.shards) {
    std::vector<TensorData> of_shard;
    std::uint64_t nbytes = 0;
    for (const std::size_t tensor : shard) {
      of_shard.push_back(tensors[tensor]);
      nbytes += sizes[tensor];
    }
    detail::serializing([&] {
      LayoutPlan layout = plan_layout(of_shard, metadata);
      saves.save(nbytes, [&](auto sink, const SaveOptions& of_file, detail::WriteSums& sums) {
        detail::write_file(std::move(layout), of_shard, std::move(sink), of_file, sums);
      });
    });
  }
  return std::move(saves).commit(names);
}

}  // namespace safetensors
