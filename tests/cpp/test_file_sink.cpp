#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mount.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "io/file_source.hpp"
#include "io/posix/fd.hpp"
#include "posix_support.hpp"
#include "safetensors/detail/folder.hpp"
#include "write_support.hpp"

using safetensors::Error;
using safetensors::ErrorCode;
using safetensors::Interrupt;
using test::FileContent;
using test::write_file;

namespace {

constexpr uid_t kNobody = 65534;

/// Returns views of `texts`.
FileContent content_of(const std::vector<std::string>& texts) {
  FileContent content;
  for (const std::string& text : texts) {
    content.pieces.push_back(test::bytes_of(text));
    content.total_nbytes += text.size();
  }
  return content;
}

void write(const test::fs::path& path, const std::string& text, bool fsync = false) {
  const std::vector<std::string> texts = {text};
  const Interrupt none;
  write_file(path, content_of(texts), {fsync, none});
}

Error write_error(const test::fs::path& path, const std::string& text) {
  return test::error_of([&] { write(path, text); });
}

/// Writes as a user that owns nothing here. Returns "ok", or the error's number.
std::string write_as_nobody(const test::fs::path& path, const FileContent& content) {
  const int status = test::in_child([&] {
    if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) return 253;
    const Interrupt none;
    try {
      write_file(path, content, {false, none});
      return 0;
    } catch (const Error& error) {
      return error.os_error() == 0 ? 252 : error.os_error();
    }
  });
  return status == 0 ? "ok" : std::to_string(status);
}

bool is_root() {
  if (::geteuid() == 0) return true;
  MESSAGE("skipped: only root can become another user");
  return false;
}

}  // namespace

