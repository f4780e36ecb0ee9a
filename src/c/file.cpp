// Looking at open files.
#include "c/file.hpp"

#include <algorithm>
#include <functional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "c/guard.hpp"
#include "c/path.hpp"

using safetensors::Dtype;
using safetensors::ErrorCode;
using safetensors::fail;
using safetensors::Header;
using safetensors::ModelTensor;
using safetensors::SafeOpen;
using safetensors::TensorInfo;
using safetensors::c::check_index;
using safetensors::c::check_pointer;
using safetensors::c::guarded;
using safetensors::c::text_of;

namespace {

std::uint64_t data_nbytes_of(const Header& header) noexcept {
  // Tensors tile the data section and are sorted by offset.
  return header.tensors().empty() ? 0 : header.tensors().back().end;
}

/// Returns the data section of a file that is mapped or in memory; null of others.
std::span<const std::byte> data_in_memory(const SafeOpen& open) {
  const auto mapping = open.mapping();
  std::span<const std::byte> memory;
  if (mapping) {
    memory = mapping->bytes();
  } else if (open.backend() == safetensors::Backend::kSource) {
    memory = open.source()->memory();
  }
  return memory.empty() ? memory : memory.subspan(static_cast<std::size_t>(open.data_offset()));
}

safetensors_tensor tensor_of(const safetensors_file& file, const ModelTensor& tensor) {
  const TensorInfo& info = *tensor.info;
  const auto number = static_cast<std::uint32_t>(tensor.file);
  return {.name = info.name.data(),
          .name_size = info.name.size(),
          .shape = info.shape.data(),
          .rank = info.shape.size(),
          .data = file.in_memory(number, info.begin, info.end).data(),
          .nbytes = info.nbytes(),
          .begin = info.begin,
          .dtype = static_cast<std::int32_t>(info.dtype),
          .file = number};
}

void check_tensor(const safetensors_tensor* tensor) {
  check_pointer(tensor, 1, "tensor");
  (void)safetensors::c::dtype_of(tensor->dtype);
}

/// Returns the header's entry that the tensor was made from; nullptr if the struct was changed
/// since, other than its name and data. Follows none of the struct's pointers.
const TensorInfo* find_entry(const Header& header, const safetensors_tensor& tensor) {
  const std::span<const TensorInfo> all = header.tensors();
  const std::uint64_t end = tensor.begin + tensor.nbytes;  // within the file: checked by callers
  // Any number of empty tensors may have the same begin and end. The header keeps those in the
  // order in which it stores their shapes.
  const auto at = std::ranges::partition_point(all, [&](const TensorInfo& each) {
    if (each.begin != tensor.begin) return each.begin < tensor.begin;
    if (each.end != end) return each.end < end;
    return std::less<>()(each.shape.data(), tensor.shape);
  });
  if (at == all.end() || at->begin != tensor.begin || at->end != end ||
      at->shape.data() != tensor.shape || at->shape.size() != tensor.rank ||
      static_cast<std::int32_t>(at->dtype) != tensor.dtype) {
    return nullptr;
  }
  return &*at;
}

/// The same for a tensor that a caller passes back. Throws: what bytes_of throws.
const TensorInfo* find_entry_of(const safetensors_file& file, const safetensors_tensor* tensor) {
  check_tensor(tensor);
  if (tensor->begin == safetensors::c::kScattered) {
    fail(
        ErrorCode::kInvalidArgument,
        "the bytes of this part are not contiguous: safetensors_read takes the tensor and indices");
  }
  // A sum that wraps is less than begin, which check_range refuses.
  file.check_range(tensor->file, tensor->begin, tensor->begin + tensor->nbytes);
  return find_entry(file.header(tensor->file), *tensor);
}

}  // namespace

safetensors_file::safetensors_file(SafeOpen open)
    : open_(std::move(open)),
      data_(data_in_memory(*open_)),
      paths_{safetensors::c::utf8_of(open_->path())} {}

safetensors_file::safetensors_file(safetensors::Model model, bool is_whole)
    : model_(std::move(model)), is_whole_(is_whole) {
  paths_.reserve(model_->file_count());
  for (std::size_t i = 0; i < model_->file_count(); ++i) {
    paths_.push_back(safetensors::c::utf8_of(model_->found().path(i)));
  }
}

