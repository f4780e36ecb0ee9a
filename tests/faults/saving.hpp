// The files that these tests save.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "posix_support.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/save.hpp"
#include "safetensors/writer.hpp"
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
  /// Writes the tensors one by one, out of order, in parts, and as copies of another file's.
  void write(bool fsync = false) const { write_to(safetensors::make_file_sink(path_), fsync); }
  /// Does the same to any sink.
  void write_to(std::unique_ptr<safetensors::ByteSink> sink, bool fsync = false) const {
    safetensors::FileWriter writer(std::move(sink), blocks_, {.fsync = fsync});
    const std::span<const std::byte> larger = tensors_[1].bytes;
    writer.write_at(1, 150'000, larger.subspan(150'000));
    writer.write(0, tensors_[0].bytes);
    writer.write_at(1, 0, larger.first(150'000));
    const safetensors::TensorCopy copies[] = {{3, blocks_.places[3].begin},
                                              {2, blocks_.places[2].begin}};
    writer.copy(*source_.source(), copies);
    writer.commit();
  }
  /// Writes more tensors than the room for the header suffices for.
  void write_added(bool fsync = false) const {
    safetensors::FileWriter writer(safetensors::make_file_sink(path_), nullptr,
                                   {.fsync = fsync, .header_room = 1});
    for (int i = 0; i < 100; ++i) {
      const std::vector<std::uint64_t> shape = {10};
      const std::string name = "tensor " + std::to_string(i);
      const safetensors::TensorSpec spec = {name, shape};
      writer.write(writer.add(spec), tensors_[2].bytes);
    }
    writer.commit();
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
    return text == old_                                     ? "old"
           : text == new_ || text == written_ || is_added() ? "new"
                                                            : "damaged";
  }

 private:
  /// Returns whether the target is a valid file as write_added() writes it.
  [[nodiscard]] bool is_added() const {
    try {
      const safetensors::SafeOpen file(real_);
      return file.header().size() == 100 &&
             std::ranges::all_of(file.header().tensors(), [&](const auto& info) {
               const auto view = file.get_tensor(info.name);
               return std::ranges::equal(view.bytes(), tensors_[2].bytes);
             });
    } catch (const safetensors::Error&) {
      return false;
    }
  }
  [[nodiscard]] std::vector<safetensors::TensorSpec> specs() const {
    std::vector<safetensors::TensorSpec> specs;
    for (const test::OwnTensor& each : tensors_) {
      specs.push_back({each.name, each.shape, each.dtype});
    }
    return specs;
  }

  /// Returns the bytes of the layout of blocks.
  [[nodiscard]] std::string in_blocks() const {
    std::string text = blocks_.prologue;
    for (const std::size_t i : blocks_.order) text += test::text_of(tensors_[i].bytes);
    return text;
  }
  [[nodiscard]] safetensors::SafeOpen open_source() const {
    test::write_text(sources_ / "source", written_);
    return safetensors::SafeOpen(sources_ / "source", {.backend = safetensors::Backend::kPread});
  }

  test::TempDir folder_;
  test::TempDir links_;
  test::fs::path real_;
  test::fs::path path_;
  std::vector<test::OwnTensor> tensors_ = {
      test::tensor_of("large", safetensors::Dtype::kU8, {300'000}, 1),
      test::tensor_of("larger", safetensors::Dtype::kU8, {400'000}, 2),
      test::tensor_of("small", safetensors::Dtype::kU8, {10}, 3),
      test::tensor_of("whole blocks", safetensors::Dtype::kU8, {131'072}, 4)};
  std::string old_ = test::text_of(test::pattern(500'000, 4));
  std::string new_ = test::text_of(safetensors::serialize(test::views_of(tensors_)).bytes());
  safetensors::LayoutPlan blocks_ =
      safetensors::plan_file(specs(), nullptr, safetensors::Layout::kBlocks);
  // The same in the layout of blocks, to which and from which tensors are copied.
  std::string written_ = in_blocks();
  test::TempDir sources_;
  safetensors::SafeOpen source_ = open_source();
};

}  // namespace faults
