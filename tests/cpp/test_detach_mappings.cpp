// Overwriting a file in place while this process has it mapped.
#include <doctest/doctest.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/parse_integer.hpp"
#include "io/file_source.hpp"
#include "io/posix/detach_mappings.hpp"
#include "io/posix/fd.hpp"
#include "io/posix/procfs.hpp"
#include "io/system.hpp"
#include "posix_support.hpp"
#include "write_support.hpp"

using safetensors::Error;
using safetensors::FileSource;
using safetensors::io::detach_if_mapped;
using safetensors::io::detach_mappings;
using safetensors::io::Fd;
using safetensors::io::SharedMappings;
using test::FileContent;

namespace {

/// A file that can only be overwritten in place: it has been unlinked.
class NamelessFile {
 public:
  explicit NamelessFile(std::string_view text) : NamelessFile(test::TempDir() / "f", text) {}
  NamelessFile(const test::fs::path& path, std::string_view text) {
    test::fs::create_directories(path.parent_path());
    test::write_text(path, text);
    fd_ = Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    test::fs::remove(path);
    path_ = "/proc/self/fd/" + std::to_string(fd_.get());
  }

  [[nodiscard]] const test::fs::path& path() const { return path_; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::string text() const { return test::read_text(path_); }
  void write(const std::vector<std::span<const std::byte>>& pieces) const {
    FileContent content{pieces};
    for (const auto& piece : pieces) content.total_nbytes += piece.size();
    test::write_file(path_, content, {false, {}});
  }
  void write(std::string_view text) const { write({test::bytes_of(text)}); }

 private:
  Fd fd_;
  test::fs::path path_;
};

constexpr std::size_t kSize = 1'000'003;

/// Returns the rights of each mapping that overlaps this memory, from /proc/self/maps: of all, or
/// of those whose line has this text.
std::vector<std::string> rights_of(const void* memory, std::size_t nbytes,
                                   std::string_view text = {}) {
  using safetensors::parse_integer;
  const auto first = reinterpret_cast<std::uintptr_t>(memory);
  const auto maps = safetensors::io::read_kernel_file("/proc/self/maps");
  std::vector<std::string> rights;
  for (std::string_view rest = *maps; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.find(text) == std::string_view::npos) continue;
    const std::string_view range = safetensors::io::next_token(line);
    const std::size_t dash = std::min(range.find('-'), range.size() - 1);
    const auto begin = parse_integer<std::uintptr_t>(range.substr(0, dash), 16);
    const auto end = parse_integer<std::uintptr_t>(range.substr(dash + 1), 16);
    if (!begin || !end || *begin >= first + nbytes || *end <= first) continue;
    rights.emplace_back(safetensors::io::next_token(line));
  }
  return rights;
}

}  // namespace

TEST_CASE("tensors that are mapped keep their values while the file is overwritten in place") {
  const std::string old = test::text_of(test::pattern(kSize));
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kSize / 2, kSize, 2 * kSize}) {
    CAPTURE(size);
    const std::string text(size, 'n');
    const int status = test::in_child([&] {
      const NamelessFile file(old);
      const auto first = FileSource::open(file.path())->map();
      const auto second = FileSource::open(file.path())->map();
      first->bytes()[10] = std::byte{'!'};
      first->bytes().back() = std::byte{'!'};
      file.write(text);
      if (file.text() != text) return 1;
      if (test::text_of(second->bytes()) != old) return 2;
      std::string changed = old;
      changed[10] = changed.back() = '!';
      return test::text_of(first->bytes()) == changed ? 0 : 3;
    });
    CHECK(status == 0);
  }
}

TEST_CASE("content that is mapped from the file can be saved to it in place") {
  const std::string old = test::text_of(test::pattern(kSize));
  const NamelessFile file(old);
  const auto mapping = FileSource::open(file.path())->map();
  file.write(
      {mapping->bytes().subspan(100'000), test::bytes_of("--"), mapping->bytes().first(100'000)});
  CHECK(file.text() == old.substr(100'000) + "--" + old.substr(0, 100'000));
  CHECK(test::text_of(mapping->bytes()) == old);
}

