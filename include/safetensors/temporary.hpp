// Keeps functions whose results are views from taking what is gone after the statement.
#pragma once

#include <ranges>
#include <type_traits>

namespace safetensors {

/// An argument, as `T&&` deduces it, that is a container or string without a name. A view of it
/// would outlive it, so functions that return views are deleted for it: give it a name first.
template <typename T>
concept Temporary =
    std::ranges::range<T> && !std::is_lvalue_reference_v<T> && !std::ranges::borrowed_range<T>;

}  // namespace safetensors
