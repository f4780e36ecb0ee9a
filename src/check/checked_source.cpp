#include "check/checked_source.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/checked.hpp"
#include "io/chunk_reader.hpp"

namespace safetensors {
namespace {

// Bytes of a file are hashed right after they are read, while the processor's cache has them.
constexpr std::uint64_t kHashStep = std::uint64_t{128} << 10;
// The last tensor that was compared as a whole is kept in any case, older ones up to this sum.
constexpr std::uint64_t kMaxKept = std::uint64_t{64} << 20;

std::uint64_t nbytes_of(const CheckedTensor& tensor) noexcept { return tensor.end - tensor.begin; }

/// Returns the digest of a tensor that has no blocks.
const Digest& whole_digest_of(const CheckedTensor& tensor) noexcept {
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): FileDigests has one or the other
  return *tensor.wanted.digest;
}

/// Returns how many bytes to read at once.
std::uint64_t step_of(const ByteSource& source) noexcept {
  const ReadCost cost = source.cost();
  if (!cost.is_request) return std::max(kHashStep, cost.min_nbytes);
  return cost.chunk_nbytes == 0 ? kDigestBlockSize : cost.chunk_nbytes;
}

struct Block {
  std::uint64_t number;
  std::uint64_t begin;
  std::uint64_t end;
};

/// Returns the block of a tensor that has the byte at `offset` of the file.
Block block_at(const CheckedTensor& tensor, std::uint64_t offset) noexcept {
  const std::uint64_t number = (offset - tensor.begin) / kDigestBlockSize;
  const std::uint64_t begin = tensor.begin + number * kDigestBlockSize;
  return {number, begin, begin + std::min(tensor.end - begin, kDigestBlockSize)};
}

std::span<const std::byte> bytes_of(std::string_view text) noexcept {
  return std::as_bytes(std::span(text));
}

/// One read of a range of the file. Reads in steps, and compares blocks and tensors as they are
/// complete:
///
///     file      [ start ][ tensor: block 0 | block 1 | block 2 ][ tensor ][ tensor
///     range                           [----------------------------------)
///                         a part of block 0: read whole, to other memory, unless compared before
///                                          [ whole blocks and tensors: hashed where they are ]
class Pass {
 public:
  Pass(const FileChecks& checks, const ByteSource& source, std::uint64_t offset,
       std::span<std::byte> to)
      : checks_(checks),
        source_(source),
        step_(step_of(source)),
        offset_(offset),
        end_(offset + to.size()),
        to_(to),
        filled_(offset) {}

  /// Fills the range.
  void run() {
    for (std::uint64_t at = offset_; at < end_;) at = take(at, end_);
  }
  /// Reads all of the range, and compares what has bytes of `parts`.
  void run(std::span<const ReadPiece> parts) {
    std::uint64_t at = offset_;
    for (const ReadPiece& part : parts) {
      const std::uint64_t begin = unit_begin(part.offset);
      at = std::max(at, begin < offset_ ? part.offset : begin);
      const std::uint64_t end = part.offset + part.to.size();
      while (at < end) at = take(at, end_);
    }
  }

 private:
  /// Returns where the block or tensor begins that has the byte at `at`.
  [[nodiscard]] std::uint64_t unit_begin(std::uint64_t at) const noexcept {
    const CheckedTensor* const tensor = checks_.find(at);
    if (tensor == nullptr || tensor->begin > at) return at;
    return tensor->wanted.blocks.empty() ? tensor->begin : block_at(*tensor, at).begin;
  }

  /// Fills what begins at `at`, up to `end` at most, and returns where it ends.
  std::uint64_t take(std::uint64_t at, std::uint64_t end) {
    if (const std::span<const std::byte> start = checks_.start(); at < start.size()) {
      const std::uint64_t stop = std::min<std::uint64_t>(end, start.size());
      put(start.subspan(static_cast<std::size_t>(at)), at, stop);
      return stop;
    }
    const CheckedTensor* const tensor = checks_.find(at);
    if (tensor == nullptr || tensor->begin > at) {
      const std::uint64_t stop = tensor == nullptr ? end : std::min(end, tensor->begin);
      fill(stop);
      return stop;
    }
    return tensor->wanted.blocks.empty() ? take_whole(*tensor, at, end)
                                         : take_block(*tensor, at, end);
  }

  std::uint64_t take_block(const CheckedTensor& tensor, std::uint64_t at, std::uint64_t end) {
    const Block block = block_at(tensor, at);
    const std::uint64_t wanted = tensor.wanted.blocks[static_cast<std::size_t>(block.number)];
    const std::uint64_t stop = std::min(block.end, end);
    const auto compare = [&] {
      if (hasher().xxh3_64() != wanted) checks_.fail(tensor, block.begin, block.end, source_);
      checks_.set_compared(tensor, block.number);
    };
    if (at == block.begin && stop == block.end) {
      hasher().reset();
      hash(at, stop);
      compare();
    } else if (checks_.is_compared(tensor, block.number)) {
      fill(stop);
    } else {
      const Buffer whole(static_cast<std::size_t>(block.end - block.begin));
      hasher().reset();
      for (std::uint64_t done = 0; done < whole.size(); done += step_) {
        const auto piece = whole.bytes().subspan(
            static_cast<std::size_t>(done),
            static_cast<std::size_t>(std::min<std::uint64_t>(step_, whole.size() - done)));
        source_.read_at(block.begin + done, piece);
        hasher().update(piece);
      }
      compare();
      put(whole.bytes().subspan(static_cast<std::size_t>(at - block.begin)), at, stop);
    }
    return stop;
  }