TEST_CASE("a read-only mapping stays read-only") {
  const std::string old = test::text_of(test::pattern(kSize));
  const NamelessFile file(old);
  void* const data = ::mmap(nullptr, kSize, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  REQUIRE(data != MAP_FAILED);
  file.write("new");
  CHECK(std::string_view(static_cast<const char*>(data), kSize) == old);
  CHECK(rights_of(data, kSize) == std::vector<std::string>{"r--p"});
  ::munmap(data, kSize);
}

TEST_CASE("a long mapping is replaced while others read it, and remains one mapping") {
  constexpr std::size_t kLong = (std::size_t{200} << 20) + 1;
  const NamelessFile file("");
  REQUIRE(::ftruncate(file.fd(), kLong) == 0);
  for (std::size_t at = 0; at < kLong; at += std::size_t{1} << 20) {
    REQUIRE(::pwrite(file.fd(), "x", 1, static_cast<off_t>(at)) == 1);
  }
  const auto mapping = FileSource::open(file.path())->map();
  std::atomic<bool> is_done = false;
  std::atomic<int> wrong = 0;
  std::thread reader([&] {
    while (!is_done) {
      for (std::size_t at = 0; at < kLong; at += std::size_t{1} << 20) {
        if (mapping->bytes()[at] != std::byte{'x'}) ++wrong;
      }
    }
  });
  file.write("new");
  is_done = true;
  reader.join();
  CHECK(wrong == 0);
  CHECK(mapping->bytes().back() == std::byte{'x'});
  CHECK(rights_of(mapping->bytes().data(), kLong).size() <= 2);
}

TEST_CASE("a thread that writes to mapped memory loses few writes while it is replaced" *
          doctest::test_suite("timed")) {
  constexpr std::size_t kLong = std::size_t{100} << 20;
  const std::size_t step = safetensors::io::page_size();
  std::size_t least = kLong;  // of several tries: on a busy machine the threads may run in step
  for (int tries = 0; tries < 10 && least > kLong / step / 20; ++tries) {
    const NamelessFile file("");
    REQUIRE(::ftruncate(file.fd(), kLong) == 0);
    const auto mapping = FileSource::open(file.path())->map();
    std::vector<std::uint8_t> wanted(kLong / step);
    std::atomic<bool> is_done = false;
    std::atomic<int> rounds = 0;
    std::thread writer([&] {
      while (!is_done || rounds < 2) {
        for (std::size_t page = 0; page < wanted.size(); ++page) {
          // Volatile: each addition reads and writes memory.
          auto& byte = reinterpret_cast<volatile std::uint8_t&>(mapping->bytes()[page * step]);
          byte = static_cast<std::uint8_t>(byte + 1);
          ++wanted[page];
        }
        ++rounds;
      }
    });
    while (rounds < 1) std::this_thread::yield();
    detach_mappings(file.fd(), "f", {});
    is_done = true;
    writer.join();
    std::size_t lost = 0;
    for (std::size_t page = 0; page < wanted.size(); ++page)
      lost += mapping->bytes()[page * step] != std::byte{wanted[page]} ? 1U : 0U;
    least = std::min(least, lost);
  }
  CHECK(least <= kLong / step / 20);
}

TEST_CASE("mappings that other threads drop meanwhile are not replaced") {
  const std::string old = test::text_of(test::pattern(kSize));
  const NamelessFile file(old);
  std::vector<std::shared_ptr<const safetensors::MappedFile>> mappings;
  for (int i = 0; i < 200; ++i) mappings.push_back(FileSource::open(file.path())->map());
  // Each dropped mapping leaves a gap, which the next memory of its size is given.
  std::vector<std::byte*> reused;
  std::thread dropper([&] {
    for (std::size_t i = 0; i < mappings.size(); i += 2) {
      mappings[i].reset();
      void* const data =
          ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (data == MAP_FAILED) break;
      reused.push_back(static_cast<std::byte*>(data));
      std::fill_n(reused.back(), kSize, std::byte{'x'});
    }
  });
  detach_mappings(file.fd(), "f", {});
  dropper.join();
  REQUIRE(reused.size() == mappings.size() / 2);
  for (std::byte* const data : reused) {
    CHECK(std::count(data, data + kSize, std::byte{'x'}) == static_cast<std::ptrdiff_t>(kSize));
    ::munmap(data, kSize);
  }
  file.write("new");
  for (std::size_t i = 1; i < mappings.size(); i += 2) {
    CHECK(test::text_of(mappings[i]->bytes()) == old);
  }
}

TEST_CASE("by the path of a mapped file, and by a descriptor that is open only for writing") {
  const test::TempDir folder;
  const test::fs::path path = folder / "f";
  const std::string old = test::text_of(test::pattern(kSize));
  test::write_text(folder / "other", old);
  for (const bool by_path : {true, false}) {
    CAPTURE(by_path);
    test::write_text(path, old);
    const auto mapping = FileSource::open(path)->map();
    const auto pieces = [&] {
      return rights_of(mapping->bytes().data(), kSize, path.string()).size();
    };
    for (const char* const another : {"other", "none", "."}) detach_if_mapped(folder / another);
    CHECK(pieces() == 1);
    if (by_path) {
      detach_if_mapped(path);
    } else {
      const Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
      detach_mappings(fd.get(), path, {});
    }
    CHECK(pieces() == 0);
    test::write_text(path, "");
    CHECK(test::text_of(mapping->bytes()) == old);
  }
}

TEST_CASE("shared mappings may be kept, and private ones beside them are replaced") {
  const NamelessFile file("old text");
  void* const data = ::mmap(nullptr, 8, PROT_READ, MAP_SHARED, file.fd(), 0);
  REQUIRE(data != MAP_FAILED);
  const auto mapping = FileSource::open(file.path())->map();
  CHECK(test::error_of([&] { detach_mappings(file.fd(), "f", {}); }).os_error() == EBUSY);
  detach_mappings(file.fd(), "f", {}, SharedMappings::kKeep);
  REQUIRE(::pwrite(file.fd(), "new", 3, 0) == 3);
  CHECK(test::text_of(mapping->bytes()) == "old text");
  CHECK(std::string_view(static_cast<const char*>(data), 8) == "new text");
  ::munmap(data, 8);
}

TEST_CASE("pages that another program truncates while they are copied are an error") {
  constexpr std::size_t kLong = std::size_t{64} << 20;
  const NamelessFile file("");
  REQUIRE(::ftruncate(file.fd(), kLong) == 0);
  const int status = test::in_child([&] {  // touching such a page would end the process
    const auto mapping = FileSource::open(file.path())->map();
    std::atomic<bool> is_done = false;
    std::thread truncater([&] {
      while (!is_done) {
        if (::ftruncate(file.fd(), 1) != 0 || ::ftruncate(file.fd(), kLong) != 0) return;
      }
    });
    int result = 1;  // no error in all calls
    for (int i = 0; i < 50 && result == 1; ++i) {
      try {
        detach_mappings(file.fd(), "f", {});
      } catch (const Error& error) {
        result = error.os_error() == EFAULT ? 0 : 2;
      }
    }
    is_done = true;
    truncater.join();
    return result;
  });
  CHECK(status == 0);
}

TEST_CASE("copies that would take nearly all memory are refused, and nothing is replaced") {
  const NamelessFile file("text");
  const auto small = FileSource::open(file.path())->map();
  const auto half = static_cast<off_t>(safetensors::io::memory_available() / 100 * 49);
  REQUIRE(::ftruncate(file.fd(), half) == 0);  // without blocks
  const auto first = FileSource::open(file.path())->map();
  const auto second = FileSource::open(file.path())->map();
  CHECK(test::error_of([&] { file.write("new"); }).os_error() == ENOMEM);
  CHECK(test::fs::file_size(file.path()) == static_cast<std::uintmax_t>(half));
  REQUIRE(::pwrite(file.fd(), "next", 4, 0) == 4);
  for (const auto& mapping : {small, first, second}) {
    CHECK(test::text_of(mapping->bytes().first(4)) == "next");
  }
}

TEST_CASE("an interrupt ends the replacement between two mappings") {
  const NamelessFile file(test::text_of(test::pattern(kSize)));
  const auto first = FileSource::open(file.path())->map();
  const auto second = FileSource::open(file.path())->map();
  int calls = 0;
  CHECK_THROWS_AS(detach_mappings(file.fd(), "f", [&] { throw ++calls; }), int);
  CHECK(calls == 1);
  detach_mappings(file.fd(), "f", [&] { ++calls; });
  CHECK(calls == 2);
}

TEST_CASE("a shared mapping would change, so the file is not written") {
  const NamelessFile file("old text");
  for (const int protection : {PROT_READ, PROT_READ | PROT_WRITE}) {
    void* const data = ::mmap(nullptr, 8, protection, MAP_SHARED, file.fd(), 0);
    REQUIRE(data != MAP_FAILED);
    const Error error = test::error_of([&] { file.write("new"); });
    CHECK(error.os_error() == EBUSY);
    CHECK(std::string(error.what()).find(file.path().string()) != std::string::npos);
    CHECK(file.text() == "old text");
    ::munmap(data, 8);
  }
  file.write("new");
  CHECK(file.text() == "new");
}

TEST_CASE("pages that were truncated before do not prevent the save") {
  const std::string old = test::text_of(test::pattern(kSize));
  const NamelessFile file(old);
  const auto mapping = FileSource::open(file.path())->map();
  REQUIRE(::ftruncate(file.fd(), 100'000) == 0);
  file.write("new");
  CHECK(test::text_of(mapping->bytes().first(100'000)) == old.substr(0, 100'000));
}

#if !defined(TEST_SANITIZED)  // sanitizers need the address space
TEST_CASE("without memory to copy mapped tensors the file is not written") {
  constexpr std::size_t kLong = std::size_t{1} << 30;
  const NamelessFile file("");
  REQUIRE(::ftruncate(file.fd(), kLong) == 0);
  const auto mapping = FileSource::open(file.path())->map();
  const int status = test::in_child([&] {
    const rlimit most = {std::size_t{2} << 30, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_AS, &most) != 0) return 1;
    void* const more = ::mmap(nullptr, 3 * kLong, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more != MAP_FAILED) return 4;
    const Error error = test::error_of([&] { file.write("new"); });
    if (error.os_error() != ENOMEM) return 2;
    return mapping->bytes().back() == std::byte{0} ? 0 : 3;
  });
  if (status == 4) {
    MESSAGE("skipped: limits of memory have no effect here, as in emulators");
    return;
  }
  CHECK(status == 0);
  CHECK(test::fs::file_size(file.path()) == kLong);
}
#endif

TEST_CASE("files with equal inode numbers on different devices are different") {
  const test::TempDir folder;
  const int status = test::in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0) return 1;
    if (::mount("none", "/", "none", MS_REC | MS_PRIVATE, nullptr) != 0) return 1;
    for (const char* name : {"a", "b"}) {
      test::fs::create_directory(folder / name);
      if (::mount("tmpfs", (folder / name).c_str(), "tmpfs", 0, nullptr) != 0) return 1;
    }
    const NamelessFile file(folder / "a/f", "old text");
    const NamelessFile other(folder / "b/f", "old text");
    if (test::stat_of(file.path()).st_ino != test::stat_of(other.path()).st_ino) return 1;
    if (::mmap(nullptr, 8, PROT_READ, MAP_SHARED, other.fd(), 0) == MAP_FAILED) return 2;
    file.write("new");
    return test::outcome_of([&] { other.write("new"); }) == "kIo" ? 0 : 3;
  });
  if (status == 1) {
    MESSAGE("skipped: no two file systems with files of one number here");
    return;
  }
  CHECK(status == 0);
}

TEST_CASE("a file of an overlay file system is recognised by its mapping, not by stat") {
  const test::TempDir folder;
  const std::string old = test::text_of(test::pattern(kSize));
  const int status = test::in_child([&] {
    if (!test::mount_overlay(folder.path())) return 1;
    const NamelessFile file(folder / "all/f", old);
    const auto mapping = FileSource::open(file.path())->map();
    file.write("new");
    return test::text_of(mapping->bytes()) == old ? 0 : 2;
  });
  if (status == 1) {
    MESSAGE("skipped: layers cannot be mounted here");
    return;
  }
  CHECK(status == 0);
}
#endif
