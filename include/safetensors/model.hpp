// A model of one or several files, read as if it were one.
//
//   const Model model = safetensors::open_model("folder");
//   for (std::size_t i = 0; i < model.size(); ++i) use(model.name(i));
//   const TensorView weight = model.get_tensor("model.embed_tokens.weight");
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "safetensors/device.hpp"
#include "safetensors/export.hpp"
#include "safetensors/model_files.hpp"
#include "safetensors/safe_open.hpp"

namespace safetensors {

/// A tensor of a model, and the number of its file.
///
/// Lifetime: valid while the Model or a copy of it lives.
struct ModelTensor {
  const TensorInfo* info = nullptr;
  std::size_t file = 0;
};

/// A tensor of a model, or a part of one, to be read, and the caller's memory that receives it.
struct ModelRead {
  ModelTensor tensor{};
  std::span<std::byte> to{};
  /// The parts to read, and where each goes from `to` on. Empty: the whole tensor.
  ///
  /// Requires: no two runs go to the same bytes.
  std::span<const ByteRuns> runs{};
};

/// A model open for reading. Cheap to copy: copies share the files.
///
/// With an index, each file is opened when something of it is first requested, so files of which
/// nothing is requested may be absent. An index decides which tensors are the model: others that a
/// file has are left out. Without an index, all files are opened at once, and have all their
/// tensors in the model.
///
/// A function that takes a ModelTensor takes one of this model.
///
/// Safe for untrusted input, as SafeOpen and ShardIndex are.
/// Thread safety: all members may be called from many threads at once. A forked process may use its
///   parent's Model.
/// Lifetime: TensorViews outlive the Model. Names, entries and files are valid while the Model or a
///   copy of it lives. A moved-from Model may only be destroyed or assigned to.
class SAFETENSORS_API Model {
 public:
  /// Opens a file of a model by its path. May be called by several threads at once.
  using Opener = std::function<SafeOpen(const std::filesystem::path& path)>;

  /// Makes a model of files that were found; open_model() does so.
  ///
  /// Throws: Error kDuplicateName, naming both files, if two of them have the same tensor and there
  ///   is no index; kInvalidArgument if `files.files` are not those of the index; what `opener`
  ///   throws.
  Model(FoundModel files, Opener opener);

  /// Returns the files of the model, their folder and their index.
  [[nodiscard]] const FoundModel& found() const& noexcept;
  const FoundModel& found() const&& = delete;
  [[nodiscard]] std::size_t file_count() const noexcept { return found().files.size(); }
  /// Returns a file, which has the metadata, and opens it if it is not open.
  ///
  /// Requires: file < file_count(), as in each function that takes the number of a file.
  /// Throws: what SafeOpen throws. If an index leads to the file, Error kIncompleteModel, which
  ///   names the index and a tensor, for a file that is absent, and kTensorNotFound if the file
  ///   lacks a tensor that the index puts into it; kFileChanged if the index was replaced since.
  [[nodiscard]] const SafeOpen& file(std::size_t file) const&;
  const SafeOpen& file(std::size_t file) const&& = delete;
  /// Opens all files, with several threads if there are many. Throws: what file() throws.
  void open_all() const;

  /// Returns the number of tensors. They are numbered in the order of their names, by bytes.
  [[nodiscard]] std::size_t size() const noexcept;
  /// Returns the name of a tensor. Opens nothing.
  ///
  /// Requires: tensor < size(), as in each function that takes the number of a tensor.
  [[nodiscard]] std::string_view name(std::size_t tensor) const& noexcept;
  std::string_view name(std::size_t tensor) const&& = delete;
  /// Returns the number of the file that has a tensor. Opens nothing.
  [[nodiscard]] std::size_t file_of(std::size_t tensor) const noexcept;
  /// Returns the number of the tensor with this name; nothing if there is none. Opens nothing.
  [[nodiscard]] std::optional<std::size_t> number_of(std::string_view name) const noexcept;
  [[nodiscard]] bool contains(std::string_view name) const noexcept {
    return number_of(name).has_value();
  }

  /// Returns a tensor by its number, and opens its file. Throws: what file() throws.
  [[nodiscard]] ModelTensor tensor(std::size_t tensor) const&;
  ModelTensor tensor(std::size_t tensor) const&& = delete;
  /// Returns the tensor with this name; nothing if there is none. Throws: what file() throws.
  [[nodiscard]] std::optional<ModelTensor> find(std::string_view name) const&;
  std::optional<ModelTensor> find(std::string_view name) const&& = delete;
  /// Returns the tensor with this name. Throws: Error kTensorNotFound; what file() throws.
  [[nodiscard]] ModelTensor at(std::string_view name) const&;
  ModelTensor at(std::string_view name) const&& = delete;

  /// Returns a tensor, as SafeOpen::get_tensor() does. Throws: what at() and it throw.
  [[nodiscard]] TensorView get_tensor(std::string_view name) const;
  [[nodiscard]] TensorView get_tensor(const ModelTensor& tensor,
                                      const Interrupt& interrupt = {}) const;
  /// Returns a part of a tensor, as SafeOpen::get_slice() does. Throws: what at() and it throw.
  [[nodiscard]] TensorView get_slice(std::string_view name, Indices indices) const;
  [[nodiscard]] TensorView get_slice(const ModelTensor& tensor, Indices indices,
                                     const Interrupt& interrupt = {}) const;

  /// Copies tensors and parts of any files to the caller's memory: file by file, and whole tensors
  /// of one file together, with several threads. For sources whose reads are requests, a Load of
  /// sources() asks for more at once.
  ///
  /// Throws: what SafeOpen::read() throws. Then the contents of the memory are unspecified.
  void read(std::span<const ModelRead> reads, const Interrupt& interrupt = {}) const;

  /// Returns the sources of a Load, one for each file. Opens all files. Throws: what file() throws.
  [[nodiscard]] std::vector<std::shared_ptr<const ByteSource>> sources() const;
  /// Returns a whole tensor for a Load of sources(). `to` is as in LoadTensor.
  [[nodiscard]] LoadTensor to_load(const ModelTensor& tensor, std::uint64_t to) const&;
  LoadTensor to_load(const ModelTensor& tensor, std::uint64_t to) const&& = delete;

 private:
  class State;
  std::shared_ptr<const State> state_;
};

/// How open_model() finds and opens files.
struct ModelOptions {
  ModelChoice choice{};    ///< which model of a folder
  OpenOptions open{};      ///< for each file, unless there is an opener
  Model::Opener opener{};  ///< opens each file. Empty: SafeOpen with the options above does
  /// Whether all files are opened, as by Model::open_all(). This takes less time than a call of it:
  /// files are opened while the rest of a large index is read. So the opener may be called for
  /// files of an index that is refused in the end, and again for a file that it failed to open.
  bool opens_all = false;
};

/// Opens the model that a path leads to: a folder, an index or a file, see find_model_files().
///
/// Throws: what find_model_files() and Model's constructor throw, and open_all() if
///   `options.opens_all` is set.
[[nodiscard]] SAFETENSORS_API Model open_model(const std::filesystem::path& path,
                                               const ModelOptions& options = {});
/// Opens the model of a folder whose files the program opens itself.
///
/// Throws: what find_model_files() and Model's constructor throw.
/// Lifetime: the model and its sources() share what `source.open` holds.
[[nodiscard]] SAFETENSORS_API Model open_model(const ModelSource& source,
                                               const ModelChoice& choice = {});

}  // namespace safetensors
