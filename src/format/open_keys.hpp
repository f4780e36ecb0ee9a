// The keys of nested JSON objects, to find duplicates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace safetensors::format {

/// The keys of unfinished objects. Objects nest, so their keys form a stack:
///
///     keys_     a  b | c  d  e | f        of three nested objects
///     frames_   0      2         5        where each object's keys begin
class OpenKeys {
 public:
  /// Begins an object within the innermost one.
  void open() { frames_.push_back({keys_.size(), text_.size()}); }
  /// Adds a key of the innermost object.
  void add(std::string_view key);
  /// Ends the innermost object. Returns a key that occurs twice in it, if any, for an error text.
  [[nodiscard]] std::optional<std::string> close();

 private:
  struct Key {
    std::uint32_t begin;
    std::uint32_t size;
  };
  struct Frame {
    std::size_t keys;
    std::size_t text;
  };
  std::vector<char> text_;
  std::vector<Key> keys_;
  std::vector<Frame> frames_;
};

}  // namespace safetensors::format
