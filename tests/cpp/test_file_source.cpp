#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "io/file_source.hpp"
#include "posix_support.hpp"

using safetensors::Error;
using safetensors::ErrorCode;
using safetensors::FileSource;
using safetensors::MappedFile;

namespace {

Error open_error(const test::fs::path& path) {
  return test::error_of([&] { (void)FileSource::open(path); });
}

}  // namespace

TEST_CASE("reads at any position, but not past the end") {
  const test::TempDir folder;
  test::write_text(folder / "f", "0123456789");
  const auto source = FileSource::open(folder / "f");
  CHECK(source->size() == 10);
  std::vector<std::byte> four(4);
  source->read_at(3, four);
  CHECK(test::text_of(four) == "3456");
  source->read_at(6, four);
  CHECK(test::text_of(four) == "6789");
  source->read_at(10, {});
  CHECK(test::outcome_of([&] { source->read_at(7, four); }) == "kInvalidArgument");
  CHECK(test::outcome_of([&] { source->read_at(11, {}); }) == "kInvalidArgument");
  CHECK(test::outcome_of([&] { source->read_at(UINT64_MAX - 1, four); }) == "kInvalidArgument");
}

TEST_CASE("an empty file") {
  const test::TempDir folder;
  test::write_text(folder / "f", "");
  const auto source = FileSource::open(folder / "f");
  CHECK(source->size() == 0);
  source->read_at(0, {});
}

TEST_CASE("files that are not regular are refused at once") {
  const test::TempDir folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(open_error(folder / "pipe").code() == ErrorCode::kNotRegularFile);

  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = folder / "socket";
  REQUIRE(name.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, name.c_str(), name.size());
  REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  CHECK(open_error(folder / "socket").code() == ErrorCode::kNotRegularFile);
  ::close(socket);

  for (const char* device : {"/dev/null", "/dev/zero"}) {
    CHECK(open_error(device).code() == ErrorCode::kNotRegularFile);
  }
  const Error directory = open_error(folder.path());
  CHECK(directory.code() == ErrorCode::kNotRegularFile);
  CHECK(directory.os_error() == EISDIR);
  test::fs::create_symlink(folder / "pipe", folder / "link");
  CHECK(open_error(folder / "link").code() == ErrorCode::kNotRegularFile);
}

TEST_CASE("system errors keep their number and name the file") {
  const test::TempDir folder;
  const Error missing = open_error(folder / "missing");
  CHECK(missing.code() == ErrorCode::kIo);
  CHECK(missing.os_error() == ENOENT);
  CHECK(std::string(missing.what()) ==
        "No such file or directory: " + (folder / "missing").string());
  CHECK(missing.path() == folder / "missing");
  test::write_text(folder / "f", "x");
  CHECK(open_error(folder / "f/below").os_error() == ENOTDIR);
  test::fs::create_symlink("loop", folder / "loop");
  CHECK(open_error(folder / "loop").os_error() == ELOOP);
  CHECK(open_error(folder / std::string(300, 'n')).os_error() == ENAMETOOLONG);
  CHECK(open_error("").os_error() == ENOENT);
  CHECK(std::string(open_error("").what()) == "No such file or directory: ");
}

TEST_CASE("a path that contains a NUL is refused, not cut there") {
  const test::TempDir folder;
  test::write_text(folder / "model", "0123456789");
  const std::string name = std::string("model") + '\0' + ".safetensors";
  const Error error = open_error(folder / name);
  CHECK(error.code() == ErrorCode::kInvalidArgument);
  CHECK(std::string(error.what()) ==
        "the path contains a NUL (in " + (folder / "model\\0.safetensors").string() + ")");
  CHECK(error.path() == folder / name);
}

#if defined(__linux__)
TEST_CASE("opening waits for the holder of a lease") {
  const test::TempDir folder;
  test::write_text(folder / "f", "0123456789");
  const int holder = ::open((folder / "f").c_str(), O_RDWR | O_CLOEXEC);
  const auto old = std::signal(SIGIO, SIG_IGN);     // asks for it back; by default ends the process
  if (::fcntl(holder, F_SETLEASE, F_WRLCK) == 0) {  // not every file system has leases
    std::atomic<bool> given_back = false;
    std::thread owner([&] {
      while (::fcntl(holder, F_GETLEASE) == F_WRLCK) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      given_back = true;
      (void)::fcntl(holder, F_SETLEASE, F_UNLCK);
    });
    CHECK(FileSource::open(folder / "f")->size() == 10);
    CHECK(given_back);
    owner.join();
  }
  (void)std::signal(SIGIO, old);
  ::close(holder);
}
#endif

