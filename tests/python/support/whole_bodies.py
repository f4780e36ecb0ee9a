"""Modes of misbehaving.py that answer a request for a range with the whole file, badly."""

from support.misbehaving import MODES, mode
from support.servers import etag

__all__ = ["MODES"]


@mode
def whole_in_chunks(handler, request, content):
    """Status 200 and the whole file, in chunks: the header does not say how long it is."""
    headers = {"ETag": etag(content), "Transfer-Encoding": "chunked"}
    handler.head(200, headers)
    for at in range(0, len(content), 100_000):
        piece = content[at : at + 100_000]
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
    handler.wfile.write(b"0\r\n\r\n")


@mode
def chunks_are_cut(handler, request, content):
    """Status 200, and the end of the connection in the middle of a chunk."""
    handler.head(200, {"ETag": etag(content), "Transfer-Encoding": "chunked"})
    handler.wfile.write(b"%x\r\n%s" % (len(content), content[: len(content) // 2]))
    handler.close_connection = True


@mode
def whole_until_the_close(handler, request, content):
    """Status 200 and the whole file, which the end of the connection ends."""
    handler.head(200, {"ETag": etag(content), "Connection": "close"})
    handler.send(content, 0, len(content))
    handler.close_connection = True


@mode
def whole_is_cut(handler, request, content):
    """Status 200 and the first half of the file."""
    handler.head(200, {"ETag": etag(content), "Content-Length": str(len(content))})
    handler.send(content, 0, len(content) // 2)
    handler.close_connection = True
