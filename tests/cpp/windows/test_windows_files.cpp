// Differences of Windows: paths, sharing, error numbers, replacing a file that is in use.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <io.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/display_path.hpp"
#include "io/file_sink.hpp"
#include "io/file_source.hpp"
#include "io/os_error.hpp"
#include "io/windows/handle.hpp"
#include "io/windows/open_file.hpp"
#include "io/windows/pending_deletes.hpp"
#include "safetensors/byte_sink.hpp"
#include "safetensors/error.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/save.hpp"
#include "safetensors/writer.hpp"
#include "write_support.hpp"

namespace {

namespace fs = std::filesystem;
using safetensors::Error;
using safetensors::ErrorCode;
using safetensors::FileSource;
using safetensors::FileWriter;
using safetensors::Interrupt;
namespace io = safetensors::io;

/// A directory of this test.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("safetensors_" + std::to_string(++count_))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] fs::path operator/(const fs::path& name) const { return path_ / name; }
  [[nodiscard]] std::ptrdiff_t file_count() const {
    return std::distance(fs::directory_iterator(path_), fs::directory_iterator());
  }

 private:
  static inline int count_ = 0;
  fs::path path_;
};

void write(const fs::path& path, std::string_view text) {
  const test::FileContent content{{std::as_bytes(std::span(text))}, text.size()};
  const Interrupt never;
  test::write_file(path, content, {false, never});
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string read(const fs::path& path) {
  const auto source = FileSource::open(path);
  std::vector<std::byte> bytes(static_cast<std::size_t>(source->size()));
  source->read_at(0, bytes);
  return text_of(bytes);
}

Error error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  FAIL("no error");
  return Error(ErrorCode::kIo, "");
}

io::Handle hold(const fs::path& path, DWORD share) {
  io::Handle handle = io::open_file(path, GENERIC_READ, share, OPEN_EXISTING);
  REQUIRE(handle.is_open());
  return handle;
}

}  // namespace

TEST_CASE("system errors become the errno that other systems give") {
  CHECK(io::errno_of(ERROR_SUCCESS) == 0);
  CHECK(io::errno_of(ERROR_FILE_NOT_FOUND) == ENOENT);
  CHECK(io::errno_of(ERROR_PATH_NOT_FOUND) == ENOENT);
  CHECK(io::errno_of(ERROR_SHARING_VIOLATION) == EACCES);
  CHECK(io::errno_of(ERROR_DISK_FULL) == ENOSPC);
  CHECK(io::errno_of(ERROR_WRITE_PROTECT) == EROFS);
  CHECK(io::errno_of(ERROR_IO_DEVICE) == EIO);
  CHECK(io::errno_of(0xdead) == EINVAL);
}

TEST_CASE("paths are made absolute, and verbatim only when they are long") {
  const std::wstring longer(300, L'x');
  CHECK(io::system_path(L"C:\\a\\..\\b/c") == L"C:\\b\\c");
  CHECK(io::system_path(L"C:\\" + longer) == L"\\\\?\\C:\\" + longer);
  CHECK(io::system_path(L"\\\\host\\share\\" + longer) == L"\\\\?\\UNC\\host\\share\\" + longer);
  CHECK(io::system_path(L"\\\\?\\C:\\a\\..\\b") == L"\\\\?\\C:\\a\\..\\b");
  CHECK(io::system_path(L"\\\\.\\pipe\\" + longer) == L"\\\\.\\pipe\\" + longer);
  CHECK(io::names_device(L"NUL"));
  CHECK(io::names_device(L"\\\\.\\pipe\\x"));
  CHECK_FALSE(io::names_device(L"C:\\NUL_\\x"));
}

TEST_CASE("a path longer than MAX_PATH is written and read") {
  const Folder folder;
  fs::path deep = folder / std::wstring(120, L'a');
  REQUIRE(::CreateDirectoryW(io::system_path(deep).c_str(), nullptr) != 0);
  deep /= std::wstring(120, L'b');
  REQUIRE(::CreateDirectoryW(io::system_path(deep).c_str(), nullptr) != 0);
  write(deep / "file", "text");
  CHECK(read(deep / "file") == "text");
  write(deep / "file", "other");
  CHECK(read(deep / "file") == "other");
  CHECK(::DeleteFileW(io::system_path(deep / "file").c_str()) != 0);
  CHECK(::RemoveDirectoryW(io::system_path(deep).c_str()) != 0);
}

TEST_CASE("error texts show any path as UTF-8") {
  CHECK(safetensors::display_path(L"C:\\\u00e9\\\u6a21") == "C:\\\xc3\xa9\\\xe6\xa8\xa1");
  const std::wstring half_pair = {L'a', wchar_t{0xd800}, L'b'};
  CHECK(safetensors::display_path(half_pair) ==
        "a\xef\xbf\xbd"
        "b");
  CHECK(safetensors::display_path(fs::path()).empty());
}

