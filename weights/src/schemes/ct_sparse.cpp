// Sparse formats of compressed-tensors, which are refused by name.
#include <string>

#include "base/text.hpp"
#include "schemes/claims.hpp"

namespace safetensors::weights {
namespace {

void refuse_parts(Checkpoint& checkpoint, std::string_view module, std::string_view scheme,
                  std::initializer_list<std::string_view> endings) {
  const std::string text = "scheme \"" + std::string(scheme) + "\" (" + clipped(module) + ")";
  for (const std::string_view ending : endings) {
    const SourceTensor* part = checkpoint.find(module, ending);
    if (part != nullptr) checkpoint.refuse(*part, text);
  }
}

}  // namespace

void refuse_ct_bitmask(const SourceTensor& bitmask, Checkpoint& checkpoint) {
  const std::string_view module = module_of(bitmask);
  if (checkpoint.find(module, ".compressed") == nullptr) return;
  // Rows of 2:4 sparsity have equal lengths, and need no offsets.
  const bool has_rows = checkpoint.find(module, ".row_offsets") != nullptr;
  refuse_parts(checkpoint, module, has_rows ? "sparse-bitmask" : "sparse-24-bitmask",
               {".bitmask", ".compressed", ".row_offsets", ".shape"});
}

void refuse_ct_marlin(const SourceTensor& meta, Checkpoint& checkpoint) {
  const std::string_view module = module_of(meta);
  if (checkpoint.find(module, ".scale_packed") == nullptr) return;
  refuse_parts(checkpoint, module, "marlin-24",
               {".meta", ".weight_packed", ".scale_packed", ".weight_shape"});
}

}  // namespace safetensors::weights
