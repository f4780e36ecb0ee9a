// What a ModelWriter has in its private folder. For this project's own bindings: it may change at
// any time.
#pragma once

#if !defined(_WIN32)

#include <cstddef>
#include <optional>

#include "safetensors/detail/folder.hpp"
#include "safetensors/export.hpp"
#include "safetensors/model_writer.hpp"

namespace safetensors::detail {

class SAFETENSORS_API ModelParts {
 public:
  /// Returns the private folder, and its name in the folder of the model. Valid while the writer
  /// lives.
  [[nodiscard]] static const OwnPlace& folder(const ModelWriter& model);
  /// Returns where the file of a shard is, or will be made: see ModelWriter::make_shard().
  [[nodiscard]] static OwnPlace shard(const ModelWriter& model, std::size_t number);
  /// Returns the file of the old model whose mode, owner and access list the shards take over.
  [[nodiscard]] static std::optional<OwnPlace> rights(const ModelWriter& model);
};

}  // namespace safetensors::detail

#endif
