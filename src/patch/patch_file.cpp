#include "safetensors/patch_file.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/json_document.hpp"
#include "base/text.hpp"
#include "patch/patch_error.hpp"
#include "safetensors/detail/patch_entries.hpp"
#include "safetensors/error.hpp"

namespace safetensors {

namespace {

using detail::kMaxLabelSize;
using detail::kRecordPrefix;
using detail::kValuesPrefix;

constexpr std::string_view kPatchFormat = "safetensors-patch";
constexpr std::string_view kPatchVersion = "1";

/// Handles the events of read_json_document() for an object of strings. error() is empty if it is
/// another value.
class TextsHandler : public JsonHandler {
 public:
  explicit TextsHandler(std::size_t json_nbytes) : json_nbytes_(json_nbytes) {}

  [[nodiscard]] Metadata take() && { return std::move(texts_); }

  bool value(JsonKind kind, std::string_view text) {
    if (depth_ == 0 || kind != JsonKind::kString || !check_text(text, kHalfPair)) return false;
    *value_ = text;
    return true;
  }
  bool key(std::string_view key) {
    // The nodes of a map may take many times the bytes of a short text.
    constexpr std::size_t kNode = 128;
    constexpr std::size_t kSpare = std::size_t{40} << 20;
    if (texts_.size() * kNode > 6 * json_nbytes_ + kSpare) {
      return stop("the JSON of " + counted(json_nbytes_, "byte") + " has too many values");
    }
    if (!check_text(key, kHalfPair)) return false;
    const auto [at, is_new] = texts_.emplace(key, "");
    value_ = &at->second;
    return is_new || stop("the JSON has the key '" + clipped(key) + "' twice in one object");
  }
  bool open(JsonKind kind) { return kind == JsonKind::kObject && ++depth_ == 1; }
  static bool close(JsonKind) { return true; }

 private:
  static constexpr const char* kHalfPair = "the JSON has half of a surrogate pair";

  std::size_t json_nbytes_;
  Metadata texts_;
  std::string* value_ = nullptr;
  int depth_ = 0;
};

/// Returns a value of metadata for an error.
std::string quoted(const std::optional<std::string_view>& value) {
  return value ? '"' + clipped(*value) + '"' : "null";
}

/// Reads what the metadata of a patch says. Throws: Error kInvalidPatch.
class PatchMetadata {
 public:
  explicit PatchMetadata(const SafeOpen& file) : file_(file) {
    if (find("format") != kPatchFormat) {
      refuse("not a patch: its metadata has no `format` of `" + std::string(kPatchFormat) + "`");
    }
    const auto version = find("patch_version");
    if (version != kPatchVersion) refuse("version " + quoted(version) + " of patches is unknown");
  }

  [[nodiscard]] Digest digest(const char* key) const {
    const auto text = find(key);
    try {
      return Digest::parse(text.value_or(""));
    } catch (const Error&) {
      refuse('`' + std::string(key) + "` is " + quoted(text) + ", which is not a digest");
    }
  }

  [[nodiscard]] std::optional<std::string_view> label(const char* key) const {
    const auto text = find(key);
    if (text && text->size() > kMaxLabelSize) {
      refuse('`' + std::string(key) + "` has more than " + std::to_string(kMaxLabelSize) +
             " bytes");
    }
    return text;
  }

  /// Returns the metadata of the target.
  [[nodiscard]] std::optional<Metadata> target() const {
    const auto text = find("metadata");
    if (!text) return std::nullopt;
    TextsHandler handler(text->size());
    if (!read_json_document(*text, {}, handler)) return std::move(handler).take();
    if (handler.error().empty()) refuse("`metadata` is not a JSON object of strings");
    patch::fail_file(ErrorCode::kInvalidPatch, file_.path(), "`metadata`: " + handler.error(),
                     "metadata");
  }

  [[noreturn]] void refuse(const std::string& what) const {
    patch::fail_file(ErrorCode::kInvalidPatch, file_.path(), what);
  }

 private:
  [[nodiscard]] std::optional<std::string_view> find(std::string_view key) const noexcept {
    return file_.header().find_metadata(key);
  }

