#include "safetensors/detail/write_sums.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "safetensors/detail/folder.hpp"

namespace safetensors::detail {
namespace {

// Below this, starting a thread takes longer than hashing.
constexpr std::uint64_t kThreadThreshold = std::uint64_t{1} << 20;
constexpr std::size_t kHashStep = std::size_t{1} << 20;

}  // namespace

WriteSums::WriteSums(std::filesystem::path path, Make make)
    : path_(std::move(path)), make_(std::move(make)) {}

void WriteSums::add(std::string_view name, Dtype dtype, std::span<const std::uint64_t> shape) {
  if (!is_wanted()) return;
  std::uint64_t bits = bit_size(dtype);
  for (const std::uint64_t dim : shape) bits *= dim;  // the layout has checked the product
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_.emplace_back();
  entry.name = name;
  entry.shape.assign(shape.begin(), shape.end());
  entry.dtype = dtype;
  entry.nbytes = bits / 8;
}

WriteSums::Entry& WriteSums::entry(std::size_t tensor) {
  const std::lock_guard lock(mutex_);
  return entries_.at(tensor);
}

void WriteSums::hash(const Part& part, const std::atomic<bool>& is_stopped) {
  Entry& its = entry(part.tensor);
  const std::lock_guard lock(its.mutex);
  if (part.bytes.empty() && its.nbytes != 0) return;
  if (part.begin != its.next) its.is_in_order = false;
  if (!its.is_in_order) return;
  if (!its.hasher) its.hasher.emplace(its.dtype, its.shape, kDigestBlockSize);
  for (std::span<const std::byte> left = part.bytes; !left.empty() && !is_stopped;) {
    const std::span<const std::byte> piece = left.first(std::min(left.size(), kHashStep));
    its.hasher->update(piece);
    its.next += piece.size();
    left = left.subspan(piece.size());
  }
  if (its.next == its.nbytes) complete(its);
}

void WriteSums::complete(Entry& entry) {
  if (!entry.hasher) entry.hasher.emplace(entry.dtype, entry.shape, kDigestBlockSize);
  entry.digest = entry.hasher->digest();
  entry.blocks = entry.hasher->blocks();
  entry.hasher.reset();
}

std::vector<WriteSums::Written> WriteSums::written() {
  std::vector<Written> result;
  result.reserve(entries_.size());
  for (Entry& entry : entries_) {
    if (entry.nbytes == 0) complete(entry);
    result.push_back({.name = entry.name,
                      .digest = entry.is_in_order ? entry.digest : std::nullopt,
                      .blocks = entry.blocks});
  }
  return result;
}

void WriteSums::open_sink([[maybe_unused]] const std::filesystem::path& now,
                          const std::filesystem::path& path) {
  // Another thread or process may save the file at the same time: sums are of the file that is
  // found.
  std::function<bool()> is_found;
#if !defined(_WIN32)
  is_found = watch_file(now, path);
#endif
  const OwnPlace like = place_of_own(path);
  sink_ = make_own_sink(place_of_own(path_), &like, is_found);
}

void WriteSums::write_content(const std::filesystem::path& complete,
                              const std::filesystem::path& path) {
  const std::vector<Written> known = written();
  const std::optional<std::string> content = make_(complete, known.empty() ? nullptr : &known);
  if (!content) {
    sink_.reset();
    return;
  }
  if (!sink_) open_sink(complete, path);
  nbytes_ = content->size();
  write_whole(*sink_, std::as_bytes(std::span(*content)));
}

std::function<void(const std::filesystem::path&)> WriteSums::before_rename(
    const std::filesystem::path& file) {
  if (!is_wanted()) return {};
  return [this, file](const std::filesystem::path& temporary) { write_content(temporary, file); };
}

void WriteSums::overwrites(const std::filesystem::path& file) {
  if (!is_wanted()) return;
  entries_.clear();
  sink_.reset();
  if (!path_.empty()) open_sink(file, file);
  overwritten_ = file;
}

void WriteSums::commit(bool fsync) {
  if (!overwritten_.empty()) write_content(overwritten_, overwritten_);
  if (sink_) sink_->commit(nbytes_, fsync);
  sink_.reset();
}

WriteSums::Hashing::Hashing(WriteSums& sums, std::span<const Part> parts) {
  if (parts.empty()) return;
  std::uint64_t nbytes = 0;
  for (const Part& part : parts) nbytes += part.bytes.size();
  if (nbytes >= kThreadThreshold) {
    state_ = std::make_unique<State>();
    try {
      state_->thread = std::thread([&sums, parts, state = state_.get()] {
        try {
          for (const Part& part : parts) sums.hash(part, state->is_stopped);
        } catch (...) {
          state->error = std::current_exception();
        }
      });
      return;
    } catch (const std::system_error&) {
      state_.reset();  // the system has no more threads
    }
  }
  const std::atomic<bool> is_stopped = false;
  for (const Part& part : parts) sums.hash(part, is_stopped);
}

WriteSums::Hashing::~Hashing() {
  if (!state_ || !state_->thread.joinable()) return;
  state_->is_stopped = true;
  state_->thread.join();
}

void WriteSums::Hashing::finish() const {
  if (!state_) return;
  state_->thread.join();
  if (state_->error) std::rethrow_exception(state_->error);
}

}  // namespace safetensors::detail