safetensors_file::safetensors_file(Header header, std::uint64_t header_nbytes)
    : own_header_(std::move(header)), header_nbytes_(header_nbytes) {}

std::uint32_t safetensors_file::file_count() const noexcept {
  return model_ ? static_cast<std::uint32_t>(model_->file_count()) : 1;
}

const SafeOpen& safetensors_file::file(std::uint32_t number) const {
  if (model_) return model_->file(number);
  if (open_) return *open_;
  fail(ErrorCode::kInvalidArgument, "a header that was opened alone has neither bytes nor text");
}

const Header& safetensors_file::header(std::uint32_t number) const {
  return own_header_ ? *own_header_ : file(number).header();
}

std::uint64_t safetensors_file::header_nbytes(std::uint32_t number) const {
  return own_header_ ? header_nbytes_ : file(number).header_nbytes();
}

safetensors::Model safetensors_file::as_model() const {
  if (model_) return *model_;
  safetensors::FoundModel found;
  found.files = {safetensors::c::utf8_of(file(0).path().filename())};
  found.folder = file(0).path().parent_path();
  return {std::move(found), [open = file(0)](const auto&) { return open; }};
}

std::size_t safetensors_file::size() const noexcept {
  if (model_) return model_->size();
  if (open_) return open_->header().size();
  return own_header_ ? own_header_->size() : 0;
}

ModelTensor safetensors_file::tensor(std::size_t index) const {
  if (model_) return model_->tensor(index);
  return {&header(0).tensors()[index], 0};
}

ModelTensor safetensors_file::at(std::string_view name) const {
  if (model_) return model_->at(name);
  // The error of an open file names it.
  return {open_ ? &open_->at(name) : &header(0).at(name), 0};
}

void safetensors_file::check_range(std::uint32_t number, std::uint64_t begin,
                                   std::uint64_t end) const {
  if (number >= file_count() || begin > end || end > data_nbytes_of(header(number))) {
    fail(ErrorCode::kInvalidArgument, "the tensor does not belong to this file");
  }
}

std::span<const std::byte> safetensors_file::in_memory(std::uint32_t number, std::uint64_t begin,
                                                       std::uint64_t end) const {
  const std::span<const std::byte> data = model_ ? data_in_memory(model_->file(number)) : data_;
  if (data.data() == nullptr) return {};
  return data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

void safetensors_file::read(std::span<const safetensors::ModelRead> reads,
                            const safetensors::Interrupt& interrupt) const {
  if (reads.size() == 1) {  // often a row: without the lists that many need
    const safetensors::ModelRead& only = reads.front();
    const SafeOpen& from = file(static_cast<std::uint32_t>(only.tensor.file));
    if (only.runs.empty()) {
      from.read(*only.tensor.info, only.to, interrupt);
    } else {
      from.read(*only.tensor.info, only.runs, only.to, interrupt);
    }
    return;
  }
  if (model_) {
    model_->read(reads, interrupt);
    return;
  }
  const SafeOpen& from = file(0);
  std::vector<safetensors::TensorRead> all;
  all.reserve(reads.size());
  for (const safetensors::ModelRead& each : reads) {
    all.push_back({each.tensor.info, each.to, each.runs});
  }
  from.read(all, interrupt);
}

Dtype safetensors::c::dtype_of(std::int32_t number) {
  if (safetensors_dtype_name(number) == nullptr) {
    fail(ErrorCode::kUnsupportedDtype, "no dtype has number " + std::to_string(number));
  }
  return static_cast<Dtype>(number);
}

TensorInfo safetensors::c::bytes_of(const safetensors_file& file,
                                    const safetensors_tensor* tensor) {
  const TensorInfo* entry = find_entry_of(file, tensor);
  const std::uint64_t end = tensor->begin + tensor->nbytes;
  TensorInfo info{.name = {}, .shape = {}, .begin = tensor->begin, .end = end};
  if (entry == nullptr && tensor->nbytes != 0) {
    entry = &*std::ranges::partition_point(
        file.header(tensor->file).tensors(),
        [&](const TensorInfo& each) { return each.end <= tensor->begin; });
  }
  if (entry != nullptr) {
    info.name = entry->name;
    info.dtype = entry->dtype;
  }
  return info;
}

const TensorInfo& safetensors::c::entry_of(const safetensors_file& file,
                                           const safetensors_tensor* tensor) {
  if (const TensorInfo* const entry = find_entry_of(file, tensor)) return *entry;
  fail(ErrorCode::kInvalidTensorInfo,
       "a whole tensor is required, as safetensors_find returns it: this is a part of tensor `" +
           std::string(bytes_of(file, tensor).name) + "`, or was changed");
}

TensorInfo safetensors::c::info_of(const safetensors_tensor* tensor) {
  check_tensor(tensor);
  check_pointer(tensor->shape, tensor->rank, "shape");
  return {.name = text_of(tensor->name, tensor->name_size, "name"),
          .shape = {tensor->shape, tensor->rank},
          .begin = tensor->begin,
          .end = tensor->begin + tensor->nbytes,
          .dtype = static_cast<Dtype>(tensor->dtype)};
}

std::uint32_t safetensors_file_count(const safetensors_file* file) {
  return file == nullptr ? 0 : file->file_count();
}

const char* safetensors_file_path(const safetensors_file* file, std::uint32_t number,
                                  std::size_t* size) {
  const std::string* const path = file == nullptr ? nullptr : file->path(number);
  if (path == nullptr) return nullptr;
  if (size != nullptr) *size = path->size();
  return path->c_str();
}

std::int32_t safetensors_file_at(const safetensors_file* file, std::uint32_t number,
                                 safetensors_file_info* info, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(info, 1, "info");
    check_index(number, file->file_count());
    const std::uint64_t nbytes = file->header_nbytes(number);
    *info = {.header_nbytes = nbytes,
             .data_offset = safetensors::kLengthSize + nbytes,
             .metadata_count = file->header(number).metadata().size()};
  });
}