TEST_CASE("handles are not inherited") {
  const Folder folder;
  write(folder / "file", "text");
  const io::Handle handle = hold(folder / "file", io::kShareAll);
  DWORD flags = HANDLE_FLAG_INHERIT;
  REQUIRE(::GetHandleInformation(handle.get(), &flags) != 0);
  CHECK((flags & HANDLE_FLAG_INHERIT) == 0);
}

TEST_CASE("files that are not regular are refused when reading") {
  const Folder folder;
  CHECK(error_of([&] { (void)FileSource::open(folder / ""); }).os_error() == EISDIR);
  CHECK(error_of([&] { (void)FileSource::open(folder / ""); }).code() ==
        ErrorCode::kNotRegularFile);
  CHECK(error_of([&] { (void)FileSource::open("NUL"); }).code() == ErrorCode::kNotRegularFile);
  const wchar_t* const name = L"\\\\.\\pipe\\safetensors_read";
  const io::Handle pipe(
      ::CreateNamedPipeW(name, PIPE_ACCESS_DUPLEX, PIPE_TYPE_BYTE, 1, 4096, 4096, 0, nullptr));
  REQUIRE(pipe.is_open());
  const Error error = error_of([&] { (void)FileSource::open(name); });
  CHECK(error.code() == ErrorCode::kNotRegularFile);
  CHECK(std::string(error.what()).find("a named pipe") != std::string::npos);
}

TEST_CASE("a C run-time descriptor is taken over without moving its position") {
  const Folder folder;
  write(folder / "file", "0123456789");
  const int descriptor = ::_wopen((folder / "file").c_str(), _O_RDONLY | _O_BINARY);
  REQUIRE(descriptor >= 0);
  char first[2];
  REQUIRE(::_read(descriptor, first, 2) == 2);
  const auto source = FileSource::duplicate(descriptor, "label");
  CHECK(source->size() == 10);
  std::vector<std::byte> bytes(4);
  source->read_at(6, bytes);
  CHECK(text_of(bytes) == "6789");
  CHECK(::_telli64(descriptor) == 2);
  ::_close(descriptor);
  source->read_at(0, bytes);
  CHECK(text_of(bytes) == "0123");
  CHECK(text_of(source->map()->bytes()) == "0123456789");
  CHECK(error_of([] { (void)FileSource::duplicate(-1, "label"); }).os_error() == EBADF);
  CHECK(error_of([] { (void)FileSource::duplicate(5000, "label"); }).os_error() == EBADF);
}

TEST_CASE("a descriptor of a pipe is refused") {
  int ends[2];
  REQUIRE(::_pipe(ends, 4096, _O_BINARY) == 0);
  const Error error = error_of([&] { (void)FileSource::duplicate(ends[0], "label"); });
  CHECK(error.code() == ErrorCode::kNotRegularFile);
  ::_close(ends[0]);
  ::_close(ends[1]);
}

TEST_CASE("a file that is open for reading can be renamed and removed") {
  const Folder folder;
  write(folder / "file", "text");
  const auto source = FileSource::open(folder / "file");
  CHECK(::MoveFileExW((folder / "file").c_str(), (folder / "moved").c_str(), 0) != 0);
  CHECK(::DeleteFileW((folder / "moved").c_str()) != 0);
  std::vector<std::byte> bytes(4);
  source->read_at(0, bytes);
  CHECK(text_of(bytes) == "text");
}

TEST_CASE("a truncated file is noticed") {
  const Folder folder;
  write(folder / "file", "0123456789");
  const auto source = FileSource::open(folder / "file");
  fs::resize_file(folder / "file", 4);
  std::vector<std::byte> bytes(10);
  const Error error = error_of([&] { source->read_at(0, bytes); });
  CHECK(error.code() == ErrorCode::kFileChanged);
}

TEST_CASE("writing to a mapping changes neither the file nor other mappings") {
  const Folder folder;
  write(folder / "file", "text");
  const auto source = FileSource::open(folder / "file");
  const auto mapping = source->map();
  REQUIRE(mapping);
  std::memcpy(mapping->bytes().data(), "TEXT", 4);
  CHECK(text_of(source->map()->bytes()) == "text");
  CHECK(read(folder / "file") == "text");
}

