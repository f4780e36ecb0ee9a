// Sources of the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>

#include "c/options.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/safetensors.h"

namespace safetensors::c {

/// A source of the caller, which is released with it. It does not trust what `read` returns.
class CallerSource final : public ByteSource {
 public:
  explicit CallerSource(Owned<safetensors_source> source) noexcept : source_(std::move(source)) {}

  /// Sets the name that errors have, before the first read.
  void set_label(std::filesystem::path label) { label_ = std::move(label); }
  /// Sets what has to outlive the source, before it is shared.
  void set_owner(std::shared_ptr<const void> owner) { owner_ = std::move(owner); }
  [[nodiscard]] std::uint64_t size() const noexcept override { return source_.nbytes; }
  /// Throws: Error with the code of the callback; kFileChanged if it returns 0 bytes;
  ///   kInvalidArgument if it returns more than it was asked for; Stopped.
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override;
  [[nodiscard]] ReadCost cost() const noexcept override;
  [[nodiscard]] unsigned concurrency() const noexcept override { return source_.concurrency; }

 private:
  std::shared_ptr<const void> owner_;  // released after the source
  Owned<safetensors_source> source_;
  std::filesystem::path label_;
};

/// Throws what a callback has failed with: `error`, or Error kIo with the text `otherwise` if it
/// says nothing.
[[noreturn]] void fail_called(const safetensors_error& error, const std::filesystem::path& label,
                              const char* otherwise);

/// Takes a source. Throws: Error kInvalidArgument, and then has not taken it; std::bad_alloc.
[[nodiscard]] std::shared_ptr<CallerSource> source_of(const safetensors_source* source);

}  // namespace safetensors::c
