"""MisbehavingServer: a RangeServer that breaks one rule, its mode.

    with MisbehavingServer("body_short", {"/m.safetensors": content}, after=1) as server:

`after` requests are answered well first; then `times` are answered badly (None: all others). The
function of a mode answers one request badly; what it is called with is a Handler of servers.py,
the Request, and the content.
"""

import email.utils
import gzip
import time

from support.servers import MODIFIED, Answer, RangeServer, asked_range, etag, redirect, size_of

DRIP_SECONDS = 0.05
MODES = {}


class MisbehavingServer(RangeServer):
    """Serves `files` badly. `location`: where a redirecting mode leads; None: this file again."""

    def __init__(self, mode, files, *, after=0, times=None, location=None, **options):
        super().__init__(files, **options)
        self.mode = MODES[mode]
        self.after = after
        self.times = times
        self.location = location
        self.otherwise = None  # the mode of the other answers; None: good ones
        self.answered = 0

    def respond(self, handler, request):
        """Answers well or badly."""
        content = self.content(request)
        with self.lock:
            number = self.answered - self.after
            self.answered += 1
        is_bad = number >= 0 and (self.times is None or number < self.times)
        if not isinstance(content, Answer) and not is_bad and self.otherwise:
            self.otherwise(handler, request, content)
        elif isinstance(content, Answer) or not is_bad:
            super().respond(handler, request)
        else:
            self.mode(handler, request, content)


def mode(function):
    """Adds a function to MODES under its name."""
    MODES[function.__name__] = function
    return function


def span(request, content):
    """Returns (begin, end) of what the request asks for: the whole content without a range."""
    begin, end, _ = asked_range(request.range or "", size_of(content))
    return begin, end


def part(handler, request, content, **changes):
    """Sends the head of a good answer with some headers changed. Returns the range's ends."""
    begin, end = span(request, content)
    headers = {"ETag": etag(content), "Last-Modified": MODIFIED}
    headers |= {"Content-Length": str(end - begin)}
    if request.range:
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size_of(content)}"
    headers |= {name.replace("_", "-"): value for name, value in changes.items()}
    handler.head(206 if request.range else 200, headers)
    return begin, end


# Ranges


@mode
def ignores_ranges(handler, request, content):
    """Status 200 and the whole file."""
    handler.serve(request._replace(range=None), content)


@mode
def range_misnamed(handler, request, content):
    """The right bytes under a Content-Range that was not asked for."""
    begin, end = span(request, content)
    wrong = f"bytes {begin + 8}-{end + 7}/{size_of(content)}"
    handler.serve(request, content, Content_Range=wrong)


@mode
def range_shifted(handler, request, content):
    """Another range, eight bytes on (or back, at the end), and a Content-Range that says so."""
    begin, end = span(request, content)
    shift = 8 if end + 8 <= size_of(content) else -8 if begin >= 8 else 0
    begin, end = (begin + shift, end + shift) if shift else (begin + 8, end)
    shifted = request._replace(range=f"bytes={begin}-{end - 1}")
    handler.serve(shifted, content)