TEST_CASE("a file is replaced while it is open or mapped, and its mappings stay") {
  const Folder folder;
  write(folder / "file", "old");
  {
    const auto source = FileSource::open(folder / "file");
    const auto mapping = source->map();
    REQUIRE(mapping);
    write(folder / "file", "newer");
    CHECK(text_of(mapping->bytes()) == "old");
    CHECK(read(folder / "file") == "newer");
  }
  {
    const auto mapping = FileSource::open(folder / "file")->map();
    write(folder / "file", text_of(mapping->bytes()) + " still");
    CHECK(read(folder / "file") == "newer still");
  }
  {  // the mapping's end is what lets the file behind it be removed
    const auto mapping = FileSource::open(folder / "file")->map();
  }
  CHECK(folder.file_count() == 1);
}

TEST_CASE("a file that others opened without sharing is not replaced") {
  const Folder folder;
  write(folder / "file", "old");
  {
    const io::Handle held = hold(folder / "file", FILE_SHARE_READ | FILE_SHARE_WRITE);
    const Error error = error_of([&] { write(folder / "file", "new"); });
    CHECK(error.os_error() == EACCES);
    CHECK(std::string(error.what()).find("open or mapped elsewhere") != std::string::npos);
  }
  CHECK(read(folder / "file") == "old");
  CHECK(folder.file_count() == 1);
}

TEST_CASE("a read-only file is not replaced") {
  const Folder folder;
  const fs::path path = folder / "file";
  write(path, "old");
  REQUIRE(::SetFileAttributesW(path.c_str(), FILE_ATTRIBUTE_READONLY) != 0);
  CHECK(error_of([&] { write(path, "new"); }).os_error() == EACCES);
  CHECK(read(path) == "old");
  CHECK(folder.file_count() == 1);
  ::SetFileAttributesW(path.c_str(), FILE_ATTRIBUTE_NORMAL);
}

TEST_CASE("an interrupted write leaves the old file and nothing else") {
  const Folder folder;
  write(folder / "file", "old");
  struct Stop {};
  const Interrupt stop = [] { throw Stop(); };
  // One piece many times: the interrupt is looked at while it is written.
  const std::vector<std::byte> piece(std::size_t{4} << 20);
  const test::FileContent content{std::vector<std::span<const std::byte>>(128, piece),
                                  128 * piece.size()};
  CHECK_THROWS_AS(test::write_file(folder / "file", content, {false, stop}), Stop);
  CHECK(read(folder / "file") == "old");
  CHECK(folder.file_count() == 1);
}

TEST_CASE("writing to a folder, into a missing folder or below a file is refused") {
  const Folder folder;
  write(folder / "file", "text");
  CHECK(error_of([&] { write(folder / "", "x"); }).os_error() == EISDIR);
  CHECK(error_of([&] { write(folder / "none" / "x", "x"); }).os_error() == ENOENT);
  CHECK(error_of([&] { write(folder / "file" / "x", "x"); }).code() == ErrorCode::kIo);
  CHECK(folder.file_count() == 1);
}

