// Files whose names the library chose, beside another user who puts things in their way.
#include <doctest/doctest.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <string>
#include <vector>

#include "io/posix/own_file.hpp"
#include "posix_support.hpp"
#include "safetensors/detail/folder.hpp"

using safetensors::Error;
using safetensors::ErrorCode;
using safetensors::detail::Folder;
using safetensors::detail::OwnName;
using safetensors::detail::OwnPlace;

namespace {

constexpr uid_t kStranger = 65534;

std::span<const std::byte> bytes_of(const std::string& text) { return test::bytes_of(text); }

void write_own(const OwnPlace& place, const std::string& text, const OwnPlace* like = nullptr) {
  safetensors::detail::write_all(*safetensors::detail::make_own_sink(place, like), bytes_of(text),
                                 false);
}

/// A folder that any user may write to, as those of a group do.
struct SharedFolder {
  explicit SharedFolder(mode_t mode = 0777) {
    if (::chmod(temporary.path().c_str(), mode) != 0) throw std::runtime_error("chmod");
  }
  [[nodiscard]] test::fs::path operator/(const std::string& name) const {
    return temporary.path() / name;
  }
  test::TempDir temporary;
  Folder folder = Folder::open(temporary.path());
};

bool is_root() {
  if (::geteuid() == 0) return true;
  MESSAGE("skipped: only root can become another user");
  return false;
}

/// Gives a file, or a link itself, to another user.
void give_away(const test::fs::path& path) {
  if (::lchown(path.c_str(), kStranger, kStranger) != 0) throw std::runtime_error("lchown");
}

}  // namespace

TEST_CASE("a name is one name in a folder") {
  for (const char* text : {"a", "...", ".a", "..a", "a b", "a\\b", "\xFF"}) {
    CHECK(OwnName(text).text() == text);
  }
  using namespace std::string_literals;
  for (const std::string& text : {""s, "."s, ".."s, "/"s, "a/b"s, "../a"s, "a/"s, "a\0b"s}) {
    const Error error = test::error_of([&] { (void)OwnName(text); });
    CHECK(error.code() == ErrorCode::kInvalidArgument);
  }
  const std::string name = OwnName::random("model", "save").text();
  CHECK(name.size() == std::string(".model.0123456789abcdef.save").size());
  CHECK(name.starts_with(".model."));
  CHECK(name != OwnName::random("model", "save").text());
}

TEST_CASE("names that begin alike are told apart") {
  std::string of_two_bytes;
  for (int i = 0; i < 60; ++i) of_two_bytes += "\u00E4";
  std::set<std::string> stems;
  const std::vector<std::string> names = {std::string(118, 'n'), std::string(119, 'n'),
                                          std::string(118, 'n') + "m", of_two_bytes};
  for (const std::string& name : names) {
    const std::string stem = OwnName::stem_of(name);
    CHECK(stem.size() <= 117);
    CHECK(stem == OwnName::stem_of(name));
    const std::size_t digest = stem.rfind('~');
    CHECK(stem.size() - digest == 17);
    CHECK(name.starts_with(stem.substr(0, digest)));
    stems.insert(stem);
  }
  CHECK(stems.size() == names.size());
  CHECK(OwnName::stem_of(of_two_bytes).find('~') % 2 == 0);  // between characters
  CHECK(OwnName::stem_of(std::string(117, 'n')) == std::string(117, 'n'));
}

TEST_CASE("a name of its own is taken apart as it was made") {
  const std::string a_long(200, 'x');
  for (const std::string& stem : {std::string("m"), std::string("a.b"), std::string("."), a_long}) {
    const std::string name = OwnName::random(stem, "tmp").text();
    CAPTURE(name);
    CHECK(OwnName::stem_in(name, "tmp") == OwnName::stem_of(stem));
    CHECK(OwnName::is_shortened(OwnName::stem_in(name, "tmp")) == (stem == a_long));
    CHECK(OwnName::stem_in(name, "save").empty());
    CHECK(OwnName::stem_in(name, "mp").empty());
    CHECK(OwnName::stem_in(name + "x", "tmp").empty());
    CHECK(OwnName::stem_in(name.substr(1), "tmp").empty());
  }
  for (const std::string_view name :
       {"", ".", "..0123456789abcdef.tmp", ".m.0123456789abcde.tmp", ".m.0123456789abcdeF.tmp",
        ".m.0123456789abcdefg.tmp", ".m.0123456789abcdef.", ".m.0123456789abcdef", ".m.tmp",
        "m.0123456789abcdef.tmp", ".m-0123456789abcdef.tmp", ".m.0123456789abcdef-tmp"}) {
    CAPTURE(name);
    CHECK(OwnName::stem_in(name, "tmp").empty());
  }
  CHECK(OwnName::stem_in(".m.0123456789abcdef.tmp", "tmp") == "m");
  CHECK_FALSE(OwnName::is_shortened("model~0123456789abcde"));
  CHECK_FALSE(OwnName::is_shortened("model-0123456789abcdef"));
  CHECK(OwnName::is_shortened("model~0123456789abcdef"));
}

