// The sums of a file that is being saved. For this project's own bindings: it may change at any
// time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "safetensors/byte_sink.hpp"
#include "safetensors/digest.hpp"
#include "safetensors/dtype.hpp"
#include "safetensors/export.hpp"
#include "safetensors/layout.hpp"
#include "safetensors/save.hpp"

namespace safetensors::detail {

/// Computes the digests of a file's tensors as they are written, and writes the sums when the file
/// takes its name:
///
///     write_beside(): hashes, and writes at the same time
///     the sink's before_rename: Make is called, a temporary file of sums written
///     the sink removes the old sums and renames the file; commit() renames the new sums
///
/// For a file that is overwritten, commit() writes the temporary file, too, which overwrites() has
/// made before the first byte of the file is lost.
///
/// Digests are of tensors whose bytes come in order. Make reads the others from the file.
///
/// Thread safety: several threads may call write_beside() at once.
class SAFETENSORS_API WriteSums {
 public:
  /// What is known of a tensor that was written.
  struct Written {
    std::string_view name;
    std::optional<Digest> digest;  ///< nothing if its bytes did not come in order
    std::span<const std::uint64_t> blocks;
  };
  /// Returns the content of the sums of the complete file at a path, nothing for none. `written` is
  /// null if nothing is known of the tensors.
  using Make = std::function<std::optional<std::string>(const std::filesystem::path& complete,
                                                        const std::vector<Written>* written)>;

  /// For no sums: nothing is hashed.
  WriteSums() = default;
  /// Writes what `make` returns to `path`. If that is a link, it is replaced, not followed.
  WriteSums(std::filesystem::path path, Make make);
  WriteSums(const WriteSums&) = delete;
  WriteSums& operator=(const WriteSums&) = delete;
  ~WriteSums() = default;

  [[nodiscard]] bool is_wanted() const noexcept { return make_ != nullptr; }
  /// Adds the next tensor.
  void add(std::string_view name, Dtype dtype, std::span<const std::uint64_t> shape);
  /// Returns the callback of the sink of a file, whose rights the sums get.
  [[nodiscard]] std::function<void(const std::filesystem::path&)> before_rename(
      const std::filesystem::path& file);
  /// Is called before a file that cannot be replaced is overwritten, and forgets all tensors.
  /// Throws: Error kIo if there cannot be sums.
  void overwrites(const std::filesystem::path& file);
  /// Gives the sums their name, once the file has its own, or is complete.
  void commit(bool fsync);
  /// Removes the temporary file of sums, if there is one.
  void abort() noexcept { sink_.reset(); }

  /// A part of a tensor.
  struct Part {
    std::size_t tensor;
    std::uint64_t begin;
    std::span<const std::byte> bytes;
  };

  /// Calls `write`, which writes these parts, while a thread hashes them.
  template <typename Write>
  void write_beside(std::span<const Part> parts, const Write& write) {
    const Hashing hashing(*this, is_wanted() ? parts : std::span<const Part>());
    write();
    hashing.finish();
  }

 private:
  struct Entry {
    std::string name;
    std::vector<std::uint64_t> shape;
    Dtype dtype = Dtype::kU8;
    std::uint64_t nbytes = 0;
    // Guarded by the mutex of the entry:
    std::mutex mutex;
    std::optional<TensorHasher> hasher;
    std::uint64_t next = 0;  // the bytes that were hashed
    bool is_in_order = true;
    std::optional<Digest> digest;  // of the complete tensor
    std::vector<std::uint64_t> blocks;
  };

  /// Hashes parts on a thread of its own, unless they are short. The destructor ends the thread.
  class SAFETENSORS_API Hashing {
   public:
    Hashing(WriteSums& sums, std::span<const Part> parts);
    Hashing(const Hashing&) = delete;
    Hashing& operator=(const Hashing&) = delete;
    ~Hashing();
    /// Waits for the end. Throws: what hashing threw.
    void finish() const;

   private:
    struct State {
      std::atomic<bool> is_stopped = false;
      std::exception_ptr error;
      std::thread thread;
    };
    std::unique_ptr<State> state_;  // null if the parts are hashed
  };

  [[nodiscard]] Entry& entry(std::size_t tensor);
  void hash(const Part& part, const std::atomic<bool>& is_stopped);
  static void complete(Entry& entry);
  [[nodiscard]] std::vector<Written> written();
  /// Makes the temporary file of sums. They get their name if `now`, the file, is then at `path`.
  void open_sink(const std::filesystem::path& now, const std::filesystem::path& path);
  /// Writes the sums of the complete file that is, or will be, at `path`.
  void write_content(const std::filesystem::path& complete, const std::filesystem::path& path);

  std::mutex mutex_;  // guards entries_, but not what is in an entry
  std::deque<Entry> entries_;
  std::filesystem::path path_;
  Make make_;
  std::unique_ptr<ByteSink> sink_;  // of the sums
  std::filesystem::path overwritten_;
  std::uint64_t nbytes_ = 0;  // of the sums
};

/// Returns what writes the sums of a file at a path, if the options want them.
/// Throws: Error kInvalidArgument if the path does not end with .safetensors.
[[nodiscard]] SAFETENSORS_API std::unique_ptr<WriteSums> sums_of_save(
    const std::filesystem::path& path, const SaveOptions& options);

/// Saves a file as safetensors::save_file() does, but with these sums instead of options.sums.
SAFETENSORS_API void save_file(std::span<const TensorData> tensors,
                               const std::filesystem::path& path, const Metadata* metadata,
                               const SaveOptions& options, WriteSums& sums);

/// Writes the file of a plan to a sink, and commits the file and then the sums.
SAFETENSORS_API void write_file(LayoutPlan plan, std::span<const TensorData> tensors,
                                std::unique_ptr<ByteSink> sink, const SaveOptions& options,
                                WriteSums& sums);

}  // namespace safetensors::detail
