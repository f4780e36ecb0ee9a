// The file that these tests save.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "posix_support.hpp"
#include "safetensors/save.hpp"
#include "support.hpp"

namespace faults {

/// A directory with a target to save to, with or without an old file.
class Target {
 public:
  /// With `by_link` the target is saved through a symbolic link in another directory.
  explicit Target(bool has_old, bool by_link = false)
      : real_(folder_ / "model.safetensors"), path_(real_) {
    if (by_link) {
      path_ = links_ / "link";
      test::fs::create_symlink(real_, path_);
    }
    if (has_old) write_old();
  }

  [[nodiscard]] const test::fs::path& path() const { return path_; }
  [[nodiscard]] const test::fs::path& real() const { return real_; }
  [[nodiscard]] test::fs::path folder() const { return folder_.path(); }
  /// Returns all entries of the directory, and those beside the link.
  [[nodiscard]] std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : test::fs::directory_iterator(links_.path())) {
      if (entry.path() != path_ && entry.path().filename() != "beside")
        names.insert(entry.path().filename());
    }
    for (const auto& entry : test::fs::directory_iterator(folder_.path())) {
      names.insert(entry.path().filename());
    }
    return names;
  }
  void save(bool fsync = false) const {
    safetensors::save_file(test::views_of(tensors_), path_, nullptr,
                           {.fsync = fsync, .interrupt = {}});
  }
  void write_old() const { test::write_text(real_, old_); }
  /// Replaces the target as another program would: by renaming another file over it.
  void replace_with_old() const {
    const test::fs::path beside = links_ / "beside";
    test::write_text(beside, old_);
    test::fs::rename(beside, real_);
  }
  void remove() const { test::fs::remove(real_); }
  /// Returns "old", "new", "none", or "damaged".
  [[nodiscard]] std::string found() const {
    if (!test::fs::exists(real_)) return "none";
    const std::string text = test::read_text(real_);
    return text == old_ ? "old" : text == new_ ? "new" : "damaged";
  }

 private:
  test::TempDir folder_;
  test::TempDir links_;
  test::fs::path real_;
  test::fs::path path_;
  std::vector<test::OwnTensor> tensors_ = {
      test::tensor_of("large", safetensors::Dtype::kU8, {300'000}, 1),
      test::tensor_of("larger", safetensors::Dtype::kU8, {400'000}, 2),
      test::tensor_of("small", safetensors::Dtype::kU8, {10}, 3)};
  std::string old_ = test::text_of(test::pattern(500'000, 4));
  std::string new_ = test::text_of(safetensors::serialize(test::views_of(tensors_)).bytes());
};

}  // namespace faults
