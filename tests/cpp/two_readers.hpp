// The two readers of headers, to compare them.
#pragma once

#include <string>
#include <string_view>

#include "format/header_reader.hpp"
#include "format/plain_reader.hpp"
#include "support.hpp"

namespace test {

inline std::string shown(const safetensors::Header& header) {
  std::string text;
  for (const auto& info : header.tensors()) {
    text += std::string(info.name) + ' ' + std::string(name(info.dtype)) + " [";
    for (const std::uint64_t dim : info.shape) text += std::to_string(dim) + ' ';
    text += "] " + std::to_string(info.begin) + ' ' + std::to_string(info.end) + '\n';
  }
  text += header.has_metadata() ? "metadata\n" : "";
  for (const auto& [key, value] : header.metadata()) {
    text += std::string(key) + '=' + std::string(value) + '\n';
  }
  return text;
}

/// The result of one reader: the header, or the error.
template <typename Read>
std::string outcome_of(std::string_view json, std::uint64_t data_nbytes, const Read& read) {
  try {
    safetensors::HeaderBuilder builder(json.size());
    if (!read(json, builder)) return "not plain";
    return shown(std::move(builder).finish(data_nbytes));
  } catch (const safetensors::Error& error) {
    return error.what();
  }
}

/// Returns the result of the fast reader.
inline std::string plain(std::string_view json, std::uint64_t data_nbytes) {
  const test::ExactBytes exact(json);
  const std::string_view text(reinterpret_cast<const char*>(exact.span().data()), json.size());
  return outcome_of(text, data_nbytes, safetensors::format::read_plain_header);
}

/// Returns the result of the complete reader.
inline std::string by_the_reader(std::string_view json, std::uint64_t data_nbytes) {
  return outcome_of(json, data_nbytes,
                    [](std::string_view text, safetensors::HeaderBuilder& builder) {
                      safetensors::read_header(text, builder);
                      return true;
                    });
}

}  // namespace test