TEST_CASE("what has the name is replaced and not followed") {
  const SharedFolder shared;
  test::write_text(shared / "private", "thesis");
  const OwnPlace place{shared.folder, OwnName("sums")};
  test::fs::create_symlink("private", shared / "sums");
  write_own(place, "new");
  CHECK(test::read_text(shared / "private") == "thesis");
  CHECK_FALSE(test::fs::is_symlink(shared / "sums"));
  CHECK(test::read_text(shared / "sums") == "new");
  CHECK(shared.temporary.count() == 2);

  test::fs::remove(shared / "sums");
  REQUIRE(::mkfifo((shared / "sums").c_str(), 0600) == 0);
  write_own(place, "newer");
  CHECK(test::read_text(shared / "sums") == "newer");

  test::fs::remove(shared / "sums");
  test::fs::create_directory(shared / "sums");
  CHECK(test::error_of([&] { write_own(place, "x"); }).os_error() == EISDIR);
  CHECK(shared.temporary.count() == 2);
}

TEST_CASE("a new file has the rights of the file that it is about") {
  const SharedFolder shared;
  const test::Umask umask(0022);
  test::write_text(shared / "model", "");
  test::fs::create_symlink("model", shared / "link");
  const OwnPlace place{shared.folder, OwnName("sums")};
  for (const mode_t mode : {0600U, 0640U, 0644U}) {
    REQUIRE(::chmod((shared / "model").c_str(), mode) == 0);
    for (const char* like : {"model", "link"}) {
      const OwnPlace model{shared.folder, OwnName(like)};
      write_own(place, "x", &model);
      CHECK(test::mode_of(shared / "sums") == mode);
    }
  }
  const OwnPlace missing{shared.folder, OwnName("missing")};
  write_own(place, "x", &missing);
  CHECK(test::mode_of(shared / "sums") == 0644);
}

TEST_CASE("only regular files of this user are opened") {
  const SharedFolder shared;
  test::write_text(shared / "file", "x");
  test::fs::create_symlink("file", shared / "link");
  test::fs::create_directory(shared / "folder");
  REQUIRE(::mkfifo((shared / "pipe").c_str(), 0600) == 0);
  const auto open = [&](const char* name) {
    return shared.folder.open_file(OwnName(name), true, true);
  };
  CHECK(open("missing") == -1);
  const int fd = open("file");
  CHECK(fd >= 0);
  ::close(fd);
  for (const char* name : {"link", "folder", "pipe"}) {
    const Error error = test::error_of([&] { (void)open(name); });
    CHECK(error.code() == ErrorCode::kNotRegularFile);
    CHECK(error.path() == shared / name);
  }
  if (!is_root()) return;
  give_away(shared / "file");
  CHECK(test::error_of([&] { (void)open("file"); }).os_error() == EPERM);
  const int others = shared.folder.open_file(OwnName("file"), false, false);
  CHECK(others >= 0);
  ::close(others);
}

TEST_CASE("a file gets its size") {
  const SharedFolder shared;
  const OwnName name("f");
  test::write_text(shared / "f", "abcd");
  shared.folder.resize(name, 10000);
  CHECK(test::read_text(shared / "f") == "abcd" + std::string(9996, '\0'));
  shared.folder.resize(name, 2);
  CHECK(test::read_text(shared / "f") == "ab");
  CHECK(test::error_of([&] { shared.folder.resize(OwnName("g"), 1); }).os_error() == ENOENT);
  CHECK(test::error_of([&] { shared.folder.resize(name, ~std::uint64_t{0}); }).code() ==
        ErrorCode::kIo);
  test::fs::create_symlink("f", shared / "link");
  CHECK(test::error_of([&] { shared.folder.resize(OwnName("link"), 1); }).code() ==
        ErrorCode::kNotRegularFile);
  CHECK(test::read_text(shared / "f") == "ab");
}

