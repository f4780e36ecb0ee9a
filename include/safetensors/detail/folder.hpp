// Files whose names the library chose. For this project's own bindings: it may change at any time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "safetensors/byte_sink.hpp"
#include "safetensors/export.hpp"

namespace safetensors::detail {

/// The name of a file that the library chose: one name in a folder, and no path. A path that the
/// caller typed is a std::filesystem::path, so that the two cannot be mistaken for each other.
class OwnName {
 public:
  using Text = std::filesystem::path::string_type;
  using TextView = std::basic_string_view<Text::value_type>;

  /// Throws: Error kInvalidArgument if the text is empty, ".", "..", or contains a separator or a
  ///   NUL; on Windows also if it names a device or a stream.
  SAFETENSORS_API explicit OwnName(TextView text);

  /// Returns `.STEM.RANDOM.KIND`, in which STEM is stem_of(name), and RANDOM is 16 hexadecimal
  /// digits of the system's generator of random numbers: nobody knows the name before the file
  /// exists.
  [[nodiscard]] SAFETENSORS_API static OwnName random(const Text& name, std::string_view kind);

  /// Returns the name, or if random() would have more than 143 bytes with it, its beginning, "~"
  /// and 16 hexadecimal digits that depend on all of it. The beginning is cut between characters.
  [[nodiscard]] SAFETENSORS_API static Text stem_of(const Text& name);

  /// Returns STEM of a name that random() makes of this kind, as a view of `text`; an empty view
  /// for other names.
  [[nodiscard]] SAFETENSORS_API static TextView stem_in(TextView text,
                                                        std::string_view kind) noexcept;
  /// Returns whether stem_of() has shortened a name to this.
  [[nodiscard]] SAFETENSORS_API static bool is_shortened(TextView stem) noexcept;

  [[nodiscard]] const Text& text() const noexcept { return text_; }
  [[nodiscard]] const Text::value_type* c_str() const noexcept { return text_.c_str(); }

 private:
  Text text_;
};

struct OwnPlace;

/// A folder, held open: its files are reached by its descriptor, so that they stay the same when
/// somebody renames the folder or puts another in its place. No function follows a symbolic link
/// that lies under a name in it.
///
/// Copies share the descriptor. Errors are Error kIo, with the path of the folder and the name.
/// Thread safety: immutable; all members may be called from many threads at once.
class Folder {
 public:
  /// Opens a folder that the caller typed. Links in its path are followed, once.
  [[nodiscard]] SAFETENSORS_API static Folder open(const std::filesystem::path& typed);

#if !defined(_WIN32)
  /// Opens a folder below this one, or elsewhere: `relative` is the first part of a link's text.
  [[nodiscard]] SAFETENSORS_API Folder open_from(const std::filesystem::path& relative) const;
#endif

  /// Returns the path, for texts.
  [[nodiscard]] SAFETENSORS_API const std::filesystem::path& path() const noexcept;

#if !defined(_WIN32)
  /// What a name leads to, which may be a link.
  struct Status {
    std::uint64_t nbytes;
    std::int64_t modified;  ///< nanoseconds since 1970
    std::uint64_t inode;
    bool is_folder;
  };
  [[nodiscard]] SAFETENSORS_API std::optional<Status> status(const OwnName& name) const;

  [[nodiscard]] SAFETENSORS_API int descriptor() const noexcept;
  [[nodiscard]] SAFETENSORS_API std::uint64_t inode() const;

  /// Returns whether another user may rename or remove what this user makes here.
  [[nodiscard]] SAFETENSORS_API bool is_shared() const;

  /// Returns whether a lock (flock) here is known to keep out the processes of all machines that
  /// have the folder. False on network file systems, which may keep locks to one machine.
  [[nodiscard]] SAFETENSORS_API bool sees_all_locks() const noexcept;

  /// Returns the names of all files and folders, in no order.
  [[nodiscard]] SAFETENSORS_API std::vector<OwnName::Text> names() const;

  /// Removes temporary files that saves of ended processes of this user have left, and returns how
  /// many: with `only`, those of this file and its sums; else those of all `*.safetensors`. Looks
  /// at `most` names.
  ///
  /// A process that saves holds a lock of its file. Without sees_all_locks(), files that were
  /// written to in the last `recent` seconds stay, too.
  SAFETENSORS_API std::size_t remove_stale(const OwnName* only,
                                           std::chrono::seconds recent = std::chrono::minutes(1),
                                           std::size_t most = static_cast<std::size_t>(-1)) const;

  /// Opens a regular file that an earlier process may have left, to read and, if `writes`, to
  /// write. Returns its descriptor, which the caller closes; -1 if there is none. Never waits for
  /// the other end of a pipe.
  ///
  /// Throws: Error kNotRegularFile for a link, a folder, a pipe or a device; Error kIo with EPERM
  ///   for a file of another user, if `owned`, and with EWOULDBLOCK while somebody has a lease.
  [[nodiscard]] SAFETENSORS_API int open_file(const OwnName& name, bool writes, bool owned) const;