std::int32_t safetensors_header_json(const safetensors_file* file, std::uint32_t number, char* to,
                                     std::size_t room, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(to, room, "to");
    check_index(number, file->file_count());
    const std::uint64_t nbytes = file->header_nbytes(number);
    if (room != nbytes) {
      fail(ErrorCode::kInvalidArgument, "the header has " + std::to_string(nbytes) +
                                            " bytes, the destination " + std::to_string(room));
    }
    const std::string json = file->file(number).header_json();
    std::ranges::copy(json, to);
  });
}

std::size_t safetensors_count(const safetensors_file* file) {
  return file == nullptr ? 0 : file->size();
}

std::int32_t safetensors_at(const safetensors_file* file, std::size_t index,
                            safetensors_tensor* tensor, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(tensor, 1, "tensor");
    check_index(index, file->size());
    *tensor = tensor_of(*file, file->tensor(index));
  });
}

std::int32_t safetensors_find(const safetensors_file* file, const char* name, std::size_t name_size,
                              safetensors_tensor* tensor, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(tensor, 1, "tensor");
    *tensor = tensor_of(*file, file->at(text_of(name, name_size, "name")));
  });
}

std::int32_t safetensors_metadata_at(const safetensors_file* file, std::uint32_t number,
                                     std::size_t index, safetensors_item* item,
                                     safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(item, 1, "item");
    check_index(number, file->file_count());
    const std::span<const Header::MetadataItem> all = file->header(number).metadata();
    check_index(index, all.size());
    const auto& [key, value] = all[index];
    *item = {.key = key.data(),
             .key_size = key.size(),
             .value = value.data(),
             .value_size = value.size()};
  });
}

const char* safetensors_metadata_value(const safetensors_file* file, std::uint32_t number,
                                       const char* key, std::size_t key_size,
                                       std::size_t* value_size) {
  const char* found = nullptr;
  (void)guarded(nullptr, [&] {
    check_pointer(file, 1, "file");
    check_index(number, file->file_count());
    const auto value = file->header(number).find_metadata(text_of(key, key_size, "key"));
    if (!value) return;
    if (value_size != nullptr) *value_size = value->size();
    found = value->data();
  });
  return found;
}