TEST_CASE("a file that was exchanged is not removed") {
  const SharedFolder shared;
  test::write_text(shared / "a", "a");
  const int fd = shared.folder.open_file(OwnName("a"), true, true);
  test::fs::rename(shared / "a", shared / "b");
  test::write_text(shared / "a", "other");
  CHECK_FALSE(shared.folder.remove(OwnName("a"), fd));
  CHECK(shared.folder.remove(OwnName("b"), fd));
  CHECK_FALSE(shared.folder.remove(OwnName("b")));
  CHECK(test::read_text(shared / "a") == "other");
  ::close(fd);
}

TEST_CASE("no other user can enter a private folder") {
  const SharedFolder shared;
  const test::Umask umask(0000);
  const OwnPlace made = shared.folder.make_private("model", "save");
  CHECK(test::mode_of(shared / made.name.text()) == 0700);
  CHECK(shared.folder.open_private(made.name)->inode() == made.folder.inode());
  CHECK(shared.folder.open_private(made.name, made.folder.inode()));
  CHECK_FALSE(shared.folder.open_private(OwnName("missing")));
  const auto refused = [&](const char* name, std::uint64_t inode = 0) {
    return test::error_of([&] { (void)shared.folder.open_private(OwnName(name), inode); });
  };
  CHECK(refused(made.name.c_str(), made.folder.inode() + 1).code() == ErrorCode::kNotRegularFile);
  test::fs::create_symlink(made.name.text(), shared / "link");
  test::write_text(shared / "file", "");
  test::fs::create_directory(shared / "open");
  REQUIRE(::chmod((shared / "open").c_str(), 0701) == 0);
  for (const char* name : {"link", "file", "open"}) {
    CHECK(refused(name).code() == ErrorCode::kNotRegularFile);
  }
  if (is_root()) {
    REQUIRE(::chmod((shared / "open").c_str(), 0700) == 0);
    give_away(shared / "open");
    CHECK(refused("open").os_error() == EPERM);
    CHECK(std::string(refused("open").what()).find(safetensors::io::user_name(kStranger)) !=
          std::string::npos);
  }
}

TEST_CASE("parts are made under their names, and moved when they are complete") {
  const SharedFolder shared;
  test::write_text(shared / "thesis", "thesis");
  test::fs::create_symlink("thesis", shared / "model");
  const OwnPlace room = shared.folder.make_private("model", "save");
  const OwnPlace part{room.folder, OwnName("00001")};
  {
    const auto sink = safetensors::detail::make_part_sink(part, nullptr, {});
    CHECK(room.folder.status(part.name));
    CHECK(test::error_of([&] {
            (void)safetensors::detail::make_part_sink(part, nullptr, {});
          }).os_error() == EEXIST);
  }
  CHECK_FALSE(room.folder.status(part.name));
  test::fs::path seen;
  safetensors::detail::write_all(
      *safetensors::detail::make_part_sink(part, nullptr,
                                           [&](const test::fs::path& path) {
                                             seen = path;
                                             CHECK(test::read_text(path) == "shard");
                                           }),
      bytes_of("shard"), true);
  CHECK_FALSE(seen.empty());
  room.folder.move(part.name, {shared.folder, OwnName("model")});
  CHECK(test::read_text(shared / "model") == "shard");
  CHECK(test::read_text(shared / "thesis") == "thesis");
  write_own({room.folder, OwnName("left")}, "x");
  shared.folder.remove_private(room.name, room.folder);
  CHECK(shared.temporary.count() == 2);
}

TEST_CASE("a private folder that was moved away is still held") {
  const SharedFolder shared;
  const OwnPlace room = shared.folder.make_private("model", "save");
  test::fs::rename(shared / room.name.text(), shared / "elsewhere");
  test::fs::create_symlink("/", shared / room.name.text());
  write_own({room.folder, OwnName("part")}, "x");
  CHECK(test::read_text(shared / "elsewhere/part") == "x");
  room.folder.move(OwnName("part"), {shared.folder, OwnName("model")});
  CHECK(test::read_text(shared / "model") == "x");
}

