// Comparing models with sums.
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/display_path.hpp"
#include "base/text.hpp"
#include "safetensors/model.hpp"
#include "safetensors/verify.hpp"

namespace safetensors {
namespace {

std::string text_of_lack(const char* what, std::string_view tensor) {
  return std::string("the ") + what + " has no tensor `" + clipped(tensor) +
         "`, of which the sums have a digest";
}

/// Returns the tensors of sums that a model lacks.
std::vector<TensorSums> absent_of(const Model& model, const Sums& sums) {
  std::vector<TensorSums> absent;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const TensorSums tensor = sums.tensor(i);
    if (!model.contains(tensor.name)) absent.push_back(tensor);
  }
  return absent;
}

/// Compares the files of a model, one after the other.
class ModelVerifier {
 public:
  ModelVerifier(const Model& model, const Sums& sums, const VerifyOptions& options)
      : model_(model), sums_(sums), by_file_(sums), options_(options), has_(sums.files().size()) {}

  std::vector<Damage> run() {
    for (std::size_t i = 0; i < model_.file_count(); ++i) {
      total_ += unchecked(model_.file(i).source())->size();
    }
    for (std::size_t i = 0; i < model_.file_count(); ++i) compare(model_.file(i));
    if (options_.is_whole) add_absent();
    if (options_.progress) options_.progress(total_, total_);
    return std::move(damage_);
  }

 private:
  void add(Damage damage) {
    if (options_.report) options_.report(damage);
    damage_.push_back(std::move(damage));
  }

  void add_sentence(std::string text, std::string_view tensor, std::filesystem::path file,
                    std::uint64_t nbytes) {
    add({.tensor = std::string(tensor),
         .file = std::move(file),
         .begin = 0,
         .end = nbytes,
         .expected = {},
         .found = std::move(text)});
  }

  void compare(const SafeOpen& file) {
    if (options_.interrupt) options_.interrupt();  // a small file ends before it is asked
    const std::uint64_t nbytes = unchecked(file.source())->size();
    if (const std::optional<std::size_t> entry = by_file_.find_entry(file.path())) {
      has_[*entry] = true;
      compare(file, nbytes);
    } else {
      add_sentence("the sums have no digests of the file", {}, file.path(), nbytes);
    }
    done_ += nbytes;
  }

  void compare(const SafeOpen& file, std::uint64_t nbytes) {
    FileDigests digests = by_file_.digests_of(file.path());
    digests.is_partial = true;  // compare_names() tells which tensors are on one side only
    std::function<void(std::uint64_t)> progress;
    if (options_.progress) {
      progress = [this](std::uint64_t done) { options_.progress(done_ + done, total_); };
    }
    bool is_other = false;
    for (Damage& range : find_damage(file, digests, options_.interrupt, progress)) {
      is_other = is_other || range.tensor.empty();
      add(std::move(range));
    }
    if (!is_other) compare_names(file, digests, nbytes);
  }

  void compare_names(const SafeOpen& file, const FileDigests& digests, std::uint64_t nbytes) {
    for (const TensorInfo& info : file.header().tensors()) {
      if (digests.tensors.contains(info.name)) continue;
      add_sentence("the sums have no digest of tensor `" + clipped(info.name) + "`", info.name,
                   file.path(), nbytes);
    }
    for (const auto& [name, wanted] : digests.tensors) {
      if (file.header().find(name) != nullptr) continue;
      add_sentence(text_of_lack("file", name), name, file.path(), nbytes);
      lacking_.insert(name);
    }
  }

  /// Adds the files and the tensors of the sums that the model lacks.
  void add_absent() {
    const auto add_of = [this](const FileSums& entry, std::string text, std::string_view tensor) {
      add_sentence(std::move(text), tensor, model_.found().folder / path_of_name(entry.path),
                   entry.nbytes);
    };
    for (std::size_t i = 0; i < has_.size(); ++i) {
      if (has_[i]) continue;
      const FileSums& entry = sums_.files()[i];
      add_of(entry,
             "the model has no file " + clipped(entry.path) + ", of which the sums have digests",
             {});
    }
    for (const TensorSums& tensor : absent_of(model_, sums_)) {
      if (!has_[tensor.file] || lacking_.contains(tensor.name)) continue;
      add_of(sums_.files()[tensor.file], text_of_lack("model", tensor.name), tensor.name);
    }
  }

  const Model& model_;
  const Sums& sums_;
  const SumsByFile by_file_;
  const VerifyOptions& options_;
  std::vector<bool> has_;  // of each entry of the sums, whether it is about a file of the model
  std::set<std::string, std::less<>> lacking_;  // tensors that their files lack
  std::vector<Damage> damage_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace

void refuse_absent(const Model& model, const Sums& sums) {
  const std::vector<TensorSums> absent = absent_of(model, sums);
  if (absent.empty()) return;
  fail(ErrorCode::kDamaged, text_of_lack("model", absent.front().name),
       {.path = model.found().folder, .subject = std::string(absent.front().name)});
}

std::vector<Damage> find_damage(const Model& model, const Sums& sums,
                                const VerifyOptions& options) {
  return ModelVerifier(model, sums, options).run();
}

}  // namespace safetensors
