#include "c/file.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "c/guard.hpp"
#include "c/path.hpp"

using safetensors::ErrorCode;
using safetensors::fail;
using safetensors::Header;
using safetensors::TensorInfo;
using safetensors::c::check_pointer;
using safetensors::c::guarded;
using safetensors::c::text_of;

namespace {

std::uint64_t data_nbytes_of(const Header& header) noexcept {
  // Tensors tile the data section and are sorted by offset.
  return header.tensors().empty() ? 0 : header.tensors().back().end;
}

std::span<const std::byte> bytes_at(const void* bytes, std::size_t nbytes, const char* what) {
  check_pointer(bytes, nbytes, what);
  return {static_cast<const std::byte*>(bytes), nbytes};
}

safetensors::OpenOptions options_of(std::int32_t backend) {
  switch (backend) {
    case SAFETENSORS_MMAP:
      return {safetensors::Backend::kMmap};
    case SAFETENSORS_PREAD:
      return {safetensors::Backend::kPread};
    default:
      fail(ErrorCode::kInvalidArgument, "no backend has number " + std::to_string(backend));
  }
}

safetensors_tensor tensor_of(const safetensors_file& file, const TensorInfo& info) {
  return {.name = info.name.data(),
          .name_size = info.name.size(),
          .shape = info.shape.data(),
          .rank = info.shape.size(),
          .data = file.in_memory(info.begin, info.end).data(),
          .nbytes = info.nbytes(),
          .begin = info.begin,
          .dtype = static_cast<std::int32_t>(info.dtype)};
}

[[noreturn]] void fail_index(std::size_t index, std::size_t count) {
  fail(ErrorCode::kIndexOutOfBounds, "index " + std::to_string(index) +
                                         " is out of range: the count is " + std::to_string(count));
}

void check_tensor(const safetensors_tensor* tensor) {
  check_pointer(tensor, 1, "tensor");
  if (safetensors_dtype_name(tensor->dtype) == nullptr) {
    fail(ErrorCode::kUnsupportedDtype, "no dtype has number " + std::to_string(tensor->dtype));
  }
}

/// Returns the header's entry that the tensor was made from; nullptr if the struct was changed
/// since, other than its name and data. Follows none of the struct's pointers.
const TensorInfo* find_entry(const safetensors_file& file, const safetensors_tensor& tensor) {
  const std::span<const TensorInfo> all = file.header().tensors();
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

}  // namespace

safetensors_file::safetensors_file(safetensors::SafeOpen open)
    : open_(std::move(open)),
      header_(&open_->header()),
      header_nbytes_(open_->header_nbytes()),
      data_nbytes_(data_nbytes_of(*header_)) {
  const auto mapping = open_->mapping();
  const std::span<const std::byte> memory = mapping ? mapping->bytes() : open_->source()->memory();
  if (!memory.empty()) data_ = memory.last(static_cast<std::size_t>(data_nbytes_));
}

safetensors_file::safetensors_file(safetensors::Header header, std::uint64_t header_nbytes)
    : own_header_(std::move(header)),
      header_(&*own_header_),
      header_nbytes_(header_nbytes),
      data_nbytes_(data_nbytes_of(*header_)) {}

void safetensors_file::check_range(std::uint64_t begin, std::uint64_t end) const {
  if (begin > end || end > data_nbytes_) {
    fail(ErrorCode::kInvalidArgument, "the tensor does not belong to this file");
  }
}

std::span<const std::byte> safetensors_file::in_memory(std::uint64_t begin,
                                                       std::uint64_t end) const {
  check_range(begin, end);
  if (data_.data() == nullptr) return {};
  return data_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

const safetensors::SafeOpen& safetensors_file::readable() const {
  if (!open_)
    fail(ErrorCode::kInvalidArgument, "a header that was opened alone has no tensor bytes to read");
  return *open_;
}

TensorInfo safetensors::c::bytes_of(const safetensors_file& file,
                                    const safetensors_tensor* tensor) {
  check_tensor(tensor);
  if (tensor->begin == safetensors::c::kScattered) {
    fail(ErrorCode::kInvalidArgument,
         "the bytes of this part are not contiguous: safetensors_read_slice copies them");
  }
  // A sum that wraps is less than begin, which check_range refuses.
  const std::uint64_t end = tensor->begin + tensor->nbytes;
  file.check_range(tensor->begin, end);
  TensorInfo info{.name = {}, .shape = {}, .begin = tensor->begin, .end = end};
  const std::span<const TensorInfo> all = file.header().tensors();
  const TensorInfo* entry = find_entry(file, *tensor);
  if (entry == nullptr && tensor->nbytes != 0) {
    entry = &*std::ranges::partition_point(
        all, [&](const TensorInfo& each) { return each.end <= tensor->begin; });
  }
  if (entry != nullptr) {
    info.name = entry->name;
    info.dtype = entry->dtype;
  }
  return info;
}

const TensorInfo& safetensors::c::entry_of(const safetensors_file& file,
                                           const safetensors_tensor* tensor) {
  const TensorInfo bytes = bytes_of(file, tensor);
  if (const TensorInfo* const entry = find_entry(file, *tensor)) return *entry;
  fail(ErrorCode::kInvalidTensorInfo,
       "a whole tensor is required, as safetensors_find returns it: this is a part of tensor `" +
           std::string(bytes.name) + "`, or was changed");
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

std::int32_t safetensors_open(const char* path, std::int32_t backend, safetensors_file** file,
                              safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    *file = new safetensors_file(
        safetensors::SafeOpen(safetensors::c::path_of(path, "path"), options_of(backend)));
  });
}

std::int32_t safetensors_open_descriptor(int descriptor, const char* label, std::int32_t backend,
                                         safetensors_file** file, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    *file = new safetensors_file(safetensors::SafeOpen(
        descriptor, safetensors::c::path_of(label, "label"), options_of(backend)));
  });
}

