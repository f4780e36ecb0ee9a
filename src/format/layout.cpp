#include "safetensors/layout.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>

#include "base/checked.hpp"
#include "base/json_special.hpp"
#include "base/little_endian.hpp"
#include "base/text.hpp"
#include "base/utf8.hpp"
#include "format/dtype_text.hpp"
#include "format/tensor_nbytes.hpp"
#include "safetensors/error.hpp"
#include "safetensors/header.hpp"

namespace safetensors {
namespace {

/// Appends a JSON string with the same escapes as upstream's writer, so that files are identical.
void append_json(std::string& json, std::string_view text) {
  json += '"';
  const char* const end = text.data() + text.size();
  for (const char* p = text.data();; ++p) {
    const char* const special = find_json_special(p, end);
    json.append(p, static_cast<std::size_t>(special - p));
    p = special;
    if (p == end) break;
    json += '\\';
    switch (const char c = *p) {
      case '"':
        json += '"';
        break;
      case '\\':
        json += '\\';
        break;
      case '\b':
        json += 'b';
        break;
      case '\t':
        json += 't';
        break;
      case '\n':
        json += 'n';
        break;
      case '\f':
        json += 'f';
        break;
      case '\r':
        json += 'r';
        break;
      default: {
        constexpr char kHex[] = "0123456789abcdef";
        json += "u00";
        json += kHex[static_cast<unsigned char>(c) >> 4];
        json += kHex[static_cast<unsigned char>(c) & 15];
      }
    }
  }
  json += '"';
}

void append_metadata(std::string& json, const Metadata& metadata) {
  json += "\"__metadata__\":{";
  bool first = true;
  for (const auto& [key, value] : metadata) {
    if (!first) json += ',';
    first = false;
    if (find_invalid_utf8(key) || find_invalid_utf8(value)) {
      fail(ErrorCode::kInvalidArgument, "metadata is not valid UTF-8");
    }
    append_json(json, key);
    json += ':';
    append_json(json, value);
  }
  json += '}';
}

}  // namespace

std::uint64_t nbytes_of(std::string_view name, Dtype dtype, std::span<const std::uint64_t> shape) {
  const auto nbits = checked_product(shape, bit_size(dtype));
  if (!nbits) {
    fail(ErrorCode::kOverflow,
         "overflow computing buffer size from shape and/or element type: tensor `" + clipped(name) +
             "` has shape " + shown(shape),
         {.subject = std::string(name)});
  }
  if (*nbits % 8 != 0) {
    fail(ErrorCode::kMisalignedSlice,
         "The slice is slicing for subbytes dtypes, and the slice does not end up at a byte "
         "boundary, this is invalid. Tensor `" +
             clipped(name) + "`: " + dtype_text(dtype) + " " + shown(shape) + " takes " +
             counted(*nbits, "bit"),
         {.subject = std::string(name)});
  }
  return *nbits / 8;
}

std::uint64_t nbytes_of(const TensorSpec& tensor) {
  const auto context = [&] { return ErrorContext{.subject = std::string(tensor.name)}; };
  if (tensor.name == kMetadataKey) {
    fail(ErrorCode::kInvalidArgument,
         "a tensor cannot be named `__metadata__`: the header keeps that key for metadata",
         context());
  }
  if (find_invalid_utf8(tensor.name)) {
    fail(ErrorCode::kInvalidArgument, "the name of a tensor is not valid UTF-8", context());
  }
  if (bit_size(tensor.dtype) == 0) {
    fail(ErrorCode::kUnsupportedDtype,
         "tensor `" + clipped(tensor.name) + "`: " + no_dtype_text(tensor.dtype), context());
  }
  return nbytes_of(tensor.name, tensor.dtype, tensor.shape);
}

namespace {

/// Checks a tensor and its bytes, and returns their number.
std::uint64_t nbytes_of(const TensorData& tensor) {
  const std::uint64_t nbytes = nbytes_of(TensorSpec{tensor.name, tensor.shape, tensor.dtype});
  const auto context = [&] { return ErrorContext{.subject = std::string(tensor.name)}; };
  if (nbytes != tensor.bytes.size()) {
    fail(ErrorCode::kInvalidTensorInfo,
         "invalid shape, data type, or offset for tensor `" + clipped(tensor.name) + "`: " +
             std::string(name(tensor.dtype)) + " " + shown(std::span(tensor.shape)) + " takes " +
             counted(nbytes, "byte") + ", " + grouped(tensor.bytes.size()) + " are given",
         context());
  }
  if (tensor.bytes.data() == nullptr && !tensor.bytes.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "tensor `" + clipped(tensor.name) + "` has bytes at a null pointer", context());
  }
  return nbytes;
}

template <typename Tensor>
std::vector<std::size_t> file_order(std::span<const Tensor> tensors,
                                    std::span<const TensorPlace> places, Layout layout) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (layout == Layout::kGiven) return order;
  const auto before = [&](std::size_t a, std::size_t b) {
    if (layout == Layout::kBlocks) {
      const bool a_is_odd = places[a].nbytes % kBlockSize != 0;
      const bool b_is_odd = places[b].nbytes % kBlockSize != 0;
      if (a_is_odd != b_is_odd) return b_is_odd;
    }
    const Tensor& x = tensors[a];
    const Tensor& y = tensors[b];
    return x.dtype != y.dtype ? x.dtype < y.dtype : x.name < y.name;
  };
  if (!std::is_sorted(order.begin(), order.end(), before)) {
    std::sort(order.begin(), order.end(), before);
  }
  return order;
}

