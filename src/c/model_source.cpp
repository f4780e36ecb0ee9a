#include "c/model_source.hpp"

#include <cstddef>
#include <new>
#include <string_view>

#include "base/display_path.hpp"
#include "c/guard.hpp"

namespace safetensors::c {

FoundModel CallerFolder::find_model(const std::filesystem::path& label,
                                    const ModelChoice& choice) const {
  check_pointer(source_.names, source_.name_count, "names");
  std::vector<std::string> names;
  for (std::size_t i = 0; i < source_.name_count; ++i) {
    const std::string_view name = text_of(source_.names[i].data, source_.names[i].size, "a name");
    if (name.find('\0') != std::string_view::npos) {
      fail(ErrorCode::kInvalidArgument, "a name contains a NUL");
    }
    names.emplace_back(name);
  }
  return find_model_among(
      std::move(names), label,
      [&](const std::string& index) {
        const std::filesystem::path path = label / path_of_name(index);
        return ShardIndex::read(*open(index, path), path);
      },
      choice);
}

std::shared_ptr<const ByteSource> CallerFolder::open(const std::string& name,
                                                     const std::filesystem::path& label) const {
  // A program of a later version may have more members than this library.
  alignas(safetensors_source) std::byte room[kMaxStructSize]{};
  auto* const given = new (room) safetensors_source{};
  safetensors_error error{};
  if (source_.open(source_.context, name.c_str(), name.size(), given, &error) != 0) {
    fail_called(error, label, "the file was not opened");
  }
  try {
    auto source = source_of(given);
    source->set_owner(shared_from_this());
    source->set_label(label);
    return source;
  } catch (const Error& wrong) {
    throw wrong.with_context({}, label);
  }
}

std::shared_ptr<const CallerFolder> folder_of(const safetensors_model_source* source) {
  check_pointer(source, 1, "source");
  const safetensors_model_source copy = options_of(source, "source");
  if (copy.open == nullptr) fail(ErrorCode::kInvalidArgument, "open is NULL");
  return std::make_shared<const CallerFolder>(Owned(copy));
}

}  // namespace safetensors::c