TEST_CASE("pieces of many sizes are written in order") {
  const test::TempDir folder;
  std::vector<std::string> texts;
  std::string wanted;
  std::uint32_t seed = 0;
  for (const std::size_t size :
       {0U, 1U, 65'535U, 65'536U, 65'537U, 3U, 1'048'576U, 0U, 2'000'000U, 7U, 20'000'000U, 5U}) {
    texts.push_back(test::text_of(test::pattern(size, ++seed)));
  }
  for (int i = 0; i < 5000; ++i) texts.push_back(std::string(static_cast<std::size_t>(i), 'x'));
  for (const std::string& text : texts) wanted += text;
  const Interrupt none;
  for (const bool fsync : {false, true}) {
    write_file(folder / "f", content_of(texts), {fsync, none});
    CHECK(test::read_text(folder / "f") == wanted);
    CHECK(folder.count() == 1);
  }
}

TEST_CASE("an empty file is written, and file names of every length") {
  const test::TempDir folder;
  for (const std::size_t size : {1U, 10U, 200U, 201U, 255U}) {
    const std::string name(size, 'n');
    write(folder / name, "");
    write(folder / name, "x");
    CHECK(test::read_text(folder / name) == "x");
  }
  CHECK(folder.count() == 5);
  CHECK(write_error(folder / std::string(256, 'n'), "x").os_error() == ENAMETOOLONG);
  CHECK(folder.count() == 5);
}

TEST_CASE("a new file's mode follows the umask") {
  const test::TempDir folder;
  for (const mode_t mask : {0022U, 0077U, 0002U, 0000U}) {
    const test::Umask umask(mask);
    write(folder / std::to_string(mask), "x");
    CHECK(test::mode_of(folder / std::to_string(mask)) == (0666U & ~mask));
  }
}

TEST_CASE("a replaced file keeps its mode, and readers keep the old file") {
  const test::TempDir folder;
  const test::Umask umask(0022);
  for (const mode_t mode : {0644U, 0600U, 0666U, 0640U, 0444U, 0755U}) {
    write(folder / "f", "old");
    REQUIRE(::chmod((folder / "f").c_str(), mode) == 0);
    const auto reader = safetensors::FileSource::open(folder / "f");
    const auto mapping = reader->map();
    write(folder / "f", "new!");
    CHECK(test::read_text(folder / "f") == "new!");
    CHECK(test::mode_of(folder / "f") == mode);
    CHECK(test::text_of(mapping->bytes()) == "old");
    CHECK(folder.count() == 1);
    test::fs::remove(folder / "f");
  }
}

TEST_CASE("owner and group are kept where the system allows it") {
  if (!is_root()) return;
  const test::TempDir folder;
  write(folder / "f", "old");
  REQUIRE(::chown((folder / "f").c_str(), kNobody, kNobody) == 0);
  REQUIRE(::chmod((folder / "f").c_str(), 0604) == 0);
  write(folder / "f", "new");
  CHECK(test::stat_of(folder / "f").st_uid == kNobody);
  CHECK(test::stat_of(folder / "f").st_gid == kNobody);
  CHECK(test::mode_of(folder / "f") == 0604);
}

TEST_CASE("a symbolic link is followed, also to a file that does not exist yet") {
  const test::TempDir folder;
  test::fs::create_directory(folder / "d");
  write(folder / "d/real", "old");
  test::fs::create_symlink("d/real", folder / "link");
  test::fs::create_symlink("link", folder / "link2");
  test::fs::create_symlink(folder / "d/fresh", folder / "dangling");
  write(folder / "link2", "new");
  CHECK(test::fs::is_symlink(folder / "link2"));
  CHECK(test::fs::is_symlink(folder / "link"));
  CHECK(test::read_text(folder / "d/real") == "new");
  write(folder / "dangling", "fresh");
  CHECK(test::fs::is_symlink(folder / "dangling"));
  CHECK(test::read_text(folder / "d/fresh") == "fresh");
  CHECK(folder.count() == 4);
  test::fs::create_symlink("loop", folder / "loop");
  CHECK(write_error(folder / "loop", "x").os_error() == ELOOP);
}

TEST_CASE("a folder that is renamed during a save loses its own sums, and none at its old path") {
  const test::TempDir folder;
  test::fs::create_directory(folder / "m");
  write(folder / "m" / "x.safetensors", "old");
  test::fs::create_symlink("x.safetensors", folder / "m" / "link.safetensors");
  for (const char* name : {"x.safetensors", "link.safetensors"}) {
    CAPTURE(name);
    test::write_text(folder / "m" / "x.sums.json", "of this model");
    test::write_text(folder / "m" / "link.sums.json", "of this model");
    const auto sink = safetensors::make_file_sink(folder / "m" / name);
    test::fs::rename(folder / "m", folder / "moved");
    test::fs::create_directory(folder / "m");
    test::write_text(folder / "m" / "x.sums.json", "of another model");
    test::write_text(folder / "m" / "link.sums.json", "of another model");
    safetensors::detail::write_all(*sink, test::bytes_of("new"), false);
    CHECK(test::read_text(folder / "m" / "x.sums.json") == "of another model");
    CHECK(test::read_text(folder / "m" / "link.sums.json") == "of another model");
    CHECK(test::read_text(folder / "moved" / "x.safetensors") == "new");
    CHECK_FALSE(test::fs::exists(folder / "moved" / "x.sums.json"));
    CHECK(test::fs::exists(folder / "moved" / "link.sums.json") == (name[0] == 'x'));
    test::fs::remove_all(folder / "m");
    test::fs::rename(folder / "moved", folder / "m");
  }
}

TEST_CASE("a hard link's other name keeps the old file") {
  const test::TempDir folder;
  write(folder / "f", "old");
  test::fs::create_hard_link(folder / "f", folder / "other");
  write(folder / "f", "new");
  CHECK(test::read_text(folder / "other") == "old");
  CHECK(test::read_text(folder / "f") == "new");
}

TEST_CASE("errors name the path, keep the number and leave nothing") {
  const test::TempDir folder;
  const Error missing = write_error(folder / "no/f", "x");
  CHECK(missing.code() == ErrorCode::kIo);
  CHECK(missing.os_error() == ENOENT);
  CHECK(std::string(missing.what()).ends_with("at path \"" + (folder / "no/f").string() + "\""));
  test::fs::create_directory(folder / "d");
  CHECK(write_error(folder / "d", "x").os_error() == EISDIR);
  CHECK(write_error(folder / "d", "x").code() == ErrorCode::kNotRegularFile);
  CHECK(write_error("", "x").os_error() == ENOENT);
  CHECK(folder.count() == 1);
}

TEST_CASE("writing to a full device is an error") {
  if (!test::fs::exists("/dev/full")) {
    MESSAGE("skipped: no /dev/full");
    return;
  }
  CHECK(write_error("/dev/full", "x").os_error() == ENOSPC);
  CHECK(write_error("/dev/full", std::string(1 << 20, 'x')).os_error() == ENOSPC);
  CHECK(test::fs::is_character_file("/dev/full"));
}

#if defined(__linux__)
TEST_CASE("a full disk leaves the old file and no temporary") {
  const test::TempDir folder;
  if (::geteuid() != 0 || ::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
    MESSAGE("skipped: nothing can be mounted here");
    return;
  }
  write(folder / "f", "old");
  CHECK(write_error(folder / "f", std::string(3 << 20, 'x')).os_error() == ENOSPC);
  CHECK(test::read_text(folder / "f") == "old");
  CHECK(folder.count() == 1);
  CHECK(write_error(folder / "g", std::string(3 << 20, 'x')).os_error() == ENOSPC);
  CHECK(folder.count() == 1);
  write(folder / "f", std::string(500'000, 'y'));
  CHECK(test::fs::file_size(folder / "f") == 500'000);
  CHECK(::umount(folder.path().c_str()) == 0);
}
#endif

TEST_CASE("a pipe is written to, not replaced") {
  const test::TempDir folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const std::string text = test::text_of(test::pattern(300'000));
  std::string got;
  std::thread reader([&] { got = test::read_text(folder / "pipe"); });
  write(folder / "pipe", text);
  reader.join();
  CHECK(got == text);
  CHECK(test::fs::is_fifo(folder / "pipe"));
  CHECK(folder.count() == 1);
}

#if defined(__linux__)
TEST_CASE("/proc/self/fd/N leads to the open pipe or file") {
  const std::string text = "text";
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  write("/proc/self/fd/" + std::to_string(ends[1]), text);
  ::close(ends[1]);
  char got[8] = {};
  CHECK(::read(ends[0], got, sizeof got) == 4);
  CHECK(std::string(got) == text);
  ::close(ends[0]);

  const test::TempDir folder;
  const int fd = ::open((folder / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(::write(fd, "longer text", 11) == 11);
  test::fs::remove(folder / "f");
  write("/proc/self/fd/" + std::to_string(fd), text);
  CHECK(::pread(fd, got, sizeof got, 0) == 4);
  CHECK(folder.count() == 0);
  ::close(fd);
}

TEST_CASE("a descriptor's name leads to its file after another took that file's path") {
  const test::TempDir folder;
  const auto open_file = [&] {
    return safetensors::io::Fd(::open((folder / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  };
  const auto text_at = [](int fd) {
    char text[16] = {};
    const ssize_t size = ::pread(fd, text, sizeof text, 0);
    return std::string(text, static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  };
  const auto name_of = [](int fd) { return "/proc/self/fd/" + std::to_string(fd); };
  SUBCASE("a file that is called as the system calls a removed one") {
    const safetensors::io::Fd fd = open_file();
    test::fs::remove(folder / "f");
    test::write_text(folder / "f (deleted)", "other");
    for (const char* text : {"text", "a longer text", "t"}) {
      write(name_of(fd.get()), text);
      CHECK(text_at(fd.get()) == text);
    }
    CHECK(test::read_text(folder / "f (deleted)") == "other");
    CHECK(folder.count() == 1);
  }
  SUBCASE("a file that was mounted over it") {
    const safetensors::io::Fd fd = open_file();
    test::write_text(folder / "g", "other");
    const int status = test::in_child([&] {
      if (::unshare(CLONE_NEWNS) != 0) return 1;
      if (::mount("none", "/", "none", MS_REC | MS_PRIVATE, nullptr) != 0) return 1;
      if (::mount((folder / "g").c_str(), (folder / "f").c_str(), "none", MS_BIND, nullptr) != 0)
        return 1;
      write(name_of(fd.get()), "text");
      return 0;
    });
    if (status == 1) {
      MESSAGE("skipped: nothing can be mounted here");
      return;
    }
    CHECK(status == 0);
    CHECK(text_at(fd.get()) == "text");
    CHECK(test::read_text(folder / "g") == "other");
    CHECK(folder.count() == 2);
  }
  SUBCASE("the file itself") {
    const safetensors::io::Fd fd = open_file();
    write(name_of(fd.get()), "text");
    CHECK(text_at(fd.get()) == "text");
    CHECK(test::read_text(folder / "f") == "text");
  }
}
#endif

TEST_CASE("an interrupt leaves the old file and no temporary") {
  const test::TempDir folder;
  write(folder / "f", "old");
  const std::string chunk(std::size_t{8} << 20, 'x');
  FileContent much;
  much.pieces.assign(64, test::bytes_of(chunk));
  much.total_nbytes = 64 * chunk.size();
  struct Stop {};
  const Interrupt stop = [] { throw Stop(); };
  const std::size_t before = test::open_descriptors();
  for (const char* name : {"f", "g"}) {
    CHECK_THROWS_AS(write_file(folder / name, much, {false, stop}), Stop);
    CHECK(folder.count() == 1);
  }
  CHECK(test::read_text(folder / "f") == "old");
  CHECK(test::open_descriptors() == before);
}

TEST_CASE("a file in a read-only folder is written in place") {
  if (!is_root()) return;
  const test::TempDir folder;
  test::fs::permissions(folder.path(), test::fs::perms(0755));
  write(folder / "open", "old, and longer than the new one");
  REQUIRE(::chmod((folder / "open").c_str(), 0666) == 0);
  write(folder / "closed", "old");
  const ino_t inode = test::stat_of(folder / "open").st_ino;
  const std::vector<std::string> texts = {"new"};
  const FileContent content = content_of(texts);
  CHECK(write_as_nobody(folder / "open", content) == "ok");
  CHECK(test::read_text(folder / "open") == "new");
  CHECK(test::stat_of(folder / "open").st_ino == inode);
  CHECK(write_as_nobody(folder / "closed", content) == std::to_string(EACCES));
  CHECK(test::read_text(folder / "closed") == "old");
  CHECK(write_as_nobody(folder / "fresh", content) == std::to_string(EACCES));
  CHECK(folder.count() == 2);
}

TEST_CASE("a file can be written in place while its new content is mapped from it") {
  if (!is_root()) return;
  const test::TempDir folder;
  test::fs::permissions(folder.path(), test::fs::perms(0755));
  const std::string old = test::text_of(test::pattern(300'000));
  write(folder / "f", old);
  REQUIRE(::chmod((folder / "f").c_str(), 0666) == 0);
  const auto mapping = safetensors::FileSource::open(folder / "f")->map();
  FileContent content;
  content.pieces = {mapping->bytes().subspan(100'000), test::bytes_of("--"),
                    mapping->bytes().first(100'000)};
  content.total_nbytes = 300'002;
  CHECK(write_as_nobody(folder / "f", content) == "ok");
  CHECK(test::read_text(folder / "f") == old.substr(100'000) + "--" + old.substr(0, 100'000));
}

namespace {

/// Saves to "f" of a folder and calls `exchange(temporary)` just before the renaming. Returns the
/// error's number.
template <typename Exchange>
int save_with(const test::TempDir& folder, const Exchange& exchange) {
  const auto sink = safetensors::make_file_sink(folder / "f", {}, {}, [&](const auto&) {
    for (const auto& entry : test::fs::directory_iterator(folder.path())) {
      if (entry.path().extension() == ".tmp") exchange(entry.path());
    }
  });
  return test::error_of([&] {
           const std::string text = "new";
           safetensors::detail::write_all(*sink, test::bytes_of(text), false);
         })
      .os_error();
}

}  // namespace

TEST_CASE("what another user puts in the place of a temporary file is not saved") {
  const test::TempDir folder;
  REQUIRE(::chmod(folder.path().c_str(), 0777) == 0);
  write(folder / "f", "old");
  test::write_text(folder / "thesis", "thesis");
  SUBCASE("a link") {
    CHECK(save_with(folder, [&](const test::fs::path& temporary) {
            test::fs::remove(temporary);
            test::fs::create_symlink("thesis", temporary);
          }) == ESTALE);
  }
  SUBCASE("a file") {
    CHECK(save_with(folder, [](const test::fs::path& temporary) {
            test::fs::remove(temporary);
            test::write_text(temporary, "planted");
          }) == ESTALE);
  }
  SUBCASE("nothing") {
    CHECK(save_with(folder, [](const test::fs::path& temporary) { test::fs::remove(temporary); }) ==
          ESTALE);
  }
  CHECK(test::read_text(folder / "f") == "old");
  CHECK(test::read_text(folder / "thesis") == "thesis");
}