TEST_CASE("rights are taken from another file") {
  const SharedFolder shared;
  test::write_text(shared / "old", "");
  REQUIRE(::chmod((shared / "old").c_str(), 0640) == 0);
  const OwnPlace room = shared.folder.make_private("model", "save");
  write_own({room.folder, OwnName("part")}, "x");
  room.folder.take_rights(OwnName("part"), {shared.folder, OwnName("missing")});
  room.folder.take_rights(OwnName("part"), {shared.folder, OwnName("old")});
  CHECK(test::mode_of(shared / room.name.text() / "part") == 0640);
}

TEST_CASE("names in a folder are listed") {
  const SharedFolder shared;
  for (const char* name : {"b", "a", ".hidden"}) test::write_text(shared / name, "");
  std::vector<std::string> names = shared.folder.names();
  std::ranges::sort(names);
  CHECK(names == std::vector<std::string>{".hidden", "a", "b"});
  CHECK(shared.folder.status(OwnName("a"))->nbytes == 0);
  CHECK_FALSE(shared.folder.status(OwnName("c")));
  shared.folder.flush();
}

TEST_CASE("who else may rename files in a folder is known") {
  CHECK_FALSE(SharedFolder(0700).folder.is_shared());
  CHECK_FALSE(SharedFolder(0755).folder.is_shared());
  CHECK_FALSE(SharedFolder(01777).folder.is_shared());
  CHECK(SharedFolder(0777).folder.is_shared());
  CHECK(SharedFolder(02775).folder.is_shared());
}

TEST_CASE("a link of another user, where others may make links, is not followed") {
  if (!is_root()) return;
  for (const mode_t mode : {0777U, 01777U, 02775U}) {
    const SharedFolder shared(mode);
    test::write_text(shared / "thesis", "thesis");
    test::fs::create_symlink("thesis", shared / "model");
    CHECK(safetensors::io::resolve(shared / "model").path() == shared / "thesis");
    give_away(shared / "model");
    const Error error = test::error_of([&] { (void)safetensors::io::resolve(shared / "model"); });
    CHECK(error.os_error() == EACCES);
    CHECK(std::string(error.what())
              .find("a symbolic link of another user, " + safetensors::io::user_name(kStranger)) !=
          std::string::npos);
  }
  // The folder's owner could write to the file's name in any case.
  const SharedFolder plain(0755);
  test::write_text(plain / "thesis", "thesis");
  test::fs::create_symlink("thesis", plain / "model");
  give_away(plain / "model");
  CHECK(safetensors::io::resolve(plain / "model").path() == plain / "thesis");
}

TEST_CASE("a file that is not wanted any more is discarded") {
  const SharedFolder shared(0755);
  const OwnPlace sums{shared.folder, OwnName("sums")};
  const auto commit = [&](const std::function<bool()>& is_wanted) {
    const auto sink = safetensors::detail::make_own_sink(sums, nullptr, is_wanted);
    safetensors::detail::write_all(*sink, bytes_of("new"), false);
  };
  const auto is_new = [&] { return test::read_text(shared / "sums") == "new"; };
  write_own(sums, "old");
  commit([] { return false; });  // before it has the name
  CHECK(test::read_text(shared / "sums") == "old");
  commit([&] { return !is_new(); });  // and after it
  CHECK(shared.folder.names().empty());
  // What somebody else has put under the name by then stays.
  commit([&] {
    if (!test::fs::exists(shared / "sums")) return true;
    write_own(sums, "another's");
    return false;
  });
  CHECK(test::read_text(shared / "sums") == "another's");
  commit([] { return true; });
  CHECK(is_new());
}

TEST_CASE("a path leads to a file until another one replaces it") {
  const SharedFolder shared(0755);
  test::write_text(shared / "a", "a");
  test::fs::create_symlink("a", shared / "link");
  const auto is_found = safetensors::detail::watch_file(shared / "a", shared / "link");
  CHECK(is_found());
  write_own({shared.folder, OwnName("b")}, "b");
  CHECK(is_found());
  write_own({shared.folder, OwnName("a")}, "b");
  CHECK_FALSE(is_found());
  test::fs::remove(shared / "a");
  CHECK_FALSE(is_found());
  CHECK(test::outcome_of(
            [&] { (void)safetensors::detail::watch_file(shared / "no", shared / "a"); }) == "kIo");
}
