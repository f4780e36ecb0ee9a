// Helpers of many tests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/error.hpp"
#include "safetensors/save.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_SANITIZED 1
#endif
#endif

namespace test {

namespace fs = std::filesystem;
using safetensors::Dtype;
using safetensors::ErrorCode;

inline std::string_view name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidHeaderUtf8:
      return "kInvalidHeaderUtf8";
    case ErrorCode::kInvalidHeaderJson:
      return "kInvalidHeaderJson";
    case ErrorCode::kHeaderTooLarge:
      return "kHeaderTooLarge";
    case ErrorCode::kHeaderTooSmall:
      return "kHeaderTooSmall";
    case ErrorCode::kInvalidHeaderLength:
      return "kInvalidHeaderLength";
    case ErrorCode::kDuplicateName:
      return "kDuplicateName";
    case ErrorCode::kInvalidOffset:
      return "kInvalidOffset";
    case ErrorCode::kInvalidTensorInfo:
      return "kInvalidTensorInfo";
    case ErrorCode::kIncompleteData:
      return "kIncompleteData";
    case ErrorCode::kOverflow:
      return "kOverflow";
    case ErrorCode::kMisalignedSlice:
      return "kMisalignedSlice";
    case ErrorCode::kTensorNotFound:
      return "kTensorNotFound";
    case ErrorCode::kTooManyIndices:
      return "kTooManyIndices";
    case ErrorCode::kIndexOutOfBounds:
      return "kIndexOutOfBounds";
    case ErrorCode::kInvalidSlice:
      return "kInvalidSlice";
    case ErrorCode::kInvalidArgument:
      return "kInvalidArgument";
    case ErrorCode::kUnsupportedDtype:
      return "kUnsupportedDtype";
    case ErrorCode::kNotRegularFile:
      return "kNotRegularFile";
    case ErrorCode::kIo:
      return "kIo";
    case ErrorCode::kFileChanged:
      return "kFileChanged";
    case ErrorCode::kOutOfMemory:
      return "kOutOfMemory";
    case ErrorCode::kDevice:
      return "kDevice";
    case ErrorCode::kWrittenTwice:
      return "kWrittenTwice";
    case ErrorCode::kMissingTensors:
      return "kMissingTensors";
    case ErrorCode::kOutOfOrder:
      return "kOutOfOrder";
    case ErrorCode::kWriterClosed:
      return "kWriterClosed";
    case ErrorCode::kInvalidPatch:
      return "kInvalidPatch";
    case ErrorCode::kWrongBase:
      return "kWrongBase";
    case ErrorCode::kPatchApplied:
      return "kPatchApplied";
    case ErrorCode::kDamaged:
      return "kDamaged";
    case ErrorCode::kNoModel:
      return "kNoModel";
    case ErrorCode::kSeveralModels:
      return "kSeveralModels";
    case ErrorCode::kIncompleteModel:
      return "kIncompleteModel";
    default:
      return "a new code";
  }
}

/// Returns "ok", or the name of the code of the Error that `work` threw. A text, so that failed
/// checks print it.
template <typename Work>
std::string outcome_of(const Work& work) {
  try {
    work();
    return "ok";
  } catch (const safetensors::Error& error) {
    return std::string(name_of(error.code()));
  }
}

/// Returns the Error that `work` throws.
template <typename Work>
safetensors::Error error_of(const Work& work) {
  try {
    work();
  } catch (const safetensors::Error& error) {
    return error;
  }
  throw std::logic_error("no Error was thrown");
}

/// A copy in memory of exactly this size, so that a sanitizer detects reads past its end.
class ExactBytes {
 public:
  explicit ExactBytes(std::string_view bytes)
      : bytes_(new std::byte[bytes.size()]), size_(bytes.size()) {
    if (!bytes.empty()) std::memcpy(bytes_.get(), bytes.data(), bytes.size());
  }
  [[nodiscard]] std::span<const std::byte> span() const { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_;
};

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::string length_bytes(std::uint64_t length) {
  std::string bytes;
  for (unsigned i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xFF);
  return bytes;
}

/// Returns a file with this header and `data_nbytes` zero bytes of data.
inline std::string file_of(std::string_view header, std::size_t data_nbytes = 0) {
  return length_bytes(header.size()) + std::string(header) + std::string(data_nbytes, '\0');
}

/// Returns bytes that differ between positions and between seeds.
inline std::vector<std::byte> pattern(std::size_t nbytes, std::uint32_t seed = 1) {
  std::vector<std::byte> bytes(nbytes);
  std::uint32_t state = seed * 2654435761U + 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

/// A tensor that owns its name, shape and bytes.
struct OwnTensor {
  std::string name;
  Dtype dtype = Dtype::kU8;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;

  [[nodiscard]] safetensors::TensorData view() const { return {name, shape, bytes, dtype}; }
};

inline std::vector<safetensors::TensorData> views_of(std::span<const OwnTensor> tensors) {
  std::vector<safetensors::TensorData> views;
  for (const OwnTensor& tensor : tensors) views.push_back(tensor.view());
  return views;
}

/// Returns a tensor with bytes of pattern().
/// Requires: its number of bits is a multiple of 8.
inline OwnTensor tensor_of(std::string name, Dtype dtype, std::vector<std::uint64_t> shape,
                           std::uint32_t seed = 1) {
  std::uint64_t nbits = safetensors::bit_size(dtype);
  for (const std::uint64_t size : shape) nbits *= size;
  return {std::move(name), dtype, std::move(shape), pattern(nbits / 8, seed)};
}

/// Returns tensors of several types, names and sizes, not in the order of a file.
inline std::vector<OwnTensor> some_tensors() {
  return {
      tensor_of("b", Dtype::kF32, {3, 5}, 1),        tensor_of("a", Dtype::kF32, {7}, 2),
      tensor_of("scalar", Dtype::kI64, {}, 3),       tensor_of("empty", Dtype::kBF16, {0, 4}, 4),
      tensor_of("f4", Dtype::kF4, {3, 4}, 5),        tensor_of("f6", Dtype::kF6E2M3, {4}, 6),
      tensor_of("\xC3\xA9\n\"", Dtype::kU8, {9}, 7), tensor_of("", Dtype::kBool, {2, 2}, 8)};
}

/// A temporary directory, which the destructor removes with its contents.
class TempDir {
 public:
  TempDir() {
    std::random_device device;
    path_ = fs::temp_directory_path() /
            ("safetensors-test-" + std::to_string(device()) + std::to_string(device()));
    fs::create_directory(path_);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] const fs::path& path() const { return path_; }
  [[nodiscard]] fs::path operator/(std::string_view name) const { return path_ / name; }
  /// Returns the number of its entries.
  [[nodiscard]] std::size_t count() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  fs::path path_;
};

/// Saves tensors as model.safetensors in a folder, and returns the path.
inline fs::path save_tensors(const TempDir& folder, std::span<const OwnTensor> tensors) {
  const fs::path path = folder / "model.safetensors";
  safetensors::save_file(views_of(tensors), path);
  return path;
}

inline void write_text(const fs::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

inline std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace test
