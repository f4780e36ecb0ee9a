// Helpers for tests of GGUF files.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "gguf/header.hpp"
#include "safetensors/weights/error.hpp"
#include "support.hpp"

namespace test {

namespace weights = safetensors::weights;
using weights::MetaType;

inline fs::path weights_data() { return fs::path(SAFETENSORS_SOURCE_DIR) / "weights/tests/data"; }

/// Returns "ok", or the name of the code of the WeightsError that `work` threw.
template <typename Work>
std::string code_of(const Work& work) {
  try {
    work();
    return "ok";
  } catch (const weights::WeightsError& error) {
    return std::string(weights::name(error.code()));
  }
}

/// Returns a number as little-endian bytes.
template <typename T>
std::string le(T value) {
  std::string bytes(sizeof(T), '\0');
  if constexpr (std::is_integral_v<T>) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes[i] = static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xFF);
    }
  } else {
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    Bits bits{};
    std::memcpy(&bits, &value, sizeof bits);
    bytes = le(bits);
  }
  return bytes;
}

inline std::string gguf_string(std::string_view text) {
  return le<std::uint64_t>(text.size()) + std::string(text);
}

inline std::string gguf_array(std::uint32_t type, std::uint64_t count, std::string_view elements) {
  return le(type) + le(count) + std::string(elements);
}

/// Builds a GGUF file without any checks.
struct GgufFileText {
  std::uint32_t version = 3;
  std::optional<std::uint64_t> claimed_tensors;
  std::optional<std::uint64_t> claimed_items;
  std::size_t alignment = 32;  ///< of the padding; not written as metadata
  std::string data;

  void item(std::string_view key, MetaType type, std::string_view value) {
    items_ += gguf_string(key) + le(static_cast<std::uint32_t>(type)) + std::string(value);
    ++item_count_;
  }
  /// Dimensions in the order of the file: fastest first.
  void tensor(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
              std::uint64_t offset) {
    tensors_ += gguf_string(name) + le(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims) tensors_ += le(dim);
    tensors_ += le(type) + le(offset);
    ++tensor_count_;
  }
  [[nodiscard]] std::string header() const {
    return "GGUF" + le(version) + le(claimed_tensors.value_or(tensor_count_)) +
           le(claimed_items.value_or(item_count_)) + items_ + tensors_;
  }
  [[nodiscard]] std::string text() const {
    std::string file = header();
    if (tensor_count_ != 0 || !data.empty()) {
      file.append((alignment - file.size() % alignment) % alignment, '\0');
    }
    return file + data;
  }

 private:
  std::string items_;
  std::string tensors_;
  std::uint64_t item_count_ = 0;
  std::uint64_t tensor_count_ = 0;
};

/// Returns a file of one tensor `t` of 8 F32 values, and what `change` adds before it.
template <typename Change>
std::string gguf_with(const Change& change) {
  GgufFileText file;
  change(file);
  file.tensor("t", {8}, 0, 0);
  file.data = std::string(32, '\x01');
  return file.text();
}

/// Parses a whole file. Views point into `file`.
inline weights::GgufHeader parse_gguf(std::span<const std::byte> file,
                                      const weights::Limits& limits = {}, bool allow_gaps = false) {
  auto parsed = weights::parse_gguf_header({.available = file,
                                            .file_nbytes = file.size(),
                                            .path = "file.gguf",
                                            .limits = limits,
                                            .allow_gaps = allow_gaps,
                                            .owner = nullptr});
  if (std::holds_alternative<weights::NeedsMore>(parsed)) {
    throw std::logic_error("more than the whole file is needed");
  }
  return std::get<weights::GgufHeader>(std::move(parsed));
}

/// Returns the outcome of parsing a file: "ok" or the name of a code.
inline std::string gguf_outcome(std::string_view file, const weights::Limits& limits = {},
                                bool allow_gaps = false) {
  const ExactBytes exact(file);
  return code_of([&] { (void)parse_gguf(exact.span(), limits, allow_gaps); });
}

/// Returns the error of parsing a file.
inline weights::WeightsError gguf_error(std::string_view file, const weights::Limits& limits = {}) {
  const ExactBytes exact(file);
  try {
    (void)parse_gguf(exact.span(), limits);
  } catch (const weights::WeightsError& error) {
    return error;
  }
  throw std::logic_error("no Error was thrown");
}

/// Returns how two headers differ; empty if they are equal.
inline std::string gguf_difference(const weights::GgufHeader& a, const weights::GgufHeader& b) {
  if (a.version != b.version || a.alignment != b.alignment || a.data_begin != b.data_begin) {
    return "version, alignment or data";
  }
  if (!std::ranges::equal(a.metadata.items(), b.metadata.items(),
                          [](const auto& one, const auto& two) {
                            return one.key == two.key && one.value == two.value;
                          })) {
    return "metadata";
  }
  const bool same = std::ranges::equal(a.tensors, b.tensors, [](const auto& one, const auto& two) {
    return one.name == two.name && std::ranges::equal(one.shape(), two.shape()) &&
           one.type == two.type && one.offset == two.offset && one.nbytes == two.nbytes;
  });
  return same ? "" : "tensors";
}

}  // namespace test