std::int32_t safetensors_open_memory(const void* bytes, std::size_t nbytes, safetensors_file** file,
                                     safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    *file = new safetensors_file(safetensors::SafeOpen(
        std::make_shared<const safetensors::MemorySource>(bytes_at(bytes, nbytes, "bytes"))));
  });
}

std::int32_t safetensors_header_length(const void* start, std::size_t nbytes,
                                       std::uint64_t file_nbytes, std::uint64_t* length,
                                       safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(length, 1, "length");
    *length = safetensors::header_length(bytes_at(start, nbytes, "start"), file_nbytes);
  });
}

std::int32_t safetensors_open_header(const void* json, std::size_t nbytes,
                                     std::uint64_t data_nbytes, safetensors_file** file,
                                     safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    Header header = Header::parse(bytes_at(json, nbytes, "json"), data_nbytes);
    *file = new safetensors_file(std::move(header), nbytes);
  });
}

// NOLINTNEXTLINE(misc-const-correctness): frees it
void safetensors_close(safetensors_file* file) { delete file; }

std::uint64_t safetensors_header_nbytes(const safetensors_file* file) {
  return file == nullptr ? 0 : file->header_nbytes();
}

std::uint64_t safetensors_data_offset(const safetensors_file* file) {
  return file == nullptr ? 0 : safetensors::kLengthSize + file->header_nbytes();
}

std::int32_t safetensors_header_json(const safetensors_file* file, char* to, std::size_t room,
                                     safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(to, room, "to");
    if (room != file->header_nbytes()) {
      fail(ErrorCode::kInvalidArgument, "the header has " + std::to_string(file->header_nbytes()) +
                                            " bytes, the destination " + std::to_string(room));
    }
    if (!file->open_file())
      fail(ErrorCode::kInvalidArgument, "a header that was opened alone keeps no JSON");
    const std::string json = file->open_file()->header_json();
    std::memcpy(to, json.data(), room);
  });
}

std::size_t safetensors_count(const safetensors_file* file) {
  return file == nullptr ? 0 : file->header().size();
}

std::int32_t safetensors_at(const safetensors_file* file, std::size_t index,
                            safetensors_tensor* tensor, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(tensor, 1, "tensor");
    const std::span<const TensorInfo> all = file->header().tensors();
    if (index >= all.size()) fail_index(index, all.size());
    *tensor = tensor_of(*file, all[index]);
  });
}

std::int32_t safetensors_find(const safetensors_file* file, const char* name, std::size_t name_size,
                              safetensors_tensor* tensor, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(tensor, 1, "tensor");
    const std::string_view text = text_of(name, name_size, "name");
    // The error of an open file names it.
    *tensor =
        tensor_of(*file, file->open_file() ? file->open_file()->at(text) : file->header().at(text));
  });
}

std::size_t safetensors_metadata_count(const safetensors_file* file) {
  return file == nullptr ? 0 : file->header().metadata().size();
}

std::int32_t safetensors_metadata_at(const safetensors_file* file, std::size_t index,
                                     safetensors_item* item, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(item, 1, "item");
    const std::span<const Header::MetadataItem> all = file->header().metadata();
    if (index >= all.size()) fail_index(index, all.size());
    const auto& [key, value] = all[index];
    *item = {.key = key.data(),
             .key_size = key.size(),
             .value = value.data(),
             .value_size = value.size()};
  });
}

const char* safetensors_metadata_find(const safetensors_file* file, const char* key) {
  if (file == nullptr || key == nullptr) return nullptr;
  const auto value = file->header().find_metadata(key);
  return value ? value->data() : nullptr;
}

const char* safetensors_metadata_value(const safetensors_file* file, const char* key,
                                       std::size_t key_size, std::size_t* value_size) {
  const char* found = nullptr;
  (void)guarded(nullptr, [&] {
    check_pointer(file, 1, "file");
    const auto value = file->header().find_metadata(text_of(key, key_size, "key"));
    if (!value) return;
    if (value_size != nullptr) *value_size = value->size();
    found = value->data();
  });
  return found;
}

std::int32_t safetensors_read(const safetensors_file* file, const safetensors_tensor* tensor,
                              void* to, std::size_t room, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    const TensorInfo info = safetensors::c::bytes_of(*file, tensor);
    check_pointer(to, room, "to");
    safetensors::detail::check_size(info, tensor->nbytes, room, &file->readable().path());
    file->readable().read(info, {static_cast<std::byte*>(to), room});
  });
}

std::int32_t safetensors_read_many(const safetensors_file* file, const safetensors_tensor* tensors,
                                   void* const* to, std::size_t count, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(tensors, count, "tensors");
    check_pointer(to, count, "to");
    std::vector<TensorInfo> infos;
    std::vector<safetensors::TensorRead> reads;
    infos.reserve(count);
    reads.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      infos.push_back(safetensors::c::bytes_of(*file, &tensors[i]));
      check_pointer(to[i], tensors[i].nbytes, "an address in `to`");
      reads.push_back(
          {&infos.back(),
           {static_cast<std::byte*>(to[i]), static_cast<std::size_t>(tensors[i].nbytes)}});
    }
    if (count != 0) file->readable().read(reads);
  });
}
