#include "c/model_source.hpp"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/display_path.hpp"
#include "c/guard.hpp"
#include "c/options.hpp"
#include "c/path.hpp"
#include "c/source.hpp"

namespace safetensors::c {
namespace {

/// A folder of the caller, which is released with it.
class CallerFolder : public std::enable_shared_from_this<CallerFolder> {
 public:
  explicit CallerFolder(Owned<safetensors_model_source> source) noexcept
      : source_(std::move(source)) {}

  /// Opens a file, which errors call `label`. The folder lives at least as long.
  /// Throws: Error with the code of the callback; kInvalidArgument for a wrong source; Stopped.
  [[nodiscard]] std::shared_ptr<const ByteSource> open(const std::string& name,
                                                       const std::filesystem::path& label) const {
    // A program of a later version may have more members than this library.
    alignas(safetensors_source) std::byte room[kMaxStructSize]{};
    auto* const given = new (room) safetensors_source{};
    safetensors_error error{};
    if (source_.open(source_.context, name.c_str(), name.size(), given, &error) != 0) {
      fail_called(error, label, "the file was not opened");
    }
    auto source = source_of(given);
    source->set_owner(shared_from_this());
    source->set_label(label);
    return source;
  }

  /// Throws: Error kInvalidArgument for a name that is no text.
  [[nodiscard]] std::vector<std::string> names() const {
    check_pointer(source_.names, source_.name_count, "names");
    std::vector<std::string> names;
    for (std::size_t i = 0; i < source_.name_count; ++i) {
      const std::string_view name = text_of(source_.names[i].data, source_.names[i].size, "a name");
      if (name.find('\0') != std::string_view::npos) {
        fail(ErrorCode::kInvalidArgument, "a name contains a NUL");
      }
      names.emplace_back(name);
    }
    return names;
  }

 private:
  Owned<safetensors_model_source> source_;
};

}  // namespace

ModelSource model_source_of(const safetensors_model_source* source, const char* label,
                            std::size_t label_size) {
  check_pointer(source, 1, "source");
  const safetensors_model_source copy = options_of(source, "source");
  if (copy.open == nullptr) fail(ErrorCode::kInvalidArgument, "open is NULL");
  const auto folder = std::make_shared<const CallerFolder>(Owned(copy));
  ModelSource result{.folder = label_of(label, label_size, "label"), .names = folder->names()};
  result.open = [folder, path = result.folder](const std::string& name) {
    return folder->open(name, path / path_of_name(name));
  };
  return result;
}

}  // namespace safetensors::c
