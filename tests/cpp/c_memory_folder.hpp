// A folder in memory for tests of functions that take a safetensors_model_source.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "c_support.hpp"

namespace test {

/// Files by their names, whose callbacks also fail or lie. Counts what is released.
struct MemoryFolder {
  struct Source {
    MemoryFolder* memory;
    std::string name;
    std::string bytes;
    std::atomic<int> releases = 0;
  };

  std::map<std::string, std::string, std::less<>> files{};
  bool lists_index_only = false;
  std::string fails_on{};  ///< the file that `open` fails on, and with what
  safetensors_error failure{};
  void (*change)(safetensors_source*) = nullptr;  ///< what becomes of each source

  std::mutex mutex{};
  std::deque<Source> opened{};
  std::vector<safetensors_text> texts{};
  std::atomic<int> releases = 0;
  std::atomic<bool> is_good = true;

  static std::int64_t read(void* context, std::uint64_t offset, void* to, std::size_t nbytes,
                           safetensors_error* /*error*/) {
    const std::string& bytes = static_cast<Source*>(context)->bytes;
    if (offset > bytes.size()) return 0;
    const std::size_t count = std::min<std::size_t>(nbytes, bytes.size() - offset);
    std::memcpy(to, bytes.data() + offset, count);
    return static_cast<std::int64_t>(count);
  }

  static std::int32_t open(void* context, const char* name, std::size_t name_size,
                           safetensors_source* source, safetensors_error* error) {
    auto& self = *static_cast<MemoryFolder*>(context);
    const std::lock_guard lock(self.mutex);
    const auto* const room = reinterpret_cast<const unsigned char*>(source);
    const bool is_zero = std::all_of(room, room + 4096, [](unsigned char c) { return c == 0; });
    if (!is_zero || name[name_size] != '\0' || error->code != 0) self.is_good = false;
    if (name == self.fails_on) {
      *error = self.failure;
      return 1;
    }
    const auto found = self.files.find(std::string_view(name, name_size));
    if (found == self.files.end()) {
      error->os_error = ENOENT;
      return -1;
    }
    Source& given = self.opened.emplace_back(&self, found->first, found->second);
    *source = sized<safetensors_source>();
    source->context = &given;
    source->nbytes = given.bytes.size();
    source->read = read;
    source->release = [](void* released) {
      auto& each = *static_cast<Source*>(released);
      if (each.memory->releases != 0) each.memory->is_good = false;
      ++each.releases;
    };
    if (self.change != nullptr) self.change(source);
    return 0;
  }

  /// Returns what the functions take. The names are valid until the next call.
  [[nodiscard]] safetensors_model_source source() {
    texts.clear();
    for (const auto& [name, bytes] : files) {
      if (!lists_index_only || name.ends_with(".index.json")) {
        texts.push_back({name.data(), name.size()});
      }
    }
    auto result = sized<safetensors_model_source>();
    result.context = this;
    result.names = texts.data();
    result.name_count = texts.size();
    result.open = open;
    result.release = [](void* context) { ++static_cast<MemoryFolder*>(context)->releases; };
    return result;
  }

  /// Returns the names of the files that were opened.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    all.reserve(opened.size());
    for (const Source& each : opened) all.push_back(each.name);
    return all;
  }
  /// Checks that all was released, once.
  void check_released() const {
    CHECK(releases == 1);
    for (const Source& each : opened) CHECK(each.releases == 1);
    CHECK(is_good);
  }
};

}  // namespace test
