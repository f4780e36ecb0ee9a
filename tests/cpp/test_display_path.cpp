#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "base/display_path.hpp"

using safetensors::display_path;

namespace {

std::string converted(std::u16string_view text) { return safetensors::detail::utf8_of_utf16(text); }

}  // namespace

TEST_CASE("a NUL does not end the text of a path") {
  CHECK(display_path("dir/file") == "dir/file");
  CHECK(display_path(std::string("a\0b\0", 4)) == "a\\0b\\0");
  CHECK(display_path({}).empty());
}

TEST_CASE("UTF-16 becomes UTF-8 of one to four bytes") {
  CHECK(converted(u"C:\\a\u007f") == "C:\\a\x7f");
  CHECK(converted(u"\u0080\u07ff") == "\xc2\x80\xdf\xbf");
  CHECK(converted(u"\u0800\uffff") == "\xe0\xa0\x80\xef\xbf\xbf");
  CHECK(converted(u"\U00010000\U0010ffff") == "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf");
}

TEST_CASE("half of a surrogate pair becomes U+FFFD") {
  const std::string replaced = "\xef\xbf\xbd";
  for (const char16_t half : {u'\xd800', u'\xdbff', u'\xdc00', u'\xdfff'}) {
    CHECK(converted(std::u16string{half}) == replaced);
    CHECK(converted(std::u16string{u'a', half, u'b'}) == "a" + replaced + "b");
  }
  CHECK(converted(std::u16string{u'\xdc00', u'\xd800'}) == replaced + replaced);
  CHECK(converted(std::u16string{u'\xd800', u'\xd800', u'\xdc00'}) ==
        replaced + "\xf0\x90\x80\x80");
}
