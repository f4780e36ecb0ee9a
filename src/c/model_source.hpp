// Models whose files the caller opens.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c/options.hpp"
#include "c/source.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/model_files.hpp"
#include "safetensors/safetensors.h"

namespace safetensors::c {

/// A folder of the caller, which is released with it. It does not trust what `open` returns.
class CallerFolder : public std::enable_shared_from_this<CallerFolder> {
 public:
  explicit CallerFolder(Owned<safetensors_model_source> source) noexcept
      : source_(std::move(source)) {}

  /// Finds the model. `label` is what errors call the folder. Throws: what find_model_among() and
  /// open() throw; Error kInvalidArgument for a name that is no text.
  [[nodiscard]] FoundModel find_model(const std::filesystem::path& label,
                                      const ModelChoice& choice) const;
  /// Opens a file, which errors call `label`. The folder lives at least as long.
  /// Throws: Error with the code of the callback; kInvalidArgument for a wrong source; Stopped.
  [[nodiscard]] std::shared_ptr<const ByteSource> open(const std::string& name,
                                                       const std::filesystem::path& label) const;

 private:
  Owned<safetensors_model_source> source_;
};

/// Takes a folder. Throws: Error kInvalidArgument, and then has not taken it; std::bad_alloc.
[[nodiscard]] std::shared_ptr<const CallerFolder> folder_of(const safetensors_model_source* source);

}  // namespace safetensors::c
