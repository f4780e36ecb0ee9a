#include "format/header_builder.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>

#include "base/checked.hpp"
#include "base/name_hash.hpp"
#include "base/text.hpp"
#include "format/tensor_nbytes.hpp"

namespace safetensors {
namespace {

// A slot of the hash table (Header::slots_) has 32 bits:
//
//     | tag: 10 bits of the name's hash | index of the tensor + 1: 22 bits |     0: free
//
// Unequal names mostly have unequal tags, so that names themselves are rarely compared.
constexpr unsigned kIndexBits = 22;
constexpr std::uint32_t kIndexMask = (1U << kIndexBits) - 1;
// The JSON of a tensor has more than 45 bytes, so the index of any header's tensor fits.
static_assert(kMaxHeaderSize / 45 < kIndexMask);

std::uint32_t tag_of(std::uint64_t hash) noexcept {
  return static_cast<std::uint32_t>(hash >> 32) & ~kIndexMask;
}

[[noreturn]] void fail_tensor(ErrorCode code, std::string_view text, const TensorInfo& info,
                              const std::string& detail) {
  fail(code, std::string(text) + " `" + clipped(info.name) + "`" + detail,
       {.subject = std::string(info.name)});
}

}  // namespace

HeaderBuilder::HeaderBuilder(std::size_t json_nbytes) : json_nbytes_(json_nbytes) {
  // What real headers need, about. Reserved memory that is not touched costs nothing.
  text_.reserve(json_nbytes / 2 + 16);
  tensors_.reserve(json_nbytes / 100 + 4);
  dims_.reserve(json_nbytes / 32 + 8);
}

HeaderBuilder::Text HeaderBuilder::keep(std::string_view text) {
  const Text kept{static_cast<std::uint32_t>(text_.size()),
                  static_cast<std::uint32_t>(text.size())};
  text_.insert(text_.end(), text.begin(), text.end());
  text_.push_back('\0');  // for C. The JSON's quotes are not kept, so this fits in json_nbytes
  return kept;
}

void HeaderBuilder::begin_tensor(std::string_view name) {
  tensors_.emplace_back();
  tensors_.back().name = keep(name);
}

void HeaderBuilder::add_dim(std::uint64_t dim) {
  // For headers of little but shapes: reserve the maximum, as each size has two bytes of JSON.
  // Doubling would hold the old and the new array at once.
  if (dims_.size() == dims_.capacity()) dims_.reserve(json_nbytes_ / 2 + 1);
  dims_.push_back(dim);
}

void HeaderBuilder::set_offsets(std::uint64_t begin, std::uint64_t end) {
  Tensor& tensor = tensors_.back();
  tensor.begin = begin;
  tensor.end = end;
  if (tensors_.size() > 1 && tensors_[tensors_.size() - 2].end > begin) in_order_ = false;
}

std::string_view HeaderBuilder::tensor_name() const noexcept { return view(tensors_.back().name); }

void HeaderBuilder::add_metadata_key(std::string_view key) {
  if (metadata_.size() == metadata_.capacity() && metadata_.size() > 4096) {
    metadata_.reserve(json_nbytes_ / 6 +
                      1);  // as in add_dim: a pair has at least six bytes of JSON
  }
  metadata_.emplace_back();
  metadata_.back().key = keep(key);
}

void HeaderBuilder::add_metadata_value(std::string_view value) {
  metadata_.back().value = keep(value);
}

void HeaderBuilder::end_metadata() const {
  std::vector<std::uint32_t> order(metadata_.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto key = [&](std::uint32_t i) { return view(metadata_[i].key); };
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return key(a) < key(b); });
  const auto twice = std::adjacent_find(order.begin(), order.end(),
                                        [&](auto a, auto b) { return key(a) == key(b); });
  if (twice != order.end()) {
    fail(ErrorCode::kDuplicateName,
         "invalid JSON in header: metadata key `" + clipped(key(*twice)) + "` occurs twice",
         {.subject = std::string(key(*twice))});
  }
}

