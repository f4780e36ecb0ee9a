// Permissions of a file after another user has replaced it.
#include <doctest/doctest.h>
#include <grp.h>
#if defined(__linux__)
#include <sys/xattr.h>
#endif

#include <cerrno>
#include <string>
#include <vector>

#include "posix_support.hpp"
#include "write_support.hpp"

namespace {

/// A user and its groups.
struct User {
  uid_t uid;
  gid_t gid;
  std::vector<gid_t> groups = {};
};

constexpr gid_t kTeam = 2001;    // the old file's group
constexpr gid_t kStaff = 2002;   // the saver's own group
constexpr gid_t kGuests = 2003;  // named by access lists
constexpr uid_t kNamed = 1006;   // named by access lists

const User kOwner{1001, kTeam};
const User kColleague{1002, kStaff, {kTeam}};
const User kOutsider{1002, kStaff};

const std::vector<User> kOthers = {
    {1003, 2009, {kTeam}}, {1004, kStaff},          {1005, kStaff, {kTeam}},   {kNamed, 2009},
    {kNamed, kStaff},      {1007, 2009, {kGuests}}, {1007, kStaff, {kGuests}}, {1008, 2009}};

bool is_root() {
  if (::geteuid() == 0) return true;
  MESSAGE("skipped: only root can become another user");
  return false;
}

/// Runs `work` in a process of that user and returns its status.
template <typename Work>
int as_user(const User& user, const Work& work) {
  return test::in_child([&] {
    if (::setgroups(user.groups.size(), user.groups.data()) != 0) return 250;
    if (::setgid(user.gid) != 0 || ::setuid(user.uid) != 0) return 251;
    return work();
  });
}

void save_as(const User& user, const test::fs::path& path) {
  const int status = as_user(user, [&] {
    const std::string text = "new";
    test::FileContent content{{test::bytes_of(text)}, text.size()};
    test::write_file(path, content, {false, {}});
    return 0;
  });
  REQUIRE(status == 0);
  REQUIRE(test::read_text(path) == "new");
}

/// Returns the rights of that user on the file, as the bits of one digit of a mode.
int rights_of(const User& user, const test::fs::path& path) {
  return as_user(user, [&] {
    int rights = 0;
    for (const int right : {R_OK, W_OK, X_OK}) {
      if (::access(path.c_str(), right) == 0) rights |= right;
    }
    return rights;
  });
}

std::vector<int> rights_of_others(const test::fs::path& path) {
  std::vector<int> rights;
  for (const User& user : kOthers) rights.push_back(rights_of(user, path));
  return rights;
}

/// A directory in which every user may replace files.
class OpenFolder : public test::TempDir {
 public:
  OpenFolder() { REQUIRE(::chmod(path().c_str(), 0777) == 0); }

  /// Makes a file that belongs to kOwner.
  [[nodiscard]] test::fs::path file(mode_t mode) const {
    const test::fs::path path = *this / "f";
    test::fs::remove(path);
    test::write_text(path, "old");
    REQUIRE(::chown(path.c_str(), kOwner.uid, kOwner.gid) == 0);
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return path;
  }
};

}  // namespace

TEST_CASE("a saver of the file's group keeps group and mode") {
  if (!is_root()) return;
  const OpenFolder folder;
  for (const mode_t mode : {0640U, 0664U, 0604U, 0660U, 0444U}) {
    const test::fs::path path = folder.file(mode);
    save_as(kColleague, path);
    CHECK(test::stat_of(path).st_uid == kColleague.uid);
    CHECK(test::stat_of(path).st_gid == kTeam);
    CHECK(test::mode_of(path) == mode);
  }
}

TEST_CASE("if the group cannot be kept, group and others get the rights that both had") {
  if (!is_root()) return;
  const OpenFolder folder;
  const std::vector<std::pair<mode_t, mode_t>> modes = {{0640, 0600}, {0664, 0644}, {0604, 0600},
                                                        {0646, 0644}, {0666, 0666}, {0751, 0711}};
  for (const auto& [before, after] : modes) {
    const test::fs::path path = folder.file(before);
    save_as(kOutsider, path);
    CHECK(test::stat_of(path).st_gid == kStaff);
    CHECK(test::mode_of(path) == after);
  }
}

TEST_CASE("a change of owner or group clears setuid and setgid") {
  if (!is_root()) return;
  const OpenFolder folder;
  for (const User& saver : {kColleague, kOutsider}) {
    const test::fs::path path = folder.file(06755);
    save_as(saver, path);
    CHECK(test::mode_of(path) == 0755);
  }
}

