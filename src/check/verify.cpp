#include "safetensors/verify.hpp"

#include <algorithm>
#include <utility>

#include "base/text.hpp"
#include "check/checked_source.hpp"
#include "open/read_header.hpp"

namespace safetensors {
namespace {

[[noreturn]] void fail_as_other(const std::string& what, const std::filesystem::path& label) {
  fail(ErrorCode::kDamaged, "the digests are of another file" + what, {.path = label});
}

struct Start {
  Buffer bytes;
  ReadHeader parsed;
};

/// Reads and compares the header.
Start read_start(const ByteSource& source, const FileDigests& digests,
                 const std::filesystem::path& label) {
  const std::string otherwise = ", or its header is damaged";
  try {
    Buffer bytes = read_prologue(source);
    ReadHeader parsed = parse_prologue(bytes.bytes(), source.size());
    if (digests.header) {
      const auto start = bytes.bytes().first(static_cast<std::size_t>(parsed.data_begin));
      Xxh3Hasher hasher;
      hasher.update(start);
      const bool is_sha256 = digests.header->algorithm() == DigestAlgorithm::kSha256;
      const Digest found = is_sha256 ? digests.sha256("", start) : hasher.digest();
      if (found != *digests.header) fail_as_other(otherwise, label);
    }
    return {std::move(bytes), std::move(parsed)};
  } catch (const Error& error) {
    const bool is_content = error.path().empty() && error.code() != ErrorCode::kIo &&
                            error.code() != ErrorCode::kOutOfMemory;
    if (!is_content) throw;
    if (digests.header) fail_as_other(otherwise + ": " + error.what(), label);
    throw error.with_context("Error while deserializing header: ", label);
  }
}

void check_sha256(const FileDigests& digests) {
  const auto needs = [](const std::optional<Digest>& digest) {
    return digest && digest->algorithm() == DigestAlgorithm::kSha256;
  };
  const bool is_needed = needs(digests.header) || needs(digests.file) ||
                         std::ranges::any_of(digests.tensors, [&](const auto& each) {
                           return needs(each.second.digest);
                         });
  if (is_needed && !digests.sha256) {
    fail(ErrorCode::kInvalidArgument, "a digest is SHA-256, and FileDigests::sha256 is empty");
  }
}

/// Throws if there is a digest of a tensor that the file does not have.
void refuse_missing(const FileDigests& digests, const Header& header,
                    const std::filesystem::path& label) {
  for (const auto& [name, wanted] : digests.tensors) {
    if (header.find(name) != nullptr) continue;
    fail(ErrorCode::kDamaged, "tensor `" + clipped(name) + "` is missing: there is a digest of it",
         {.path = label, .subject = name});
  }
}

}  // namespace

std::shared_ptr<const ByteSource> checked_source(std::shared_ptr<const ByteSource> source,
                                                 const FileDigests& digests,
                                                 const std::filesystem::path& label) {
  if (!source) fail(ErrorCode::kInvalidArgument, "the source is null");
  check_sha256(digests);
  if (digests.nbytes && *digests.nbytes != source->size()) {
    fail_as_other(
        ": of " + counted(*digests.nbytes, "byte") + ", this one has " + grouped(source->size()),
        label);
  }
  if (digests.file) {
    std::vector<CheckedTensor> all;
    if (source->size() != 0) all.push_back({"", "", 0, source->size(), {.digest = digests.file}});
    auto checks =
        std::make_shared<const FileChecks>(label, Buffer(), 0, std::move(all), digests.sha256);
    return std::make_shared<const CheckedSource>(std::move(source), std::move(checks));
  }
  const std::shared_ptr<const ByteSource> kept = source->keep_open();
  auto [start, parsed] = read_start(kept ? *kept : *source, digests, label);
  if (!digests.is_partial) refuse_missing(digests, parsed.header, label);
  std::vector<CheckedTensor> tensors;
  std::vector<CheckedTensor> empty;
  for (const TensorInfo& info : parsed.header.tensors()) {
    const std::string name(info.name);
    const auto refuse = [&](ErrorCode code, const char* why) {
      fail(code, "tensor `" + clipped(name) + "` " + why, {.path = label, .subject = name});
    };
    const auto found = digests.tensors.find(info.name);
    if (found == digests.tensors.end()) {
      if (digests.is_partial) continue;
      refuse(ErrorCode::kInvalidArgument, "has no digest");
    }
    const TensorDigests& wanted = found->second;
    if (!wanted.blocks.empty() || !wanted.digest) {
      const std::uint64_t rest = info.nbytes() % kDigestBlockSize == 0 ? 0 : 1;
      if (wanted.blocks.size() != info.nbytes() / kDigestBlockSize + rest) {
        refuse(ErrorCode::kDamaged, "has other blocks in the digests: these are damaged");
      }
    }
    auto& place = info.nbytes() == 0 ? empty : tensors;
    place.push_back({name, digest_start(info.dtype, info.shape), parsed.data_begin + info.begin,
                     parsed.data_begin + info.end, wanted});
  }
  auto checks = std::make_shared<const FileChecks>(label, std::move(start), parsed.data_begin,
                                                   std::move(tensors), digests.sha256);
  // No read has bytes of these.
  for (const CheckedTensor& tensor : empty) {
    if (!tensor.wanted.digest) continue;
    const Digest found = checks->digest(tensor, {});
    if (found == *tensor.wanted.digest) continue;
    fail_damaged({{tensor.name, label, tensor.begin, tensor.end, tensor.wanted.digest->text(),
                   found.text()}});
  }
  return std::make_shared<const CheckedSource>(std::move(source), std::move(checks));
}

std::shared_ptr<const ByteSource> unchecked(const std::shared_ptr<const ByteSource>& source) {
  const auto* const checked = dynamic_cast<const CheckedSource*>(source.get());
  return checked == nullptr ? source : checked->inner();
}

std::vector<Damage> find_damage(const ByteSource& source, std::uint64_t begin, std::uint64_t end) {
  std::vector<Damage> all;
  const auto* const checked = dynamic_cast<const CheckedSource*>(&source);
  if (checked == nullptr) return all;
  const std::shared_ptr<const ByteSource> kept = checked->inner()->keep_open();
  for (const CheckedTensor* tensor = checked->checks().find(begin);
       tensor != nullptr && tensor->begin < end; tensor = checked->checks().find(tensor->end)) {
    std::ranges::move(checked->checks().damage(*tensor, kept ? *kept : *checked->inner()),
                      std::back_inserter(all));
  }
  return all;
}

std::string text_of(const Damage& damage) {
  if (damage.expected.empty() && !damage.found.empty()) return damage.found;
  std::string text = "tensor `" + clipped(damage.tensor) + "` is damaged between bytes " +
                     grouped(damage.begin) + " and " + grouped(damage.end) + " of the file";
  if (damage.tensor.empty()) text = "the file has another digest";
  if (!damage.found.empty()) text += ": expected " + damage.expected + ", found " + damage.found;
  return text;
}

void fail_damaged(std::vector<Damage> damage) {
  const Damage& first = damage.front();
  std::string text = text_of(first);
  if (damage.size() > 1) text += ", and " + counted(damage.size() - 1, "other range") + " too";
  const std::filesystem::path path = first.file;
  const std::string name = first.tensor;
  fail(ErrorCode::kDamaged, text,
       {.path = path, .subject = name, .cause = std::make_exception_ptr(std::move(damage))});
}

std::vector<Damage> damage_of(const Error& error) {
  if (error.code() != ErrorCode::kDamaged || !error.cause()) return {};
  try {
    std::rethrow_exception(error.cause());
  } catch (const std::vector<Damage>& damage) {
    return damage;
  } catch (...) {
    return {};
  }
}

}  // namespace safetensors