  std::uint64_t take_whole(const CheckedTensor& tensor, std::uint64_t at, std::uint64_t end) {
    const std::uint64_t stop = std::min(tensor.end, end);
    if (at != tensor.begin || stop != tensor.end) {
      const std::shared_ptr<const Buffer> whole = checks_.whole(tensor, source_);
      put(whole->bytes().subspan(static_cast<std::size_t>(at - tensor.begin)), at, stop);
      return stop;
    }
    fill(stop);
    if (checks_.digest(tensor, filled(at, stop)) != whole_digest_of(tensor)) {
      checks_.fail(tensor, at, stop, source_);
    }
    return stop;
  }

  [[nodiscard]] std::span<std::byte> filled(std::uint64_t begin, std::uint64_t end) const noexcept {
    return to_.subspan(static_cast<std::size_t>(begin - offset_),
                       static_cast<std::size_t>(end - begin));
  }

  /// Reads up to `end` or further. Does nothing for what was read or put before.
  void fill(std::uint64_t end) {
    while (filled_ < end) {
      const std::uint64_t stop = filled_ + std::min(step_, end_ - filled_);
      source_.read_at(filled_, filled(filled_, stop));
      filled_ = stop;
    }
  }

  /// Reads and hashes [at, end).
  void hash(std::uint64_t at, std::uint64_t end) {
    while (at < end) {
      fill(at + 1);
      const std::uint64_t stop = std::min(filled_, end);
      hasher().update(filled(at, stop));
      at = stop;
    }
  }

  /// Copies [at, end) from bytes that were compared.
  void put(std::span<const std::byte> bytes, std::uint64_t at, std::uint64_t end) noexcept {
    std::memcpy(filled(at, end).data(), bytes.data(), static_cast<std::size_t>(end - at));
    filled_ = std::max(filled_, end);
  }

  Xxh3Hasher& hasher() {
    if (!hasher_) hasher_.emplace();
    return *hasher_;
  }

  const FileChecks& checks_;
  const ByteSource& source_;
  const std::uint64_t step_;
  const std::uint64_t offset_;
  const std::uint64_t end_;
  const std::span<std::byte> to_;
  std::uint64_t filled_;  // up to here
  std::optional<Xxh3Hasher> hasher_;
};

std::string text_of(std::uint64_t xxh3) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "xxh3-64:";
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[xxh3 >> shift & 0xF];
  return text;
}

}  // namespace

FileChecks::FileChecks(std::filesystem::path path, Buffer start, std::uint64_t data_begin,
                       std::vector<CheckedTensor> tensors, Sha256 sha256)
    : path_(std::move(path)),
      start_(std::move(start)),
      data_begin_(data_begin),
      tensors_(std::move(tensors)),
      sha256_(std::move(sha256)) {
  std::size_t blocks = 0;
  for (CheckedTensor& tensor : tensors_) {
    tensor.first_block = blocks;
    blocks += tensor.wanted.blocks.size();
  }
  compared_ = std::make_unique<std::atomic<bool>[]>(blocks);
}

FileChecks::~FileChecks() { wholes_.reset(); }

const CheckedTensor* FileChecks::find(std::uint64_t offset) const noexcept {
  const auto found = std::ranges::upper_bound(tensors_, offset, {}, &CheckedTensor::end);
  return found == tensors_.end() ? nullptr : &*found;
}

Digest FileChecks::digest(const CheckedTensor& tensor, std::span<const std::byte> bytes) const {
  if (whole_digest_of(tensor).algorithm() == DigestAlgorithm::kSha256) {
    return sha256_(tensor.start, bytes);
  }
  Xxh3Hasher hasher;
  hasher.update(bytes_of(tensor.start));
  hasher.update(bytes);
  return hasher.digest();
}

std::shared_ptr<const Buffer> FileChecks::whole(const CheckedTensor& tensor,
                                                const ByteSource& source) const {
  Wholes& all = wholes_.get();
  std::shared_ptr<Whole> whole;
  {
    const std::lock_guard lock(all.mutex);
    const auto found = std::ranges::find(all.kept, &tensor, &Whole::tensor);
    whole = found != all.kept.end() ? *found : all.kept.emplace_back(std::make_shared<Whole>());
    whole->tensor = &tensor;
  }
  const std::lock_guard lock(whole->mutex);
  if (whole->is_read) return whole->bytes;
  auto bytes = std::make_shared<const Buffer>(static_cast<std::size_t>(nbytes_of(tensor)));
  const ReadPiece piece{tensor.begin, bytes->bytes()};
  read_all(source, {&piece, 1});
  if (digest(tensor, bytes->bytes()) != whole_digest_of(tensor)) {
    fail(tensor, tensor.begin, tensor.end, source);
  }
  whole->bytes = bytes;
  whole->is_read = true;
  // Only now: the readers of an older tensor's parts have had time to take them.
  const std::lock_guard all_lock(all.mutex);
  std::uint64_t kept = 0;
  for (const auto& each : all.kept) kept += each == whole ? 0 : nbytes_of(*each->tensor);
  std::erase_if(all.kept, [&](const std::shared_ptr<Whole>& each) {
    if (kept <= kMaxKept || each == whole || !each->is_read) return false;
    kept -= nbytes_of(*each->tensor);
    return true;
  });
  return bytes;
}