  /// Gives a file of this user a size, and disk space where the file system can reserve it.
  ///
  /// Throws: as open_file(); Error kIo, also if there is no such file or no space.
  SAFETENSORS_API void resize(const OwnName& name, std::uint64_t nbytes) const;

  /// Removes a file. Returns false if there is none, or if `descriptor` is not -1 and the name is
  /// not its file.
  SAFETENSORS_API bool remove(const OwnName& name, int descriptor = -1) const;

  /// Blocks until the names are on the disk, if the file system supports that.
  SAFETENSORS_API void flush() const;

  /// Makes a folder that no other user can enter, with the name of OwnName::random(). If another
  /// user moves it away before it is open, makes another one. Locked while it is open.
  [[nodiscard]] SAFETENSORS_API OwnPlace make_private(const OwnName::Text& name,
                                                      std::string_view kind) const;

  /// Opens a folder that make_private() has made. Returns nothing if there is none.
  ///
  /// Throws: Error kNotRegularFile if it is a link, is no folder, is open to other users or, with
  ///   `inode`, is another folder; Error kIo with EPERM if it belongs to another user.
  [[nodiscard]] SAFETENSORS_API std::optional<Folder> open_private(const OwnName& name,
                                                                   std::uint64_t inode = 0) const;

  /// Removes a private folder and the files in it. Leaves what cannot be removed.
  SAFETENSORS_API void remove_private(const OwnName& name, const Folder& held) const noexcept;

  /// Removes a private folder if it is empty. Returns whether it is gone.
  SAFETENSORS_API bool remove_empty(const OwnName& name) const noexcept;

  /// Gives a file of this private folder the mode, owner, group and access list of another one, as
  /// far as the system allows. Does nothing if there is no such file.
  SAFETENSORS_API void take_rights(const OwnName& name, const OwnPlace& like) const;

  /// Renames a file of this private folder to `to`, replacing what has that name.
  ///
  /// Throws: Error kIo; with ESTALE if another user has then put something else under the name.
  SAFETENSORS_API void move(const OwnName& name, const OwnPlace& to) const;
#endif

 private:
  class Handle;
  void visit(const std::function<bool(const char* name)>& visitor) const;
  explicit Folder(std::shared_ptr<const Handle> handle) noexcept;
  std::shared_ptr<const Handle> handle_;
};

/// A name in a folder. For Folder::make_private(): the folder itself, and its name in its parent.
struct OwnPlace {
  Folder folder;
  OwnName name;
};

/// Returns the place of a file whose name follows from that of a file at a path, such as sums: no
/// link under the name is followed. Throws: Error kIo; kInvalidArgument if the path ends with no
/// name.
[[nodiscard]] SAFETENSORS_API OwnPlace place_of_own(const std::filesystem::path& path);

/// Returns a sink that writes a temporary file in the folder. commit() gives it the name of the
/// place: what has that name, also a link, is replaced. With `like`, the file gets the rights of
/// that file if it exists: see Folder::take_rights().
///
/// If `is_wanted` returns false, commit() discards the file. It is called before the file gets its
/// name and, except on Windows, after it.
///
/// Throws: Error kIo. The sink throws it, too; with ESTALE if another user exchanged the file.
[[nodiscard]] SAFETENSORS_API std::unique_ptr<ByteSink> make_own_sink(
    const OwnPlace& place, const OwnPlace* like, const std::function<bool()>& is_wanted = {});

/// Writes the bytes of a whole file to a sink, which is not committed.
SAFETENSORS_API void write_whole(ByteSink& sink, std::span<const std::byte> bytes);

/// Writes the bytes of a whole file to a sink, and commits it.
SAFETENSORS_API void write_all(ByteSink& sink, std::span<const std::byte> bytes, bool fsync);

#if !defined(_WIN32)
/// Returns a function that says whether `path`, whose links are followed, leads to the file that
/// `file` leads to now. The function holds the file open. Throws: Error kIo.
[[nodiscard]] SAFETENSORS_API std::function<bool()> watch_file(const std::filesystem::path& file,
                                                               const std::filesystem::path& path);

/// Returns a sink that makes a new file under the name of the place at once, and removes it unless
/// it is committed. For files in a private folder. `like` is as for make_own_sink();
/// `before_commit` is called with a path by which the complete file can be read.
///
/// Throws: Error kIo; with EEXIST if the name is taken.
[[nodiscard]] SAFETENSORS_API std::unique_ptr<ByteSink> make_part_sink(
    const OwnPlace& place, const OwnPlace* like,
    const std::function<void(const std::filesystem::path&)>& before_commit);
#endif

}  // namespace safetensors::detail
