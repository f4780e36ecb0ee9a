// Collects the contents of a header from a JSON reader, checks them, and makes the Header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "safetensors/header.hpp"

namespace safetensors {

/// A reader calls begin_tensor() for each tensor, then the other functions for its fields in any
/// order, and finish() at the end.
class HeaderBuilder {
 public:
  /// `json_nbytes`, the size of the header, bounds the memory that is reserved.
  explicit HeaderBuilder(std::size_t json_nbytes);

  void begin_tensor(std::string_view name);
  void set_dtype(Dtype dtype) { tensors_.back().dtype = dtype; }
  void begin_shape() { tensors_.back().dims_begin = dims_.size(); }
  void add_dim(std::uint64_t dim);
  void end_shape() { tensors_.back().rank = dims_.size() - tensors_.back().dims_begin; }
  void set_offsets(std::uint64_t begin, std::uint64_t end);
  /// Returns the name given to the last begin_tensor(). Valid until the next call.
  [[nodiscard]] std::string_view tensor_name() const noexcept;

  void begin_metadata() { has_metadata_ = true; }
  void add_metadata_key(std::string_view key);
  void add_metadata_value(std::string_view value);
  /// Throws: Error kDuplicateName if a key occurs twice.
  void end_metadata() const;

  /// Checks that the tensors tile `data_nbytes` bytes and that no name occurs twice.
  /// Throws: Error, see Header::parse.
  [[nodiscard]] Header finish(std::uint64_t data_nbytes) &&;

 private:
  // A position in text_. Not a view, as text_ moves while it grows.
  struct Text {
    std::uint32_t begin = 0;
    std::uint32_t size = 0;
  };
  struct Tensor {
    Text name;
    std::uint64_t dims_begin = 0;
    std::uint64_t rank = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    Dtype dtype = Dtype::kU8;
  };
  struct Item {
    Text key;
    Text value;
  };

  [[nodiscard]] Text keep(std::string_view text);
  [[nodiscard]] std::string_view view(Text text) const noexcept {
    return {text_.data() + text.begin, text.size};
  }
  void validate(const Header& header, std::uint64_t data_nbytes) const;
  static void index_names(Header& header);

  std::size_t json_nbytes_;
  std::vector<char> text_;
  std::vector<std::uint64_t> dims_;
  std::vector<Tensor> tensors_;
  std::vector<Item> metadata_;
  bool has_metadata_ = false;
  bool in_order_ = true;
};

}  // namespace safetensors