TEST_CASE("a descriptor belongs to the caller") {
  const test::TempDir folder;
  test::write_text(folder / "f", "0123456789");
  const int fd = ::open((folder / "f").c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  REQUIRE(::lseek(fd, 7, SEEK_SET) == 7);
  {
    const auto source = FileSource::duplicate(fd, "label");
    std::vector<std::byte> two(2);
    source->read_at(1, two);
    CHECK(test::text_of(two) == "12");
  }
  CHECK(::lseek(fd, 0, SEEK_CUR) == 7);
  CHECK(::close(fd) == 0);
  const Error bad = test::error_of([&] { (void)FileSource::duplicate(fd, "label"); });
  CHECK(bad.code() == ErrorCode::kIo);
  CHECK(bad.os_error() == EBADF);
  CHECK(std::string(bad.what()).find("label") != std::string::npos);
}

TEST_CASE("descriptors that are not readable files are refused") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  CHECK(test::outcome_of([&] { (void)FileSource::duplicate(ends[0], "p"); }) == "kNotRegularFile");
  ::close(ends[0]);
  ::close(ends[1]);
  const test::TempDir folder;
  const int fd = ::open((folder / "f").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(::ftruncate(fd, 10) == 0);
  const auto source = FileSource::duplicate(fd, "w");
  std::vector<std::byte> byte(1);
  CHECK(test::error_of([&] { source->read_at(0, byte); }).os_error() == EBADF);
  CHECK(test::error_of([&] { (void)source->map(); }).os_error() == EACCES);
  ::close(fd);
}

TEST_CASE("the descriptor is closed by exec and after every error") {
  const test::TempDir folder;
  test::write_text(folder / "f", "0123456789");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const std::size_t before = test::open_descriptors();
  {
    const int next = ::dup(0);  // the lowest free number, which the source will get
    ::close(next);
    const auto source = FileSource::open(folder / "f");
    CHECK((::fcntl(next, F_GETFD) & FD_CLOEXEC) != 0);
    const auto again = FileSource::duplicate(next, "again");
    CHECK(test::open_descriptors() == before + 2);
    std::vector<std::byte> more(11);
    CHECK(test::outcome_of([&] { source->read_at(0, more); }) != "ok");
  }
  CHECK(test::open_descriptors() == before);
  for (const char* name : {"missing", "pipe", "."}) {
    CHECK(test::outcome_of([&] { (void)FileSource::open(folder / name); }) != "ok");
  }
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  CHECK(test::outcome_of([&] { (void)FileSource::duplicate(ends[0], "p"); }) != "ok");
  ::close(ends[0]);
  ::close(ends[1]);
  CHECK(test::open_descriptors() == before);
}

TEST_CASE("a file truncated after opening is noticed") {
  const test::TempDir folder;
  test::write_text(folder / "f", "0123456789");
  const auto source = FileSource::open(folder / "f");
  test::fs::resize_file(folder / "f", 4);
  std::vector<std::byte> bytes(4);
  source->read_at(0, bytes);
  CHECK(test::text_of(bytes) == "0123");
  const Error error = test::error_of([&] { source->read_at(2, bytes); });
  CHECK(error.code() == ErrorCode::kFileChanged);
  CHECK(std::string(error.what()).find("its size was 10: it ends at 4") != std::string::npos);
  CHECK(error.path() == folder / "f");
}

TEST_CASE("a mapping is private and writable, and outlives file and source") {
  const test::TempDir folder;
  test::write_text(folder / "f", "0123456789");
  std::shared_ptr<const MappedFile> mapping;
  const std::size_t before = test::open_descriptors();
  {
    const auto source = FileSource::open(folder / "f");
    mapping = source->map();
  }
  CHECK(test::open_descriptors() == before);
  REQUIRE(mapping);
  CHECK(test::text_of(mapping->bytes()) == "0123456789");
  mapping->bytes()[0] = std::byte{'x'};
  CHECK(test::text_of(mapping->bytes()) == "x123456789");
  CHECK(test::read_text(folder / "f") == "0123456789");
  test::fs::remove(folder / "f");
  CHECK(test::text_of(mapping->bytes()) == "x123456789");
}

TEST_CASE("two mappings of one file do not see each other's writes") {
  const test::TempDir folder;
  test::write_text(folder / "f", "0123456789");
  const auto source = FileSource::open(folder / "f");
  const auto first = source->map();
  const auto second = source->map();
  first->bytes()[3] = std::byte{'x'};
  CHECK(second->bytes()[3] == std::byte{'3'});
}

TEST_CASE("a sparse file larger than memory can be mapped") {
  if constexpr (sizeof(std::size_t) == 8) {
    const test::TempDir folder;
    test::write_text(folder / "f", "");
    std::error_code refused;
    test::fs::resize_file(folder / "f", std::uintmax_t{64} << 30, refused);
    if (refused) {
      MESSAGE("skipped: no sparse files here");
      return;
    }
    const auto mapping = FileSource::open(folder / "f")->map();
    if (!mapping) {
      MESSAGE("skipped: this system does not map more than it could keep");
      return;
    }
    CHECK(mapping->bytes().back() == std::byte{0});
  }
}

#if defined(__linux__)
TEST_CASE("a file of which less than half is in the page cache wants more readers") {
  const test::TempDir folder;
  for (const std::uint64_t mb : {8U, 200U}) {  // one that is counted as a whole, and one by samples
    for (const std::uint64_t cached : {std::uint64_t{0}, mb / 4, mb * 3 / 4, mb}) {
      test::write_text(folder / "f", "");
      test::fs::resize_file(folder / "f", mb << 20);
      const auto source = FileSource::open(folder / "f");
      if (source->cached_nbytes() != 0) {
        MESSAGE("skipped: new files are cached here, or the system does not say");
        return;
      }
      // In no order, so that the system does not read ahead.
      std::vector<std::byte> bytes(std::size_t{1} << 20);
      for (std::uint64_t i = cached; i-- > 0;) source->read_at(i << 20, bytes);
      CAPTURE(mb);
      CAPTURE(cached);
      CHECK(source->concurrency() == (cached < mb / 2 ? 8 : 0));
      test::fs::remove(folder / "f");
    }
  }
}

TEST_CASE("the page cache of an overlay file system is seen") {
  const test::TempDir folder;
  const int status = test::in_child([&] {
    if (!test::mount_overlay(folder.path())) return 1;
    test::write_text(folder / "all/f", std::string(std::size_t{8} << 20, 'x'));
    const auto source = FileSource::open(folder / "all/f");
    if (source->cached_nbytes() != source->size()) return 2;
    return source->concurrency() == 0 ? 0 : 3;
  });
  if (status == 1) {
    MESSAGE("skipped: layers cannot be mounted here");
    return;
  }
  CHECK(status == 0);
}
#endif