template <typename Tensor>
void check_names_differ(std::span<const Tensor> tensors, std::span<const std::size_t> order,
                        Layout layout) {
  // The canonical order is by type, then name, so equal names of one type are adjacent. Equal names
  // of different types need another sort, as do all in other orders.
  const auto same = [&](std::size_t a, std::size_t b) {
    return tensors[a].name == tensors[b].name;
  };
  const auto refuse = [&](std::size_t i) {
    fail(ErrorCode::kDuplicateName, "tensor `" + clipped(tensors[i].name) + "` occurs twice",
         {.subject = std::string(tensors[i].name)});
  };
  const auto twice = std::adjacent_find(order.begin(), order.end(), same);
  if (twice != order.end()) refuse(*twice);
  if (order.empty()) return;
  const bool has_one_type = tensors[order.front()].dtype == tensors[order.back()].dtype;
  if (layout == Layout::kCanonical && has_one_type) return;
  std::vector<std::size_t> by_name(order.begin(), order.end());
  std::sort(by_name.begin(), by_name.end(),
            [&](std::size_t a, std::size_t b) { return tensors[a].name < tensors[b].name; });
  const auto across = std::adjacent_find(by_name.begin(), by_name.end(), same);
  if (across != by_name.end()) refuse(*across);
}

template <typename Tensor>
void append_tensor(std::string& json, const Tensor& tensor, std::uint64_t begin,
                   std::uint64_t end) {
  append_json(json, tensor.name);
  json += ":{\"dtype\":\"";
  json += name(tensor.dtype);
  json += "\",\"shape\":[";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (i != 0) json += ',';
    append_number(json, tensor.shape[i]);
  }
  json += "],\"data_offsets\":[";
  append_number(json, begin);
  json += ',';
  append_number(json, end);
  json += "]}";
}

/// Returns the spaces after a header of `size` bytes, its length included: see plan_file().
std::uint64_t padding_of(std::uint64_t size, Layout layout, std::uint64_t data_begin) {
  if (size <= data_begin) return data_begin - size;
  const std::uint64_t multiple =
      layout == Layout::kBlocks || data_begin != 0 ? kBlockSize : kLengthSize;
  return (multiple - (size - data_begin) % multiple) % multiple;
}

template <typename Tensor>
LayoutPlan plan_tensors(std::span<const Tensor> tensors, const Metadata* metadata, Layout layout,
                        std::uint64_t data_begin) {
  LayoutPlan plan;
  plan.places.reserve(tensors.size());
  for (const Tensor& tensor : tensors) plan.places.push_back({0, nbytes_of(tensor)});
  plan.order = file_order(tensors, plan.places, layout);
  check_names_differ(tensors, plan.order, layout);

  // The prologue: | length, filled in last | {"__metadata__":...,"name":...} | spaces |
  std::string& json = plan.prologue;
  json.reserve(tensors.size() * 120 + 64);
  json.assign(kLengthSize, '\0');
  json += '{';
  if (metadata != nullptr) append_metadata(json, *metadata);
  std::uint64_t position = 0;
  for (const std::size_t i : plan.order) {
    if (json.size() > kLengthSize + 1) json += ',';
    TensorPlace& place = plan.places[i];
    const auto end = checked_add(position, place.nbytes);
    if (!end) fail(ErrorCode::kOverflow, "the tensors together exceed 2^64 bytes");
    append_tensor(json, tensors[i], position, *end);
    place.begin = position;  // in the data section; the header's size is not known yet
    position = *end;
  }
  json += '}';
  const std::uint64_t padding = padding_of(json.size(), layout, data_begin);
  const std::uint64_t length = json.size() - kLengthSize + padding;
  if (padding > kMaxHeaderSize || length > kMaxHeaderSize) {
    fail(ErrorCode::kHeaderTooLarge, "header too large: " + grouped(length) + " bytes, at most " +
                                         grouped(kMaxHeaderSize) +
                                         ": fewer tensors or shorter names");
  }
  json.append(static_cast<std::size_t>(padding), ' ');
  store_little(reinterpret_cast<std::byte*>(json.data()), length);
  const auto total = checked_add(json.size(), position);
  if (!total) fail(ErrorCode::kOverflow, "the file exceeds 2^64 bytes");
  plan.total_nbytes = *total;
  for (TensorPlace& place : plan.places) place.begin += json.size();
  return plan;
}

}  // namespace

TensorData detail::checked(TensorData tensor) {
  (void)nbytes_of(tensor);
  return tensor;
}

LayoutPlan plan_layout(std::span<const TensorData> tensors, const Metadata* metadata) {
  return plan_tensors(tensors, metadata, Layout::kCanonical, 0);
}

LayoutPlan plan_file(std::span<const TensorSpec> tensors, const Metadata* metadata, Layout layout,
                     std::uint64_t data_begin) {
  return plan_tensors(tensors, metadata, layout, data_begin);
}

LayoutPlan plan_data(std::string prologue, std::uint64_t data_nbytes) {
  const std::uint64_t begin = prologue.size();
  return {.prologue = std::move(prologue),
          .order = {0},
          .places = {{begin, data_nbytes}},
          .total_nbytes = begin + data_nbytes};
}

}  // namespace safetensors
