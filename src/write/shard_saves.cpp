#include "write/shard_saves.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "check/make_sums.hpp"
#include "safetensors/safe_open.hpp"

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

}  // namespace

ShardSaves::ShardSaves(const std::filesystem::path& folder, const SaveModelOptions& options,
                       std::size_t shards, std::uint64_t total_nbytes)
    : options_(options),
      model_(folder,
             {.name = options.name, .fsync = options.fsync, .interrupt = options.interrupt}),
      shards_(shards),
      total_nbytes_(total_nbytes) {}

void ShardSaves::save(std::uint64_t nbytes, const Write& write) {
  using Written = detail::WriteSums::Written;
  SaveOptions of_file{.sums = options_.sums, .interrupt = options_.interrupt};
  if (options_.progress) {
    of_file.progress = [this, nbytes](std::uint64_t written, std::uint64_t total) {
      const std::uint64_t header = total - nbytes;
      if (written > header) options_.progress(done_ + (written - header), total_nbytes_);
    };
  }
  const std::size_t number = ++count_;
  std::optional<Sums> found;
  const auto make = [&](const std::filesystem::path& complete,
                        const std::vector<Written>* written) -> std::optional<std::string> {
    const std::span<const Written> known =
        written == nullptr ? std::span<const Written>() : std::span<const Written>(*written);
    found = make_sums(*open_source(complete), shard_file_name(options_.name, number, shards_),
                      options_.interrupt, known);
    return std::nullopt;  // those of the model are one file
  };
  const auto sums = options_.sums
                        ? std::make_unique<detail::WriteSums>(std::filesystem::path(), make)
                        : std::make_unique<detail::WriteSums>();
  write(model_.make_shard(number, sums->before_rename({})), of_file, *sums);
  if (found) sums_.push_back(*std::move(found));
  done_ += nbytes;
}

std::vector<std::filesystem::path> ShardSaves::commit(
    std::span<const std::vector<std::string_view>> names) && {
  if (options_.progress && total_nbytes_ == 0) options_.progress(0, 0);
  return model_.commit(names, total_nbytes_, options_.sums ? joined(sums_).json() : std::string());
}

}  // namespace safetensors
