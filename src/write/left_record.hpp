// What a recovery reads in the records that a killed process has left: the switch of a save, the
// journal of a change in place.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace safetensors {

/// Throws Error kInvalidArgument: a recovery would have to believe this file.
[[noreturn]] void refuse_to_follow(const std::filesystem::path& path, const std::string& reason);

/// Returns the bytes of a file name in which a JSON string has halves of surrogate pairs for those
/// that are not UTF-8 (PEP 383); nothing if it has another half.
[[nodiscard]] std::optional<std::string> file_name_of(std::string_view text);

}  // namespace safetensors