std::vector<Damage> FileChecks::damage(const CheckedTensor& tensor,
                                       const ByteSource& source) const {
  const auto& [wanted, blocks] = tensor.wanted;
  if (blocks.empty()) {
    const Buffer bytes(memory_size(nbytes_of(tensor)));
    const ReadPiece piece{tensor.begin, bytes.bytes()};
    read_all(source, {&piece, 1});
    const Digest& expected = whole_digest_of(tensor);
    const Digest found = digest(tensor, bytes.bytes());
    if (found == expected) return {};
    return {{tensor.name, path_, tensor.begin, tensor.end, expected.text(), found.text()}};
  }
  std::vector<Damage> damage;
  Xxh3Hasher whole;
  Xxh3Hasher hasher;
  whole.update(bytes_of(tensor.start));
  const Buffer bytes(static_cast<std::size_t>(std::min(nbytes_of(tensor), kDigestBlockSize)));
  for (std::uint64_t at = tensor.begin; at < tensor.end;) {
    const Block block = block_at(tensor, at);
    const auto read = bytes.bytes().first(static_cast<std::size_t>(block.end - block.begin));
    source.read_at(block.begin, read);
    whole.update(read);
    hasher.reset();
    hasher.update(read);
    at = block.end;
    const std::uint64_t expected = blocks[static_cast<std::size_t>(block.number)];
    if (hasher.xxh3_64() == expected) continue;
    if (!damage.empty() && damage.back().end == block.begin) {
      damage.back().end = block.end;
    } else {
      damage.push_back({tensor.name, path_, block.begin, block.end, text_of(expected),
                        text_of(hasher.xxh3_64())});
    }
  }
  const bool is_same =
      wanted && wanted->algorithm() == DigestAlgorithm::kXxh3_128 && *wanted == whole.digest();
  if (is_same && !damage.empty()) {
    safetensors::fail(ErrorCode::kDamaged,
                      "tensor `" + tensor.name +
                          "`: its digest and its blocks in the sums disagree: they are damaged",
                      {.path = path_, .subject = tensor.name});
  }
  return damage;
}

void FileChecks::fail(const CheckedTensor& tensor, std::uint64_t begin, std::uint64_t end,
                      const ByteSource& source) const {
  std::vector<Damage> found = damage(tensor, source);
  // The bytes may differ from read to read.
  if (found.empty()) found.push_back({tensor.name, path_, begin, end, "", ""});
  fail_damaged(std::move(found));
}

void CheckedSource::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  const std::shared_ptr<const ByteSource> kept = inner_->keep_open();
  const ByteSource& source = kept ? *kept : *inner_;
  if (offset > size() || to.size() > size() - offset) return source.read_at(offset, to);
  Pass(*checks_, source, offset, to).run();
}

void CheckedSource::read_parts(std::uint64_t offset, std::uint64_t nbytes,
                               std::span<const ReadPiece> parts) const {
  if (!inner_->cost().is_request) return ByteSource::read_parts(offset, nbytes, parts);
  const bool is_one = parts.size() == 1 && parts[0].to.size() == nbytes;
  if (is_one) return read_at(offset, parts[0].to);
  const Buffer answer(memory_size(nbytes));
  Pass(*checks_, *inner_, offset, answer.bytes()).run(parts);
  io::copy_parts(offset, answer.bytes(), parts);
}

ReadCost CheckedSource::cost() const noexcept {
  ReadCost cost = inner_->cost();
  cost.alignment = 1;
  // No bytes of tensors, which may be damaged.
  if (!checks_->start().empty()) cost.first_nbytes = checks_->start().size();
  cost.is_checked = true;
  return cost;
}

std::uint64_t CheckedSource::divide(std::uint64_t begin, std::uint64_t limit) const noexcept {
  const CheckedTensor* const tensor = checks_->find(limit);
  // A tensor at 0 is the whole file, which is in memory.
  if (tensor == nullptr || tensor->begin >= limit || tensor->begin == 0) return limit;
  const bool has_blocks = !tensor->wanted.blocks.empty();
  const Block block = has_blocks ? block_at(*tensor, limit) : Block{0, tensor->begin, tensor->end};
  return block.begin > begin ? block.begin : block.end;
}

std::shared_ptr<const ByteSource> CheckedSource::keep_open() const {
  std::shared_ptr<const ByteSource> kept = inner_->keep_open();
  if (!kept) return nullptr;
  return std::make_shared<const CheckedSource>(std::move(kept), checks_);
}

}  // namespace safetensors