Header HeaderBuilder::finish(std::uint64_t data_nbytes) && {
  if (!in_order_) {
    std::stable_sort(tensors_.begin(), tensors_.end(), [](const Tensor& a, const Tensor& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
  }
  Header header;
  header.text_ = std::move(text_);
  header.dims_ = std::move(dims_);
  if (header.text_.capacity() / 2 > header.text_.size()) header.text_.shrink_to_fit();
  if (header.dims_.capacity() / 2 > header.dims_.size()) header.dims_.shrink_to_fit();

  const auto kept = [&](Text text) {
    return std::string_view(header.text_.data() + text.begin, text.size);
  };
  header.tensors_.reserve(tensors_.size());
  for (const Tensor& tensor : tensors_) {
    header.tensors_.push_back({.name = kept(tensor.name),
                               .shape = {header.dims_.data() + tensor.dims_begin, tensor.rank},
                               .begin = tensor.begin,
                               .end = tensor.end,
                               .dtype = tensor.dtype});
  }
  std::vector<Tensor>().swap(tensors_);
  header.metadata_.reserve(metadata_.size());
  for (const Item& item : metadata_) {
    header.metadata_.emplace_back(kept(item.key), kept(item.value));
  }
  header.has_metadata_ = has_metadata_;
  index_names(header);  // before validate(): a duplicate name is the clearer error
  validate(header, data_nbytes);
  return header;
}

void HeaderBuilder::validate(const Header& header, std::uint64_t data_nbytes) const {
  std::uint64_t position = 0;
  for (const TensorInfo& info : header.tensors_) {
    // The tensors are sorted by begin, so that one comparison finds gaps and overlaps.
    if (info.begin != position || info.end < info.begin) {
      fail_tensor(ErrorCode::kInvalidOffset, "invalid offset for tensor", info,
                  ": data_offsets are [" + std::to_string(info.begin) + ", " +
                      std::to_string(info.end) + "], expected to begin at " +
                      std::to_string(position) + ": a hole, an overlap or a reversed range");
    }
    const std::uint64_t nbytes = nbytes_of(info.name, info.dtype, info.shape);
    if (nbytes != info.nbytes()) {
      fail_tensor(ErrorCode::kInvalidTensorInfo, "invalid shape, data type, or offset for tensor",
                  info,
                  ": " + std::string(name(info.dtype)) + " " + shown(info.shape) + " takes " +
                      counted(nbytes, "byte") + ", data_offsets [" + std::to_string(info.begin) +
                      ", " + std::to_string(info.end) + "] give " + grouped(info.nbytes()));
    }
    position = info.end;
  }
  if (position != data_nbytes) {
    const std::uint64_t before = kLengthSize + json_nbytes_;
    const auto expected = checked_add(before, position);
    // The subject tells a file that is too short, which lacks a tensor, from one that is too long.
    const auto is_missing = [&](const TensorInfo& info) {
      return info.end > data_nbytes && !info.name.empty();
    };
    const auto missing = std::ranges::find_if(header.tensors_, is_missing);
    fail(
        ErrorCode::kIncompleteData,
        "incomplete metadata, file not fully covered: expects " +
            (expected ? grouped(*expected) : "over 2^64") + " bytes, has " +
            grouped(before + data_nbytes) +
            (position > data_nbytes ? ": truncated?"
                                    : ": something follows the last tensor, which `safetensors "
                                      "convert --lenient` leaves out"),
        {.subject = missing == header.tensors_.end() ? std::string() : std::string(missing->name)});
  }
}

void HeaderBuilder::index_names(Header& header) {
  const std::size_t count = header.tensors_.size();
  if (count >= kIndexMask) fail(ErrorCode::kOverflow, "too many tensors");
  // Open addressing with linear probing, at most three quarters full. The seed is secret, so that a
  // file cannot contain names chosen to collide.
  header.seed_ = secret_seed();
  header.slots_.assign(std::bit_ceil(count + count / 3 + 1), 0);
  const std::size_t mask = header.slots_.size() - 1;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view name = header.tensors_[i].name;
    const std::uint64_t hash = hash_name(name, header.seed_);
    std::size_t at = hash & mask;
    while (const std::uint32_t slot = header.slots_[at]) {
      if ((slot & ~kIndexMask) == tag_of(hash) &&
          header.tensors_[(slot & kIndexMask) - 1].name == name) {
        fail(ErrorCode::kDuplicateName,
             "invalid JSON in header: tensor `" + clipped(name) + "` occurs twice",
             {.subject = std::string(name)});
      }
      at = (at + 1) & mask;
    }
    header.slots_[at] = tag_of(hash) | static_cast<std::uint32_t>(i + 1);
  }
}

const TensorInfo* Header::find(std::string_view name) const noexcept {
  if (slots_.empty()) return nullptr;
  const std::size_t mask = slots_.size() - 1;
  const std::uint64_t hash = hash_name(name, seed_);
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    const std::uint32_t slot = slots_[at];
    if (slot == 0) return nullptr;
    if ((slot & ~kIndexMask) != tag_of(hash)) continue;
    const TensorInfo& info = tensors_[(slot & kIndexMask) - 1];
    if (info.name == name) return &info;
  }
}

}  // namespace safetensors
