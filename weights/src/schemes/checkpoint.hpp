// The tensors of a model while schemes look for theirs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/name_index.hpp"
#include "names/remarks.hpp"
#include "schemes/quant_config.hpp"
#include "tensors/source_tensors.hpp"
#include "tensors/stored_weight.hpp"

namespace safetensors::weights {

class SchemeWeight;

/// A weight that a scheme found, and its name as a plain tensor, by which it gets its canonical
/// name: "model.layers.0.mlp.up_proj.weight".
struct Claim {
  std::string name;
  std::unique_ptr<StoredWeight> weight;
};

/// All tensors and the configuration of a model, and what the schemes found.
class Checkpoint {
 public:
  /// Lets every scheme look at the tensors. Modules with parts that no scheme claimed are refused.
  ///
  /// Throws: quant_mismatch, duplicate and unsupported for tensors that contradict each other or
  /// the configuration.
  /// Lifetime: both arguments outlive this.
  Checkpoint(const SourceTensors& tensors, const QuantConfig& quant);

  [[nodiscard]] const QuantConfig& quant() const noexcept { return quant_; }
  /// Returns all tensors, sorted by name.
  [[nodiscard]] std::span<const SourceTensor> tensors() const noexcept { return tensors_.all(); }
  /// Returns the tensor `module` + `ending`, or nullptr. If the module has no name, the first point
  /// of the ending is left out: "weight".
  [[nodiscard]] const SourceTensor* find(std::string_view module, std::string_view ending) const;
  /// Returns the metadata of the tensor's file by key.
  using Metadata = std::map<std::string_view, std::string_view>;
  [[nodiscard]] const Metadata& metadata_of(const SourceTensor& tensor);

  // For schemes:

  /// Adds a weight. Its parts no longer appear as tensors of their own. `by` is the tensor at which
  /// the scheme looked; one tensor may give several weights, which may share parts.
  ///
  /// Throws: duplicate if another tensor's weight has one of the parts.
  void claim(const SourceTensor& by, std::string name, std::unique_ptr<StoredWeight> weight);
  /// Leaves the tensor as raw codes that are not decoded. `text` is the error when they are to be.
  void refuse(const SourceTensor& tensor, std::string text);
  /// Adds a warning, one line for each kind of module. `name` is a tensor of the module.
  void remark(std::string_view name, const std::string& text) { remarks_.note(name, text); }

  /// Adds a warning as it is.
  void warn(std::string text) { remarks_.warn(std::move(text)); }

  // For markers:

  /// Takes a tensor that describes others. It no longer appears as a tensor of its own.
  void hide(const SourceTensor& tensor) {
    owners_[index_of(tensor)] = static_cast<std::uint32_t>(index_of(tensor));
  }
  /// Keeps the schemes that go by names from the tensors of a module. The view must stay valid.
  void settle(std::string_view module) { settled_.insert(module); }
  /// Refuses a weight with a warning, and settles its module.
  void refuse_module(const SourceTensor& weight, const std::string& text);

  // For the backend:

  [[nodiscard]] std::vector<Claim>& claims() noexcept { return claims_; }
  [[nodiscard]] bool is_claimed(const SourceTensor& tensor) const noexcept {
    return owners_[index_of(tensor)] != kNobody;
  }
  /// Returns whether the tensor is a scale of activations or caches, which is no weight: by its
  /// name and shape, and because there are quantised weights beside it or a configuration.
  [[nodiscard]] bool is_extra(const SourceTensor& tensor) const;
  /// Returns whether the parts of the tensor's module do not let it be decoded.
  [[nodiscard]] bool refuses(const SourceTensor& tensor) const {
    return refused_.contains(&tensor);
  }
  /// Returns why the tensor is not decoded, or nullptr if it is. The text lives in refusals().
  [[nodiscard]] const std::string* refusal_of(const SourceTensor& tensor);
  /// Returns the texts, whose addresses stay the same when the set is moved.
  [[nodiscard]] std::set<std::string>& refusals() noexcept { return refusals_; }
  [[nodiscard]] Remarks& remarks() noexcept { return remarks_; }

 private:
  static constexpr std::uint32_t kNobody = 0xFFFF'FFFF;

  using Owners = std::set<std::uint32_t>;
  /// Refuses modules with a tensor that no scheme claimed, although values may depend on it.
  /// Returns the owners of claims that are to be dropped.
  [[nodiscard]] Owners check_parts();
  /// Refuses matrices beside activations that are divided by scales, and adds to the owners.
  void check_activations(Owners& dropped);
  void drop(const Owners& owners);
  void note_quantised();
  /// Returns whether caches may have a scale for each head, as compressed-tensors' may.
  [[nodiscard]] bool has_heads() const noexcept { return quant_.method == "compressed-tensors"; }
  [[nodiscard]] std::string_view name_of(std::size_t tensor) const noexcept {
    return tensors_.all()[tensor].info->name;
  }

  [[nodiscard]] std::size_t index_of(const SourceTensor& tensor) const noexcept {
    return static_cast<std::size_t>(&tensor - tensors_.all().data());
  }

  const SourceTensors& tensors_;
  const QuantConfig& quant_;
  NameIndex names_;                    ///< schemes look for the other parts of each weight
  std::vector<std::uint32_t> owners_;  ///< by tensor: the index of the one that claimed it
  std::vector<Claim> claims_;
  std::set<std::string> refusals_;
  std::map<const SourceTensor*, const std::string*> refused_;
  std::set<std::string_view> settled_;
  std::map<std::string_view, std::uint64_t> quantised_;  ///< modules, with stack_of() their codes
  std::map<const SafeOpen*, Metadata> metadata_;         ///< of files for which a scheme asked
  Remarks remarks_;
};

}  // namespace safetensors::weights