@mode
def range_shorter(handler, request, content):
    """Half of the range, and a Content-Range that says so."""
    begin, end = span(request, content)
    half = begin + max(1, (end - begin) // 2)
    handler.serve(request._replace(range=f"bytes={begin}-{half - 1}"), content)


@mode
def range_unnamed(handler, request, content):
    """Status 206 without a Content-Range."""
    handler.serve(request, content, Content_Range=None)


@mode
def range_malformed(handler, request, content):
    """A Content-Range that is none."""
    handler.serve(request, content, Content_Range="bytes x-y/z")


@mode
def total_unknown(handler, request, content):
    """A Content-Range without a total."""
    begin, end = span(request, content)
    handler.serve(request, content, Content_Range=f"bytes {begin}-{end - 1}/*")


@mode
def total_changes(handler, request, content):
    """A total that grows by one in each answer."""
    begin, end = span(request, content)
    total = size_of(content) + handler.owner.answered
    handler.serve(request, content, Content_Range=f"bytes {begin}-{end - 1}/{total}")


@mode
def total_huge(handler, request, content):
    """A total of 2^63 bytes."""
    begin, end = span(request, content)
    handler.serve(request, content, Content_Range=f"bytes {begin}-{end - 1}/{1 << 63}")


@mode
def range_multipart(handler, request, content):
    """A multipart/byteranges body, which answers requests for several ranges."""
    body = b"--x\r\nContent-Range: bytes 0-1/2\r\n\r\nab\r\n--x--\r\n"
    handler.answer(206, {"Content-Type": "multipart/byteranges; boundary=x"}, body)


# Bodies


@mode
def body_short(handler, request, content):
    """Half of the body, and then an orderly close."""
    begin, end = part(handler, request, content)
    handler.send(content, begin, begin + (end - begin) // 2)
    handler.close_connection = True


@mode
def body_reset(handler, request, content):
    """Half of the body, and then a reset."""
    begin, end = part(handler, request, content)
    handler.send(content, begin, begin + (end - begin) // 2)
    handler.reset()


@mode
def body_stalls(handler, request, content):
    """Half of the body, and then nothing, on an open connection."""
    begin, end = part(handler, request, content)
    handler.send(content, begin, begin + (end - begin) // 2)
    handler.owner.stopping.wait()
    handler.close_connection = True


@mode
def body_drips(handler, request, content):
    """A byte of the body now and then."""
    begin, end = part(handler, request, content)
    for at in range(begin, end):
        handler.send(content, at, at + 1)
        if handler.owner.stopping.wait(DRIP_SECONDS):
            break
    handler.close_connection = True


@mode
def body_endless(handler, request, content):
    """A body without a length that never ends."""
    begin, end = part(handler, request, content, Content_Length=None, Connection="close")
    handler.send(content, begin, end)
    while not handler.owner.stopping.is_set():
        handler.wfile.write(bytes(1 << 16))
    handler.close_connection = True


@mode
def body_endless_chunked(handler, request, content):
    """The same in chunks."""
    part(handler, request, content, Content_Length=None, Transfer_Encoding="chunked")
    while not handler.owner.stopping.is_set():
        handler.wfile.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
    handler.close_connection = True


@mode
def body_longer(handler, request, content):
    """A Content-Length, and a body, of eight bytes more than the range."""
    begin, end = span(request, content)
    part(handler, request, content, Content_Length=str(end - begin + 8))
    handler.send(content, begin, end)
    handler.send(b"\xee" * 8, 0, 8)


# Connections and heads


@mode
def silent(handler, request, content):
    """No answer, on an open connection."""
    handler.owner.stopping.wait()
    handler.close_connection = True


@mode
def closes(handler, request, content):
    """No answer, and a close."""
    handler.close_connection = True


@mode
def resets(handler, request, content):
    """No answer, and a reset."""
    handler.reset()


@mode
def garbage(handler, request, content):
    """An answer that is not HTTP."""
    handler.wfile.write(b"\x16\x03\x01 what is this\r\n\r\n")
    handler.close_connection = True


@mode
def head_drips(handler, request, content):
    """Headers that never end, one every now and then."""
    handler.wfile.write(b"HTTP/1.1 206 Partial Content\r\n")
    while not handler.owner.stopping.wait(DRIP_SECONDS):
        handler.wfile.write(b"X-More: and more\r\n")
    handler.close_connection = True


@mode
def head_endless(handler, request, content):
    """Headers that never end, as fast as they go."""
    handler.wfile.write(b"HTTP/1.1 206 Partial Content\r\n")
    while not handler.owner.stopping.is_set():
        handler.wfile.write(b"X-More: and more\r\n" * 1024)
    handler.close_connection = True


# Versions


@mode
def etag_changes(handler, request, content):
    """Another ETag in each answer; If-Match is ignored."""
    del handler.headers["If-Match"]
    handler.serve(request, content, ETag=f'"version-{handler.owner.answered}"')


@mode
def precondition_fails(handler, request, content):
    """Status 412."""
    handler.answer(412, {"ETag": '"by-now"'}, b"another version")


@mode
def replaced(handler, request, content):
    """Another file of the same size, by all the rules: its own ETag, If-Match obeyed."""
    handler.serve(request, other(content))


@mode
def replaced_ignoring_if_match(handler, request, content):
    """The same, but If-Match is ignored."""
    del handler.headers["If-Match"]
    handler.serve(request, other(content))


@mode
def replaced_without_etag(handler, request, content):
    """The same without an ETag: a new Last-Modified."""
    del handler.headers["If-Match"]
    later = email.utils.formatdate(1_800_000_000, usegmt=True)
    handler.serve(request, other(content), ETag=None, Last_Modified=later)


@mode
def replaced_weakly(handler, request, content):
    """The same with another weak ETag and the old Last-Modified."""
    handler.serve(request, other(content), ETag="W/" + etag(other(content)))


@mode
def no_etag(handler, request, content):
    """No ETag."""
    handler.serve(request, content, ETag=None)


@mode
def no_validators(handler, request, content):
    """Neither ETag nor Last-Modified."""
    handler.serve(request, content, ETag=None, Last_Modified=None)


@mode
def weak_etag(handler, request, content):
    """A weak ETag, which never matches If-Match."""
    if handler.headers.get("If-Match"):
        return handler.answer(412, {}, b"weak")
    return handler.serve(request, content, ETag="W/" + etag(content))


@mode
def modified_malformed(handler, request, content):
    """A Last-Modified that is no date."""
    handler.serve(request, content, Last_Modified="yesterday, about noon")


# Encodings


@mode
def gzipped(handler, request, content):
    """A compressed body, though the request says identity."""
    begin, end = span(request, content)
    body = gzip.compress(content[begin:end], 0)  # quickly
    part(handler, request, content, Content_Encoding="gzip", Content_Length=str(len(body)))
    handler.send(body, 0, len(body))


@mode
def gzip_claimed(handler, request, content):
    """A plain body that claims to be compressed."""
    handler.serve(request, content, Content_Encoding="gzip")


# Status codes


def _answers(name, status, headers=None):
    def answers(handler, request, content):
        computed = {key: value() for key, value in (headers or {}).items()}
        handler.answer(status, computed, b"<Error><Code>Refused</Code></Error>")

    MODES[name] = answers


def _in_a_second():
    return email.utils.formatdate(time.time() + 1, usegmt=True)


for _status in (400, 401, 403, 404, 405, 408, 410, 416, 429, 500, 501, 502, 503, 504):
    _answers(f"status_{_status}", _status)
_answers("retry_after_seconds", 503, {"Retry-After": lambda: "1"})
_answers("retry_after_date", 503, {"Retry-After": _in_a_second})
_answers("retry_after_years", 503, {"Retry-After": lambda: "99999999"})
_answers("retry_after_malformed", 503, {"Retry-After": lambda: "soon"})


# Redirects


@mode
def redirects(handler, request, content):
    """A redirect to `location`, or to this file again: a loop."""
    handler.answer(*redirect(handler.owner.location or request.path))


@mode
def redirects_growing(handler, request, content):
    """A redirect to another URL each time, without an end."""
    handler.answer(*redirect(f"{request.path}?again={handler.owner.answered}"))


@mode
def redirects_nowhere(handler, request, content):
    """A redirect without a Location."""
    handler.answer(302)


# Contents


HUGE = b'{"weight_map": {'.ljust(101_000_000)  # an index may have 100 MB


@mode
def huge(handler, request, content):
    """All of HUGE, whatever was asked for."""
    handler.head(200, {"Content-Length": str(len(HUGE)), "ETag": '"huge"'})
    handler.send(HUGE, 0, len(HUGE))


def other(content):
    """Returns bytes of the same size that differ everywhere from the content's."""
    return content.translate(bytes(byte ^ 0x55 for byte in range(256)))