TEST_CASE("pipes and devices are written to") {
  const wchar_t* const name = L"\\\\.\\pipe\\safetensors_write";
  const io::Handle pipe(
      ::CreateNamedPipeW(name, PIPE_ACCESS_INBOUND, PIPE_TYPE_BYTE, 1, 4096, 4096, 0, nullptr));
  REQUIRE(pipe.is_open());
  const std::string text(100'000, 'p');
  std::string got;
  std::thread reader([&] {
    ::ConnectNamedPipe(pipe.get(), nullptr);
    std::vector<char> part(4096);
    DWORD count = 0;
    while (::ReadFile(pipe.get(), part.data(), 4096, &count, nullptr) != 0) {
      got.append(part.data(), count);
    }
  });
  write(name, text);
  reader.join();
  CHECK(got == text);
  write("NUL", text);
}

TEST_CASE("tensors are written out of order, by several threads") {
  const Folder folder;
  write(folder / "file", "old");
  std::vector<std::string> names;
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < 40; ++i) {
    names.push_back("tensor " + std::to_string(i));
    texts.emplace_back(i % 2 == 0 ? 100'000 + i : 10 + i, static_cast<char>('a' + i % 26));
  }
  std::vector<std::vector<std::uint64_t>> shapes;
  for (const std::string& text : texts) shapes.push_back({text.size()});
  std::vector<safetensors::TensorSpec> specs;
  for (std::size_t i = 0; i < names.size(); ++i) specs.push_back({names[i], shapes[i]});
  FileWriter writer(safetensors::make_file_sink(folder / "file"), safetensors::plan_file(specs));
  {
    std::vector<std::thread> threads;
    for (std::size_t first = 0; first < 4; ++first) {
      threads.emplace_back([&, first] {
        for (std::size_t i = first; i < texts.size(); i += 4) writer.write(i, bytes_of(texts[i]));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(read(folder / "file") == "old");
  writer.commit();
  const safetensors::SafeOpen file(folder / "file");
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto view = file.get_tensor(names[i]);
    CHECK(text_of(view.bytes()) == texts[i]);
  }
  CHECK(folder.file_count() == 1);
}

TEST_CASE("a header that outgrows its room moves the data") {
  const Folder folder;
  FileWriter writer(safetensors::make_file_sink(folder / "file"), nullptr, {.header_room = 4096});
  const std::string text(1000, 'x');
  const std::vector<std::uint64_t> shape = {text.size()};
  for (std::size_t i = 0; i < 2000; ++i) {
    writer.write(writer.add({"tensor " + std::to_string(i), shape}), bytes_of(text));
  }
  writer.commit();
  const safetensors::SafeOpen file(folder / "file");
  CHECK(file.header().size() == 2000);
  CHECK(file.data_offset() > 4096);
  for (const auto& tensor : file.header().tensors()) {
    const auto view = file.get_tensor(tensor.name);
    CHECK(text_of(view.bytes()) == text);
  }
}

TEST_CASE("a descriptor is written from its position on, and cut back after a failure") {
  const Folder folder;
  write(folder / "file", "before");
  const int descriptor = ::_wopen((folder / "file").c_str(), _O_RDWR | _O_BINARY);
  REQUIRE(descriptor >= 0);
  REQUIRE(::_lseeki64(descriptor, 0, SEEK_END) == 6);
  const std::string text(100'000, 'x');
  const std::vector<std::uint64_t> shape = {text.size()};
  const std::vector<safetensors::TensorSpec> specs = {{"t", shape}};
  const auto plan = safetensors::plan_file(specs);
  {
    FileWriter writer(safetensors::make_descriptor_sink(descriptor, "label"), plan);
    writer.write(0, bytes_of(text));
  }
  CHECK(read(folder / "file") == "before");
  CHECK(::_telli64(descriptor) == 6);
  FileWriter writer(safetensors::make_descriptor_sink(descriptor, "label"), plan);
  writer.write(0, bytes_of(text));
  writer.commit();
  CHECK(::_telli64(descriptor) == static_cast<std::int64_t>(6 + plan.total_nbytes));
  ::_close(descriptor);
  const std::string found = read(folder / "file");
  CHECK(found.substr(0, 6) == "before");
  CHECK(found.substr(6 + plan.prologue.size()) == text);
  CHECK(error_of([] { (void)safetensors::make_descriptor_sink(-1, "label"); }).os_error() == EBADF);
}

TEST_CASE("a descriptor of a pipe is written in order") {
  int ends[2];
  REQUIRE(::_pipe(ends, 1 << 16, _O_BINARY) == 0);
  const auto sink = safetensors::make_descriptor_sink(ends[1], "pipe");
  CHECK_FALSE(sink->seeks());
  CHECK(sink->write_at(0, bytes_of("text")) == 4);
  sink->commit(4, false);
  char got[4];
  REQUIRE(::_read(ends[0], got, 4) == 4);
  CHECK(std::string(got, 4) == "text");
  ::_close(ends[0]);
  ::_close(ends[1]);
}

TEST_CASE("a file is overwritten, unless it is mapped; a new one is removed after a failure") {
  const Folder folder;
  write(folder / "file", "old and longer");
  {
    const auto mapping = FileSource::open(folder / "file")->map();
    const Error error =
        error_of([&] { (void)io::make_overwriting_sink(folder / "file", Interrupt()); });
    CHECK(error.os_error() == EACCES);
    CHECK(text_of(mapping->bytes()) == "old and longer");
  }
  for (const char* const name : {"file", "new"}) {
    const auto sink = io::make_overwriting_sink(folder / name, Interrupt());
    CHECK(sink->write_at(3, bytes_of("er")) == 2);
    CHECK(sink->write_at(0, bytes_of("new")) == 3);
    sink->commit(5, true);
  }
  CHECK(read(folder / "file") == "newer");
  CHECK(read(folder / "new") == "newer");
  (void)io::make_overwriting_sink(folder / "third", Interrupt());
  CHECK_FALSE(fs::exists(folder / "third"));
  CHECK(folder.file_count() == 2);
}

TEST_CASE("a file that cannot be removed now is removed later") {
  const Folder folder;
  write(folder / "file", "text");
  {
    const io::Handle held = hold(folder / "file", FILE_SHARE_READ);
    io::delete_or_defer(folder / "file");
    io::delete_pending();
    CHECK(fs::exists(folder / "file"));
  }
  io::delete_pending();
  CHECK_FALSE(fs::exists(folder / "file"));
}
