#include "provider/formats.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "common/fail.hpp"
#include "gguf/backend.hpp"
#include "gguf/set.hpp"
#include "hf/backend.hpp"
#include "safetensors/file_kind.hpp"

namespace safetensors::weights {
namespace {

namespace fs = std::filesystem;

enum class Kind : std::uint8_t { safetensors, gguf };

Kind kind_of_file(const Files& files, const fs::path& path) {
  std::array<std::byte, 64> start{};
  const FileBytes file = with_error_context(path, {}, [&] { return files.open(path, false); });
  const auto size =
      static_cast<std::size_t>(std::min<std::uint64_t>(start.size(), file.source->size()));
  const std::span<std::byte> read = std::span(start).first(size);
  with_error_context(path, {}, [&] { file.source->read_at(0, read); });
  const std::string_view text(reinterpret_cast<const char*>(read.data()), size);
  if (text.starts_with("GGUF")) return Kind::gguf;
  if (size > 8 && text[8] == '{') return Kind::safetensors;
  // The file is damaged. The backend that its name suggests reports what is wrong with it.
  if (path.extension() == ".gguf") return Kind::gguf;
  if (path.extension() == ".safetensors") return Kind::safetensors;
  fail(Errc::bad_magic, path, {},
       "neither GGUF nor safetensors begins like this" + foreign_file_hint(read));
}

/// Returns whether the model of a folder that also has GGUF files is one of safetensors files: not
/// if all that there is of them is a LoRA adapter.
bool has_safetensors(const Files& files, const fs::path& folder, const ModelChoice& choice) {
  constexpr std::string_view kAdapter = "adapter_model";
  try {
    return files.find_model(folder, choice).name != kAdapter;
  } catch (const safetensors::Error& error) {
    return error.code() != ErrorCode::kNoModel;  // opening them raises it again
  }
}

/// Returns the kind of a model. A folder may have several that are GGUF.
Kind find_kind(const Files& files, const fs::path& path, const ModelChoice& choice) {
  if (!files.is_folder(path)) {
    return path.extension() == ".json" ? Kind::safetensors : kind_of_file(files, path);
  }
  const bool is_chosen = !choice.name.empty() || !choice.variant.empty();
  const bool is_gguf =
      !is_chosen && !gguf_models(files, path).empty() && !has_safetensors(files, path, choice);
  return is_gguf ? Kind::gguf : Kind::safetensors;
}

}  // namespace

std::unique_ptr<Backend> open_backend(const Files& files, const fs::path& path,
                                      const ModelOptions& options) {
  if (find_kind(files, path, options.choice) == Kind::safetensors) {
    return open_safetensors(files, path, options);
  }
  const auto in_folder = files.is_folder(path) ? find_gguf(files, path) : std::nullopt;
  return open_gguf(files, in_folder.value_or(path), options);
}

Format format_of(const fs::path& path) {
  const ModelChoice choice;
  const bool is_gguf = find_kind(Files(), path, choice) == Kind::gguf;
  return is_gguf ? Format::gguf : safetensors_format(path, choice);
}

}  // namespace safetensors::weights