  const SafeOpen& file_;
};

/// Returns the names of the tensors that the entries are about, sorted. They are valid while the
/// file lives. Throws: Error kInvalidPatch.
std::vector<std::string_view> names_of(const SafeOpen& file) {
  const std::vector<std::string_view> keys = file.keys();  // records, and then values
  const auto is_known = [](std::string_view key) {
    return key.starts_with(kRecordPrefix) || key.starts_with(kValuesPrefix);
  };
  if (const auto other = std::ranges::find_if_not(keys, is_known); other != keys.end()) {
    patch::fail_tensor(ErrorCode::kInvalidPatch, file.path(), *other,
                       "entry `" + clipped(*other) + "` is neither a record nor values");
  }
  const auto middle = std::ranges::find_if(
      keys, [](std::string_view key) { return key.starts_with(kValuesPrefix); });
  std::vector<std::string_view> names;
  names.reserve(static_cast<std::size_t>(middle - keys.begin()));
  for (auto key = keys.begin(); key != middle; ++key) {
    names.push_back(key->substr(kRecordPrefix.size()));
  }
  auto next = names.begin();
  for (auto key = middle; key != keys.end(); ++key) {
    const std::string_view name = key->substr(kValuesPrefix.size());
    while (next != names.end() && *next < name) ++next;
    if (next == names.end() || *next != name) {
      patch::fail_tensor(ErrorCode::kInvalidPatch, file.path(), name,
                         "it has values and no record");
    }
  }
  return names;
}

}  // namespace

struct PatchFile::State {
  explicit State(const SafeOpen& opened) : State(opened, PatchMetadata(opened)) {}

  SafeOpen file;
  Digest base;
  Digest target;
  std::optional<std::string_view> base_label;
  std::optional<std::string_view> target_label;
  std::optional<Metadata> metadata;
  std::vector<std::string_view> names;

 private:
  State(const SafeOpen& opened, const PatchMetadata& read)
      : file(opened), base(read.digest("base")), target(read.digest("target")) {
    if (base.algorithm() != target.algorithm()) {
      read.refuse("`base` and `target` are digests of two algorithms");
    }
    base_label = read.label("base_label");
    target_label = read.label("target_label");
    metadata = read.target();
    names = names_of(file);
  }
};

PatchFile::PatchFile(const SafeOpen& file) : state_(std::make_shared<const State>(file)) {}

const std::filesystem::path& PatchFile::path() const& noexcept { return state_->file.path(); }
const Digest& PatchFile::base() const& noexcept { return state_->base; }
const Digest& PatchFile::target() const& noexcept { return state_->target; }
DigestAlgorithm PatchFile::algorithm() const noexcept { return state_->base.algorithm(); }
std::optional<std::string_view> PatchFile::base_label() const& noexcept {
  return state_->base_label;
}
std::optional<std::string_view> PatchFile::target_label() const& noexcept {
  return state_->target_label;
}
const std::optional<Metadata>& PatchFile::metadata() const& noexcept { return state_->metadata; }
std::size_t PatchFile::size() const noexcept { return state_->names.size(); }
std::string_view PatchFile::name(std::size_t tensor) const& noexcept {
  return state_->names[tensor];
}
bool PatchFile::contains(std::string_view name) const noexcept {
  return std::ranges::binary_search(state_->names, name);
}

PatchChange PatchFile::change(std::string_view name, const Interrupt& interrupt) const {
  return {state_->file, name, algorithm(), interrupt};
}

void PatchFile::apply(std::string_view name, Dtype dtype, std::span<const std::uint64_t> shape,
                      std::span<std::byte> bytes, const PatchChecks& checks) const {
  const PatchChange found = change(name, checks.interrupt);
  const auto tensor = [&](std::span<const std::byte> of) {
    return TensorData{name, shape, of, dtype};
  };
  if (found.kind() == PatchKind::kBlocks) {
    if (found.check(tensor(bytes), checks) == PatchState::kApplied) {
      patch::fail_tensor(ErrorCode::kPatchApplied, path(), name, "it has this patch already");
    }
  } else if (const auto& own = found.dtype();
             own && (*own != dtype || !std::ranges::equal(found.shape(), shape))) {
    patch::fail_tensor(ErrorCode::kWrongBase, path(), name,
                       "the patch makes " + patch::described(*own, found.shape()) +
                           " of it, the memory is for " + patch::described(dtype, shape));
  }
  if (!checks.digests || found.kind() == PatchKind::kRemoved) return found.apply(bytes, checks);
  const Buffer made(bytes.size());
  const CopyPiece in{made.data(), bytes.data(), bytes.size()};
  const CopyPiece out{bytes.data(), made.data(), bytes.size()};
  copy_all({&in, 1}, checks.interrupt);
  found.apply(made.bytes(), checks);
  found.check_target(tensor(made.bytes()), checks);
  copy_all({&out, 1});  // an interrupt here would leave a half
}

PatchFile open_patch(const std::filesystem::path& path) {
  return PatchFile(SafeOpen(path, {.backend = Backend::kPread}));
}

}  // namespace safetensors
