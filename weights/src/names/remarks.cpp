#include "names/remarks.hpp"

#include <string_view>

#include "base/text.hpp"
#include "names/names.hpp"

namespace safetensors::weights {
namespace {

/// The names of modules are the file's, and so is their number.
constexpr std::size_t kMaxLines = 100;

/// Returns the kind of module: "attention.output" for "layers.7.attention.output.weight". The
/// numbers of experts become N.
std::string kind_of(std::string_view name) {
  std::string kind;
  for (const char c : split_layer(split_param(name).module).module) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit) kind += c;
    if (is_digit && !kind.ends_with('N')) kind += 'N';
  }
  return kind;
}

/// Returns the type of a tensor whose numbers may be codes that lack their scales, else nothing.
/// E8M0 is a type of scales; integers are codes only where a matrix is expected.
std::string_view bare_type(const WeightInfo& info) noexcept {
  switch (info.code) {
    case code::kF8E4M3:
    case code::kF8E5M2:
    case code::kF8E4M3FNUZ:
    case code::kF8E5M2FNUZ:
      return "F8";
    case code::kF4:
    case code::kI8:
    case code::kI32:
    case code::kU8:
    case code::kU32:
      return info.shape.size() >= 2 && info.source.ends_with(".weight")
                 ? std::string_view(info.type_name)
                 : std::string_view();
    default:
      return {};
  }
}

}  // namespace

void Remarks::note(const WeightInfo& info, const std::string& remark) {
  if (!remark.empty()) {
    ++packs_[{kind_of(info.name), remark}];
  } else if (info.storage == Storage::mlx_pack) {
    unknown_ += info.quant ? 0 : 1;
  } else {
    const std::string_view type = info.is_decoded ? bare_type(info) : std::string_view();
    if (!type.empty()) ++bare_[std::string(type)];
  }
}

void Remarks::note(std::string_view name, const std::string& remark) {
  ++schemes_[{kind_of(name), remark}];
}

void Remarks::say(std::vector<std::string>& warnings) const {
  const auto say_each = [&](const auto& remarks, std::string_view noun) {
    std::size_t left = kMaxLines;
    for (const auto& [about, count] : remarks) {
      if (left-- == 0) {
        warnings.push_back(grouped(remarks.size() - kMaxLines) + " more warnings like these");
        break;
      }
      const auto& [kind, remark] = about;
      std::string& text = warnings.emplace_back(clipped(kind));
      text += " (" + grouped(count) + " " + std::string(noun) + (count == 1 ? "): " : "s): ");
      text += remark;
    }
  };
  say_each(packs_, "pack");
  say_each(schemes_, "tensor");
  warnings.insert(warnings.end(), others_.begin(), others_.end());
  for (const auto& [type, count] : bare_) {
    const bool one = count == 1;
    warnings.push_back(
        grouped(count) + (one ? " tensor of " : " tensors of ") + type +
        (one ? " has no scales beside it: it is" : " have no scales beside them: they are") +
        " decoded as plain numbers");
  }
  if (unknown_ != 0) {
    warnings.push_back(grouped(unknown_) +
                       " packed tensors have no parameters: no configuration states them");
  }
}

}  // namespace safetensors::weights