#if defined(__linux__)
namespace {

constexpr const char* kAccess = "system.posix_acl_access";
constexpr const char* kDefault = "system.posix_acl_default";

/// An entry of an access list in the kernel's format: acl(5), little-endian.
struct Entry {
  std::uint16_t tag;
  std::uint16_t rights;
  std::uint32_t id = 0xFFFFFFFF;
};

enum Tag : std::uint16_t {
  kUserObj = 1,
  kUser = 2,
  kGroupObj = 4,
  kGroup = 8,
  kMask = 16,
  kOther = 32
};

std::string list_of(const std::vector<Entry>& entries) {
  std::string list;
  const auto put = [&](std::uint32_t number, int nbytes) {
    for (int i = 0; i < nbytes; ++i) list.push_back(static_cast<char>(number >> (8 * i)));
  };
  put(2, 4);  // the version
  for (const Entry& entry : entries) {
    put(entry.tag, 2);
    put(entry.rights, 2);
    put(entry.id, 4);
  }
  return list;
}

/// Returns a list with one entry for a named user.
std::string list_of(mode_t mode, const Entry& named) {
  const auto digit = [&](int place) { return static_cast<std::uint16_t>(mode >> place & 7U); };
  std::vector<Entry> entries = {
      {kUserObj, digit(6)}, {kGroupObj, digit(3)}, {kMask, 7}, {kOther, digit(0)}};
  entries.insert(entries.begin() + (named.tag == kUser ? 1 : 2), named);
  return list_of(entries);
}

bool set_list(const test::fs::path& path, const char* name, const std::string& list) {
  if (::setxattr(path.c_str(), name, list.data(), list.size(), 0) == 0) return true;
  REQUIRE(errno == ENOTSUP);
  MESSAGE("skipped: no access lists on this file system");
  return false;
}

/// Returns the access list; nothing if there is none.
std::string list_at(const test::fs::path& path) {
  char list[256];
  const ssize_t size = ::getxattr(path.c_str(), kAccess, list, sizeof list);
  return size < 0 ? std::string() : std::string(list, static_cast<std::size_t>(size));
}

const std::vector<Entry> kNamedEntries = {
    {kUser, 7, kNamed}, {kUser, 0, kNamed}, {kGroup, 6, kGuests}, {kGroup, 0, kGuests}};

}  // namespace

TEST_CASE(
    "an access list is kept with the group; if the group is lost, only the owner has rights") {
  if (!is_root()) return;
  const OpenFolder folder;
  for (const Entry& named : kNamedEntries) {
    const std::string list = list_of(0644, named);
    const test::fs::path path = folder.file(0644);
    if (!set_list(path, kAccess, list)) return;
    save_as(kColleague, path);
    CHECK(list_at(path) == list);
    CHECK(test::mode_of(path) == 0674);  // the group bits are the mask
    const test::fs::path lost = folder.file(0644);
    if (!set_list(lost, kAccess, list)) return;
    save_as(kOutsider, lost);
    CHECK(list_at(lost).empty());
    CHECK(test::mode_of(lost) == 0600);
  }
}

TEST_CASE("a replacement does not get the rights of the folder's default access list") {
  if (!is_root()) return;
  const OpenFolder folder;
  const test::fs::path before = folder.file(0640);
  if (!set_list(folder.path(), kDefault, list_of(0777, {kUser, 7, kNamed}))) return;
  CHECK(rights_of({kNamed, 2009}, before) == 0);
  save_as(kOwner, before);
  CHECK(rights_of({kNamed, 2009}, before) == 0);
  CHECK(list_at(before).empty());
  CHECK(test::mode_of(before) == 0640);
}

TEST_CASE("replacing a file gives nobody a right that they lacked") {
  if (!is_root()) return;
  const OpenFolder folder;
  for (const bool by_default : {false, true}) {
    if (by_default && !set_list(folder.path(), kDefault, list_of(0777, {kUser, 7, kNamed}))) return;
    for (const mode_t mode : {0640U, 0604U, 0646U, 0664U, 0600U, 0751U}) {
      for (std::size_t i = 0; i <= kNamedEntries.size(); ++i) {
        for (const User& saver : {kColleague, kOutsider}) {
          const test::fs::path path = folder.file(mode);
          if (by_default) (void)::removexattr(path.c_str(), kAccess);
          REQUIRE(::chmod(path.c_str(), mode) == 0);
          const bool has_list = i < kNamedEntries.size();
          if (has_list && !set_list(path, kAccess, list_of(mode, kNamedEntries[i]))) return;
          const std::vector<int> before = rights_of_others(path);
          save_as(saver, path);
          const std::vector<int> after = rights_of_others(path);
          for (std::size_t who = 0; who < kOthers.size(); ++who) {
            CAPTURE(mode);
            CAPTURE(i);
            CAPTURE(saver.groups.size());
            CAPTURE(by_default);
            CAPTURE(kOthers[who].uid);
            CAPTURE(kOthers[who].gid);
            CHECK((after[who] & ~before[who]) == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("other extended attributes are not kept") {
  const test::TempDir folder;
  const test::fs::path path = folder / "f";
  test::write_text(path, "old");
  if (::setxattr(path.c_str(), "user.note", "x", 1, 0) != 0) {
    MESSAGE("skipped: no extended attributes on this file system");
    return;
  }
  const std::string text = "new";
  test::write_file(path, {{test::bytes_of(text)}, text.size()}, {false, {}});
  CHECK(::getxattr(path.c_str(), "user.note", nullptr, 0) < 0);
  CHECK(errno == ENODATA);
}
#endif
