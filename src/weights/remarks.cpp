#include "weights/remarks.hpp"

#include <string_view>

#include "base/text.hpp"
#include "weights/names.hpp"

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

/// Returns whether this is a type of values in 8 bits. E8M0 is not: it is a type of scales.
bool is_f8(std::uint32_t type) noexcept {
  return type == code::kF8E4M3 || type == code::kF8E5M2 || type == code::kF8E4M3FNUZ ||
         type == code::kF8E5M2FNUZ;
}

}  // namespace

void Remarks::note(const WeightInfo& info, const std::string& remark) {
  if (!remark.empty()) {
    ++packs_[{kind_of(info.name), remark}];
  } else if (info.storage == Storage::mlx_pack) {
    unknown_ += info.quant ? 0 : 1;
  } else {
    bare_f8_ += is_f8(info.code) && info.is_decoded ? 1 : 0;
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
  if (bare_f8_ != 0) {
    const bool one = bare_f8_ == 1;
    warnings.push_back(grouped(bare_f8_) + (one ? " tensor of F8 has" : " tensors of F8 have") +
                       " no scales beside " + (one ? "it: it is" : "them: they are") +
                       " decoded as plain numbers");
  }
  if (unknown_ != 0) {
    warnings.push_back(grouped(unknown_) +
                       " packed tensors have no parameters: no configuration states them");
  }
}

}  // namespace safetensors::weights
