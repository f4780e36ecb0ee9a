// save_model(): a model from memory, in as many files as it takes.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "check/make_sums.hpp"
#include "safetensors/detail/serializing.hpp"
#include "safetensors/detail/write_sums.hpp"
#include "safetensors/model_writer.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/sums.hpp"
#include "write/distinct_names.hpp"

namespace safetensors {
namespace {

/// Returns the sums of a model from those of its files.
Sums joined(const std::vector<Sums>& parts) {
  Sums sums;
  std::vector<TensorSums> tensors;
  for (const Sums& part : parts) {
    const std::size_t file = sums.add_file(part.files().front());
    for (std::size_t i = 0; i < part.size(); ++i) {
      tensors.push_back(part.tensor(i));
      tensors.back().file = file;
    }
  }
  std::ranges::sort(tensors, {}, &TensorSums::name);
  for (const TensorSums& each : tensors) sums.add_tensor(each);
  return sums;
}

/// Saves one shard, and returns its sums if they are wanted.
std::optional<Sums> save_shard(ModelWriter& model, std::size_t number, const std::string& file,
                               std::span<const TensorData> tensors, const Metadata* metadata,
                               const SaveOptions& options) {
  using Written = detail::WriteSums::Written;
  std::optional<Sums> found;
  const auto make = [&](const std::filesystem::path& complete,
                        const std::vector<Written>* written) -> std::optional<std::string> {
    const std::span<const Written> known =
        written == nullptr ? std::span<const Written>() : std::span<const Written>(*written);
    found = make_sums(*open_source(complete), file, options.interrupt, known);
    return std::nullopt;  // those of the model are one file
  };
  detail::serializing([&] {
    const LayoutPlan plan = plan_layout(tensors, metadata);
    const auto sums = options.sums
                          ? std::make_unique<detail::WriteSums>(std::filesystem::path(), make)
                          : std::make_unique<detail::WriteSums>();
    detail::write_file(plan, tensors, model.make_shard(number, sums->before_rename({})), options,
                       *sums);
  });
  return found;
}

}  // namespace

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
  ModelWriter model(folder,
                    {.name = options.name, .fsync = options.fsync, .interrupt = options.interrupt});
  std::vector<Sums> sums;
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < plan.shards.size(); ++i) {
    std::vector<TensorData> of_shard;
    std::uint64_t nbytes = 0;
    for (const std::size_t tensor : plan.shards[i]) {
      of_shard.push_back(tensors[tensor]);
      nbytes += sizes[tensor];
    }
    SaveOptions of_file{.sums = options.sums, .interrupt = options.interrupt};
    if (options.progress) {
      of_file.progress = [&, nbytes](std::uint64_t written, std::uint64_t total) {
        const std::uint64_t header = total - nbytes;
        if (written > header) options.progress(done + (written - header), plan.total_nbytes);
      };
    }
    const std::string file = shard_file_name(options.name, i + 1, plan.shards.size());
    auto found = save_shard(model, i + 1, file, of_shard, metadata, of_file);
    if (found) sums.push_back(*std::move(found));
    done += nbytes;
  }
  if (options.progress && plan.total_nbytes == 0) options.progress(0, 0);
  return model.commit(names, plan.total_nbytes, options.sums ? joined(sums).json() : std::string());
}

}  // namespace safetensors
