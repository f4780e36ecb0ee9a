#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string_view>
#include <type_traits>
#include <utility>

#include "io/temporary_name.hpp"
#include "safetensors/error.hpp"

namespace safetensors::detail {
namespace {

namespace fs = std::filesystem;

using Text = OwnName::Text;
using Unit = Text::value_type;

#if defined(_WIN32)
constexpr std::string_view kSeparators = "/\\:";

/// Returns whether Windows takes the name for something else than a file of this name: a device
/// such as NUL or COM1, or a name without its last dots and spaces.
bool is_special(const Text& text) {
  if (text.back() == L'.' || text.back() == L' ') return true;
  Text stem = text.substr(0, text.find(L'.'));
  for (Unit& c : stem) c = static_cast<Unit>(c >= L'a' && c <= L'z' ? c - L'a' + L'A' : c);
  if (stem == L"CON" || stem == L"PRN" || stem == L"AUX" || stem == L"NUL") return true;
  const Text kind = stem.substr(0, 3);
  return stem.size() == 4 && (kind == L"COM" || kind == L"LPT");
}
#else
constexpr std::string_view kSeparators = "/";

bool is_special(const Text&) { return false; }
#endif

// Some file systems that encrypt names take 143 bytes: ".", the stem, ".", the random digits, ".",
// and the kind, of which "journal" is the longest.
constexpr std::size_t kMaxName = 143;
constexpr std::size_t kDigits = 16;
constexpr std::size_t kMaxStem = kMaxName - kDigits - std::string_view("...journal").size();

/// Returns the FNV-1a hash of a name (RFC 9923), which is the same in all processes.
std::uint64_t fnv1a(const Text& text) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const Unit unit : text) {
    hash = (hash ^ static_cast<std::make_unsigned_t<Unit>>(unit)) * 0x100000001B3U;
  }
  return hash;
}

/// Returns whether a text is the digits of random() or stem_of().
bool is_digits(OwnName::TextView text) noexcept {
  return text.size() == kDigits && std::ranges::all_of(text, [](Unit c) {
           return (c >= Unit{'0'} && c <= Unit{'9'}) || (c >= Unit{'a'} && c <= Unit{'f'});
         });
}

bool is_name(const Text& text) {
  if (text.empty() || text.find(Unit{}) != Text::npos) return false;
  for (const char separator : kSeparators) {
    if (text.find(static_cast<Unit>(separator)) != Text::npos) return false;
  }
  const bool is_dots = text.find_first_not_of(static_cast<Unit>('.')) == Text::npos;
  return !(is_dots && text.size() <= 2) && !is_special(text);
}

}  // namespace

OwnName::OwnName(TextView text) : text_(text) {
  if (is_name(text_)) return;
  fail(ErrorCode::kInvalidArgument, "this is not the name of a file in a folder", {.path = text_});
}

OwnName::Text OwnName::stem_of(const Text& name) {
  if (name.size() <= kMaxStem) return name;
  std::size_t end = kMaxStem - kDigits - 1;
  if constexpr (sizeof(Unit) == 1) {  // UTF-8; in other encodings this only cuts more
    while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0U) == 0x80U) --end;
  }
  const std::uint64_t hash = fnv1a(name);
  std::array<char, kDigits + 1> digest{};
  (void)std::snprintf(digest.data(), digest.size(), "%08x%08x", static_cast<unsigned>(hash >> 32),
                      static_cast<unsigned>(hash));
  fs::path stem = name.substr(0, end);
  stem += "~";
  stem += digest.data();
  return stem.native();
}

bool OwnName::is_shortened(TextView stem) noexcept {
  if (stem.size() < 1 + kDigits) return false;
  const TextView end = stem.substr(stem.size() - 1 - kDigits);
  return end.front() == Unit{'~'} && is_digits(end.substr(1));
}

// The name is "." STEM "." RANDOM "." KIND.
OwnName::TextView OwnName::stem_in(TextView text, std::string_view kind) noexcept {
  const std::size_t rest = kDigits + kind.size() + 2;
  if (text.size() < 2 + rest || text.front() != Unit{'.'}) return {};
  const TextView end = text.substr(text.size() - rest);
  const TextView random = end.substr(1, kDigits);
  const TextView last = end.substr(1 + kDigits);
  if (end.front() != Unit{'.'} || !is_digits(random) || last.front() != Unit{'.'}) return {};
  if (!std::ranges::equal(last.substr(1), kind)) return {};
  return text.substr(1, text.size() - 1 - rest);
}

OwnName OwnName::random(const Text& named, std::string_view kind) {
  std::random_device device;
  std::array<char, kDigits + 1> digits{};
  (void)std::snprintf(digits.data(), digits.size(), "%08x%08x", device(), device());
  fs::path name = ".";
  name += stem_of(named);
  name += ".";
  name += digits.data();
  name += ".";
  name += kind;
  return OwnName(name.native());
}

OwnPlace place_of_own(const std::filesystem::path& path) {
  return {Folder::open(path.parent_path()), OwnName(path.filename().native())};
}

}  // namespace safetensors::detail

namespace safetensors::io {

std::filesystem::path folder_of(const std::filesystem::path& target) {
  return target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");
}

detail::OwnName temporary_name(const detail::OwnName& target) {
  return detail::OwnName::random(target.text(), kTemporaryKind);
}

}  // namespace safetensors::io
