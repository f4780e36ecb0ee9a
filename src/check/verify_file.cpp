// Comparing whole files with sums.
#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "base/display_path.hpp"
#include "base/text.hpp"
#include "safetensors/detail/path_ends.hpp"
#include "safetensors/parallel.hpp"
#include "safetensors/verify.hpp"

namespace safetensors {
namespace {

std::vector<std::filesystem::path> paths_of(const std::vector<FileSums>& files) {
  std::vector<std::filesystem::path> paths;
  paths.reserve(files.size());
  for (const FileSums& file : files) paths.push_back(path_of_name(file.path));
  return paths;
}

}  // namespace

struct SumsByFile::State {
  explicit State(const Sums& all)
      : sums(all), paths(paths_of(all.files())), tensors(all.files().size()) {
    for (std::size_t i = 0; i < all.size(); ++i) tensors[all.tensor(i).file].push_back(i);
  }

  const Sums& sums;
  detail::PathEnds paths;
  std::vector<std::vector<std::size_t>> tensors;  // of each entry
};

SumsByFile::SumsByFile(const Sums& sums) : state_(std::make_shared<const State>(sums)) {}

std::optional<std::size_t> SumsByFile::find_entry(const std::filesystem::path& file) const {
  const std::optional<std::size_t> found = state_->paths.find(file);
  return !found && state_->tensors.size() == 1 ? 0 : found;
}

std::size_t SumsByFile::entry_of(const std::filesystem::path& file) const {
  if (const std::optional<std::size_t> found = find_entry(file)) return *found;
  fail(ErrorCode::kInvalidArgument, "the sums have no digests of the file", {.path = file});
}

FileDigests SumsByFile::digests_of(const std::filesystem::path& file) const {
  const std::size_t number = entry_of(file);
  const FileSums& entry = state_->sums.files()[number];
  FileDigests digests{.nbytes = entry.nbytes, .header = entry.header};
  if (entry.header.algorithm() == DigestAlgorithm::kSha256) digests.header.reset();
  for (const std::size_t i : state_->tensors[number]) {
    const TensorSums tensor = state_->sums.tensor(i);
    if (!tensor.xxh3_128) {
      fail(ErrorCode::kInvalidArgument,
           "the sums have only a SHA-256 of tensor `" + clipped(tensor.name) +
               "`, which `safetensors hash --check` compares",
           {.path = file, .subject = std::string(tensor.name)});
    }
    TensorDigests wanted{.digest = tensor.xxh3_128};
    if (tensor.blocks) wanted.blocks.assign(tensor.blocks->begin(), tensor.blocks->end());
    digests.tensors.emplace(tensor.name, std::move(wanted));
  }
  return digests;
}

FileDigests digests_of(const Sums& sums, const std::filesystem::path& file) {
  return SumsByFile(sums).digests_of(file);
}

std::vector<Damage> find_damage(const SafeOpen& file, const FileDigests& digests,
                                const Interrupt& interrupt,
                                const std::function<void(std::uint64_t done)>& progress) {
  const std::shared_ptr<const ByteSource> source = unchecked(file.source());
  std::shared_ptr<const ByteSource> checked;
  try {
    checked = checked_source(source, digests, file.path());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDamaged) throw;
    return {{.tensor = error.subject(),
             .file = file.path(),
             .begin = 0,
             .end = source->size(),
             .expected = {},
             .found = error.what()}};
  }
  const std::span<const TensorInfo> tensors = file.header().tensors();
  std::vector<std::vector<Damage>> found(tensors.size());
  std::atomic<std::uint64_t> done = 0;
  const auto task = [&](std::size_t i) {
    const std::uint64_t begin = file.position(tensors[i]);
    found[i] = find_damage(*checked, begin, begin + tensors[i].nbytes());
    done.fetch_add(tensors[i].nbytes(), std::memory_order_relaxed);
  };
  const Interrupt both = [&] {
    if (interrupt) interrupt();
    if (progress) progress(done.load(std::memory_order_relaxed));
  };
  const bool is_watched = interrupt || progress;
  parallel_for(tensors.size(), source->size(), task, is_watched ? both : Interrupt());
  std::vector<Damage> damage;
  for (std::vector<Damage>& each : found) {
    damage.insert(damage.end(), std::move_iterator(each.begin()), std::move_iterator(each.end()));
  }
  return damage;
}

}  // namespace safetensors
