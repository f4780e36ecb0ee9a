// Comparing whole files with sums.
#include <algorithm>
#include <atomic>
#include <iterator>
#include <string>
#include <utility>

#include "base/display_path.hpp"
#include "base/text.hpp"
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

SumsByFile::SumsByFile(const Sums& sums)
    : sums_(&sums), paths_(paths_of(sums.files())), tensors_(sums.files().size()) {
  for (std::size_t i = 0; i < sums.size(); ++i) tensors_[sums.tensor(i).file].push_back(i);
}

std::size_t SumsByFile::entry_of(const std::filesystem::path& file) const {
  if (const std::optional<std::size_t> found = paths_.find(file)) return *found;
  if (tensors_.size() == 1) return 0;
  fail(ErrorCode::kInvalidArgument, "the sums have no digests of the file", {.path = file});
}

FileDigests SumsByFile::digests_of(const std::filesystem::path& file) const {
  const std::size_t number = entry_of(file);
  const FileSums& entry = sums_->files()[number];
  FileDigests digests{.nbytes = entry.nbytes, .header = entry.header};
  if (entry.header.algorithm() == DigestAlgorithm::kSha256) digests.header.reset();
  for (const std::size_t i : tensors_[number]) {
    const TensorSums tensor = sums_->tensor(i);
    if (!tensor.xxh3_128) {
      fail(ErrorCode::kInvalidArgument,
           "the sums have only a SHA-256 of tensor `" + clipped(tensor.name) +
               "`, which `safetensors check` compares",
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
