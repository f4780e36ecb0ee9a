#include "safetensors/layout.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "base/utf8.hpp"
#include "safetensors/error.hpp"
#include "safetensors/header.hpp"

namespace safetensors {
namespace {

/// Appends a JSON string with the same escapes as upstream's writer, so that files are identical.
void append_json(std::string& json, std::string_view text) {
  json += '"';
  std::size_t plain = 0;  // start of the text that needs no escape
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20) continue;
    json.append(text, plain, i - plain);
    plain = i + 1;
    json += '\\';
    switch (c) {
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
  json.append(text, plain, text.size() - plain);
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

void check(const TensorData& tensor) {
  const auto named = [&] { return " `" + clipped(tensor.name) + "`"; };
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
         "tensor" + named() + ": no dtype has the value " +
             std::to_string(static_cast<unsigned>(tensor.dtype)),
         context());
  }
  const auto nbits = checked_product(tensor.shape, bit_size(tensor.dtype));
  if (!nbits) {
    fail(ErrorCode::kOverflow,
         "overflow computing buffer size from shape and/or element type: tensor" + named() +
             " has shape " + shown(tensor.shape),
         context());
  }
  if (*nbits % 8 != 0) {
    fail(ErrorCode::kMisalignedSlice,
         "The slice is slicing for subbytes dtypes, and the slice does not end up at a byte "
         "boundary, this is invalid. Tensor" +
             named() + ": " + std::string(name(tensor.dtype)) + " " + shown(tensor.shape) +
             " takes " + counted(*nbits, "bit"),
         context());
  }
  if (*nbits / 8 != tensor.bytes.size()) {
    fail(ErrorCode::kInvalidTensorInfo,
         "invalid shape, data type, or offset for tensor" + named() + ": " +
             std::string(name(tensor.dtype)) + " " + shown(tensor.shape) + " takes " +
             counted(*nbits / 8, "byte") + ", " + grouped(tensor.bytes.size()) + " are given",
         context());
  }
  if (tensor.bytes.data() == nullptr && !tensor.bytes.empty()) {
    fail(ErrorCode::kInvalidArgument, "tensor" + named() + " has bytes at a null pointer",
         context());
  }
}

std::vector<std::size_t> file_order(std::span<const TensorData> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto before = [&](std::size_t a, std::size_t b) {
    const TensorData& x = tensors[a];
    const TensorData& y = tensors[b];
    return x.dtype != y.dtype ? x.dtype < y.dtype : x.name < y.name;
  };
  if (!std::is_sorted(order.begin(), order.end(), before)) {
    std::sort(order.begin(), order.end(), before);
  }
  return order;
}

void check_names_differ(std::span<const TensorData> tensors, std::span<const std::size_t> order) {
  // `order` is sorted by type, then name, so equal names of one type are adjacent. Equal names of
  // different types need another sort.
  const auto same = [&](std::size_t a, std::size_t b) {
    return tensors[a].name == tensors[b].name;
  };
  const auto refuse = [&](std::size_t i) {
    fail(ErrorCode::kDuplicateName, "tensor `" + clipped(tensors[i].name) + "` occurs twice",
         {.subject = std::string(tensors[i].name)});
  };
  const auto twice = std::adjacent_find(order.begin(), order.end(), same);
  if (twice != order.end()) refuse(*twice);
  if (order.empty() || tensors[order.front()].dtype == tensors[order.back()].dtype) return;
  std::vector<std::size_t> by_name(order.begin(), order.end());
  std::sort(by_name.begin(), by_name.end(),
            [&](std::size_t a, std::size_t b) { return tensors[a].name < tensors[b].name; });
  const auto across = std::adjacent_find(by_name.begin(), by_name.end(), same);
  if (across != by_name.end()) refuse(*across);
}

void append_tensor(std::string& json, const TensorData& tensor, std::uint64_t begin,
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

}  // namespace

LayoutPlan plan_layout(std::span<const TensorData> tensors, const Metadata* metadata) {
  for (const TensorData& tensor : tensors) check(tensor);
  LayoutPlan plan;
  plan.order = file_order(tensors);
  check_names_differ(tensors, plan.order);

  // The prologue: | length, filled in last | {"__metadata__":...,"name":...} | spaces to 8 bytes |
  std::string& json = plan.prologue;
  json.reserve(tensors.size() * 120 + 64);
  json.assign(kLengthSize, '\0');
  json += '{';
  if (metadata != nullptr) append_metadata(json, *metadata);
  std::uint64_t position = 0;
  for (const std::size_t i : plan.order) {
    if (json.size() > kLengthSize + 1) json += ',';
    const auto end = checked_add(position, tensors[i].bytes.size());
    if (!end) fail(ErrorCode::kOverflow, "the tensors together exceed 2^64 bytes");
    append_tensor(json, tensors[i], position, *end);
    position = *end;
  }
  json += '}';
  json.append((kLengthSize - json.size() % kLengthSize) % kLengthSize, ' ');

  const std::uint64_t length = json.size() - kLengthSize;
  if (length > kMaxHeaderSize) {
    fail(ErrorCode::kHeaderTooLarge, "header too large: " + grouped(length) + " bytes, at most " +
                                         grouped(kMaxHeaderSize) +
                                         ": fewer tensors or shorter names");
  }
  for (std::size_t i = 0; i < kLengthSize; ++i) {
    json[i] = static_cast<char>(length >> (8 * i) & 0xFF);
  }
  const auto total = checked_add(json.size(), position);
  if (!total) fail(ErrorCode::kOverflow, "the file exceeds 2^64 bytes");
  plan.total_nbytes = *total;
  return plan;
}

}  // namespace safetensors
