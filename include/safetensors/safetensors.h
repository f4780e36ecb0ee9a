/* The C interface, in C99: for C programs, and for bindings from other languages.
 *
 *   safetensors_error error;
 *   safetensors_file *file;
 *   safetensors_tensor bias;
 *   if (safetensors_open("model.safetensors", SAFETENSORS_MMAP, &file, &error)) puts(error.text);
 *   if (safetensors_find(file, "h.4.ln_1.bias", SAFETENSORS_NUL_TERMINATED, &bias, &error))
 *     puts(error.text);
 *   ... bias.shape[0], (const float *)bias.data ...
 *   safetensors_close(file);
 *
 * Results: a function that can fail returns a code, 0 (SAFETENSORS_OK) on success. Its last
 * argument receives the error, and may be NULL. Other output arguments are set on success only. No
 * exception leaves a function.
 *
 * Codes: each function that can fail lists the codes that it returns. Any of them also returns
 * SAFETENSORS_INVALID_ARGUMENT for a NULL where a pointer is required, SAFETENSORS_OUT_OF_MEMORY
 * and SAFETENSORS_INTERNAL. "1 to 11" are the codes from SAFETENSORS_INVALID_HEADER_UTF8 to
 * SAFETENSORS_MISALIGNED_SLICE: the file is not a valid safetensors file.
 *
 * Untrusted input: all functions that open or read are safe for untrusted files, except that a
 * mapped file which another process truncates can end this process (see SAFETENSORS_PREAD).
 *
 * Thread safety: an open file never changes. All functions may be called from many threads at once,
 * also on one file, except that safetensors_close must be the last call on a file. Writers have
 * rules of their own (see safetensors_writer).
 *
 * Strings: UTF-8, with their size. JSON allows a NUL within a string, so use the size. Strings of
 * the library are also followed by a NUL, which the size does not include. In arguments:
 *   a size of 0                 the empty string; the pointer is not followed, and may be NULL
 *   SAFETENSORS_NUL_TERMINATED  the string ends before the first NUL
 * With any other size than 0, NULL is an error, and so is a size above PTRDIFF_MAX. Strings that
 * have no size, such as paths, are NUL-terminated, and must not be NULL.
 */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "safetensors/export.hpp" /* macros only */
#include "safetensors/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The size of a string argument that ends before its first NUL. */
#define SAFETENSORS_NUL_TERMINATED SIZE_MAX

/* Returns the SAFETENSORS_ABI_VERSION of the library at run time. A program that loads the library
 * itself compares it with the one that it was compiled with. */
SAFETENSORS_API uint32_t safetensors_abi_version(void);
/* Returns the SAFETENSORS_VERSION of the library at run time. */
SAFETENSORS_API const char* safetensors_version(void);

/* Error codes. Their values are stable: new codes are added at the end. */
enum {
  SAFETENSORS_OK = 0,
  SAFETENSORS_INVALID_HEADER_UTF8 = 1,   /* the header is not valid UTF-8 */
  SAFETENSORS_INVALID_HEADER_JSON = 2,   /* the header is not the JSON that the format requires */
  SAFETENSORS_HEADER_TOO_LARGE = 3,      /* the header is longer than 100 MB */
  SAFETENSORS_HEADER_TOO_SMALL = 4,      /* the file has fewer than the 8 bytes of the length */
  SAFETENSORS_INVALID_HEADER_LENGTH = 5, /* the header reaches past the end of the file */
  SAFETENSORS_DUPLICATE_NAME = 6,        /* a key occurs twice in one JSON object */
  SAFETENSORS_INVALID_OFFSET = 7,        /* byte ranges leave a gap, overlap, or are reversed */
  SAFETENSORS_INVALID_TENSOR_INFO = 8,   /* byte range, shape and dtype disagree */
  SAFETENSORS_INCOMPLETE_DATA = 9,       /* the data is shorter or longer than the tensors */
  SAFETENSORS_OVERFLOW = 10,             /* a size does not fit in 64 bits */
  SAFETENSORS_MISALIGNED_SLICE = 11,     /* a sub-byte dtype does not end on a byte boundary */
  SAFETENSORS_TENSOR_NOT_FOUND = 12,     /* there is no tensor with this name */
  SAFETENSORS_TOO_MANY_INDICES = 13,     /* more indices than dimensions, or two ellipses */
  SAFETENSORS_INDEX_OUT_OF_BOUNDS = 14,  /* an index is outside its dimension, or past the count */
  SAFETENSORS_INVALID_SLICE = 15,        /* a slice has a step below 1 */
  SAFETENSORS_INVALID_ARGUMENT = 16,     /* an argument is not allowed */
  SAFETENSORS_UNSUPPORTED_DTYPE = 17,    /* the function does not support the dtype */
  SAFETENSORS_NOT_REGULAR_FILE = 18,     /* a directory (os_error is EISDIR), pipe, socket or
                                            device */
  SAFETENSORS_IO = 19,                   /* the operating system reported an error: see os_error */
  SAFETENSORS_FILE_CHANGED = 20,         /* the file was truncated or changed after it was opened */
  SAFETENSORS_OUT_OF_MEMORY = 21,        /* memory could not be allocated */
  SAFETENSORS_DEVICE = 22,               /* a device or its driver failed; not used in C yet */
  SAFETENSORS_WRITTEN_TWICE = 23,        /* a tensor was written twice */
  SAFETENSORS_MISSING_TENSORS = 24,      /* a file was to be completed before all were written */
  SAFETENSORS_OUT_OF_ORDER = 25,         /* a sink that does not seek needs other tensors first */
  SAFETENSORS_WRITER_CLOSED = 26,        /* a writer that has failed or is closed */
  SAFETENSORS_INVALID_PATCH = 27,        /* a damaged patch; not used in C yet */
  SAFETENSORS_WRONG_BASE = 28,           /* a patch of another tensor; not used in C yet */
  SAFETENSORS_PATCH_APPLIED = 29,        /* a patch applied already; not used in C yet */
  SAFETENSORS_DAMAGED = 30,              /* bytes differ from the digest that they should have */
  SAFETENSORS_NO_MODEL = 31,             /* a folder without a model; not used in C yet */
  SAFETENSORS_SEVERAL_MODELS = 32,       /* a folder of several models; not used in C yet */
  SAFETENSORS_INCOMPLETE_MODEL = 33,     /* a numbered set without all its files; not used in C */
  SAFETENSORS_INTERNAL = -1              /* a bug in the library */
};
/* Returns the name of a code, such as "INVALID_OFFSET"; NULL if there is no such code. */
SAFETENSORS_API const char* safetensors_code_name(int32_t code);

/* An error. The caller owns it: the library keeps no reference to it. */
typedef struct safetensors_error {
  int32_t code;     /* what the function returned */
  int32_t os_error; /* errno if the operating system reported the error, else 0 */
  char text[1016];  /* one line that names the file or tensor at fault; NUL-terminated UTF-8,
                       truncated if it does not fit; empty on success */
} safetensors_error;

/* Element types. Their values are stable: new types are added at the end. */
enum {
  SAFETENSORS_U64 = 0,
  SAFETENSORS_I64 = 1,
  SAFETENSORS_F64 = 2,
  SAFETENSORS_C64 = 3, /* complex: two F32, real then imaginary */
  SAFETENSORS_F32 = 4,
  SAFETENSORS_U32 = 5,
  SAFETENSORS_I32 = 6,
  SAFETENSORS_BF16 = 7,
  SAFETENSORS_F16 = 8,
  SAFETENSORS_U16 = 9,
  SAFETENSORS_I16 = 10,
  SAFETENSORS_F8_E5M2FNUZ = 11,
  SAFETENSORS_F8_E4M3FNUZ = 12,
  SAFETENSORS_F8_E8M0 = 13,
  SAFETENSORS_F8_E4M3 = 14,
  SAFETENSORS_F8_E5M2 = 15,
  SAFETENSORS_I8 = 16,
  SAFETENSORS_U8 = 17,
  SAFETENSORS_F6_E3M2 = 18, /* 6 bits for each element, packed */
  SAFETENSORS_F6_E2M3 = 19, /* 6 bits for each element, packed */
  SAFETENSORS_F4 = 20,      /* 4 bits for each element: two in a byte, the first in the low half */
  SAFETENSORS_BOOL = 21     /* one byte for each element; files may hold bytes other than 0 and 1 */
};
/* Returns the name in a file's header, such as "F32"; NULL if there is no such dtype. */
SAFETENSORS_API const char* safetensors_dtype_name(int32_t dtype);
/* Returns the dtype with this NUL-terminated name; -1 if there is none. Case matters. */
SAFETENSORS_API int32_t safetensors_dtype_from_name(const char* name);
/* Returns the bits of one element: 4, 6, 8, 16, 32 or 64; 0 if there is no such dtype. */
SAFETENSORS_API uint32_t safetensors_dtype_bits(int32_t dtype);

/* An open file, or a header alone. */
typedef struct safetensors_file safetensors_file;

/* A tensor. Functions that read fill it in: its pointers then point into the open file, and are
 * valid until the file is closed. Functions that write take one that the caller fills in, and use
 * it during the call only.
 *
 * Functions that take a file and a tensor do not follow the tensor's pointers. They compare its
 * numbers with the file's header, so that no change to the struct can make them access other
 * memory. Functions that write do follow the pointers: `name`, `shape` and `data` must be as large
 * as the sizes say. */
typedef struct safetensors_tensor {
  const char* name;
  size_t name_size;
  const uint64_t* shape; /* `rank` sizes, one for each axis */
  size_t rank;           /* 0 for a scalar */
  const void* data;      /* `nbytes` bytes: little-endian, C order, of any alignment. NULL if they
                            are not in memory (SAFETENSORS_PREAD): use safetensors_read then */
  uint64_t nbytes;
  uint64_t begin; /* offset of the first byte in the data section; not used when writing */
  int32_t dtype;
} safetensors_tensor;

/* A key and its value in a file's metadata. */
typedef struct safetensors_item {
  const char* key;
  size_t key_size;
  const char* value;
  size_t value_size;
} safetensors_item;

/* How tensor bytes are brought into memory. */
enum {
  SAFETENSORS_MMAP = 0, /* mapped: each page is read when it is first touched. If the system refuses
                           to map the file, the same as SAFETENSORS_PREAD */
  SAFETENSORS_PREAD = 1 /* read by safetensors_read. Safe from the SIGBUS that touching a page
                           raises after another process has truncated the file */
};

/* Opens and validates a file: reads its header and no tensor data. `path` is UTF-8 on Windows, and
 * the bytes of the system's file name elsewhere. Close *file with safetensors_close.
 * Safe for untrusted input.
 * Codes: 1 to 11, NOT_REGULAR_FILE, IO, FILE_CHANGED, INVALID_ARGUMENT (no such backend). */
SAFETENSORS_API int32_t safetensors_open(const char* path, int32_t backend, safetensors_file** file,
                                         safetensors_error* error);
/* Opens the file behind a descriptor (on Windows: a C run-time descriptor), which the caller may
 * close after the call. `label` names the file in errors.
 * Safe for untrusted input.
 * Codes: those of safetensors_open. */
SAFETENSORS_API int32_t safetensors_open_descriptor(int descriptor, const char* label,
                                                    int32_t backend, safetensors_file** file,
                                                    safetensors_error* error);
/* Opens a whole file in memory, without a copy. The bytes must stay valid and unchanged until the
 * file is closed.
 * Safe for untrusted input.
 * Codes: 1 to 11. */
SAFETENSORS_API int32_t safetensors_open_memory(const void* bytes, size_t nbytes,
                                                safetensors_file** file, safetensors_error* error);
/* Sets *length to the length of the header that follows the first 8 bytes of a file, for programs
 * that read the header themselves. `start` holds these bytes, or more if available.
 * Safe for untrusted input.
 * Codes: HEADER_TOO_SMALL, HEADER_TOO_LARGE, INVALID_HEADER_LENGTH. */
SAFETENSORS_API int32_t safetensors_header_length(const void* start, size_t nbytes,
                                                  uint64_t file_nbytes, uint64_t* length,
                                                  safetensors_error* error);
/* Opens a header alone: its tensors have no bytes. `json` is what follows the 8 bytes in a file
 * with `data_nbytes` bytes of data. Keeps no reference to it.
 * Safe for untrusted input.
 * Codes: 1 to 11. */
SAFETENSORS_API int32_t safetensors_open_header(const void* json, size_t nbytes,
                                                uint64_t data_nbytes, safetensors_file** file,
                                                safetensors_error* error);
/* Frees a file and all memory that its tensors and metadata point to. Does nothing for NULL. */
SAFETENSORS_API void safetensors_close(safetensors_file* file);

/* Returns the length of the file's header in bytes, without the 8 bytes before it; 0 for NULL. */
SAFETENSORS_API uint64_t safetensors_header_nbytes(const safetensors_file* file);
/* Returns the offset of the data section in the file; 0 for NULL. The offset of a tensor's first
 * byte is safetensors_data_offset(file) + tensor.begin. */
SAFETENSORS_API uint64_t safetensors_data_offset(const safetensors_file* file);
/* Copies the header's JSON to `to` exactly as it is in the file: with padding spaces, nothing
 * decoded, no NUL at the end. `room`, the size of that memory, must be
 * safetensors_header_nbytes(file). The library does not keep the text: it reads it from the file
 * again. If another process has overwritten the file in place, the text may differ from the header
 * that was checked when the file was opened. After an error the contents of `to` are unspecified.
 * Codes: IO, FILE_CHANGED (the file has been truncated, or its header has another length now),
 * INVALID_ARGUMENT (another room, or a file of safetensors_open_header, which keeps no text). */
SAFETENSORS_API int32_t safetensors_header_json(const safetensors_file* file, char* to, size_t room,
                                                safetensors_error* error);

/* Returns the number of tensors; 0 for NULL. */
SAFETENSORS_API size_t safetensors_count(const safetensors_file* file);
/* Sets *tensor to tensor number `index`, in the order of their bytes in the file.
 * Codes: INDEX_OUT_OF_BOUNDS. */
SAFETENSORS_API int32_t safetensors_at(const safetensors_file* file, size_t index,
                                       safetensors_tensor* tensor, safetensors_error* error);
/* Sets *tensor to the tensor with this name.
 * Codes: TENSOR_NOT_FOUND. */
SAFETENSORS_API int32_t safetensors_find(const safetensors_file* file, const char* name,
                                         size_t name_size, safetensors_tensor* tensor,
                                         safetensors_error* error);

/* Returns the number of metadata items; 0 for NULL. */
SAFETENSORS_API size_t safetensors_metadata_count(const safetensors_file* file);
/* Sets *item to metadata item number `index`, in the header's order.
 * Codes: INDEX_OUT_OF_BOUNDS. */
SAFETENSORS_API int32_t safetensors_metadata_at(const safetensors_file* file, size_t index,
                                                safetensors_item* item, safetensors_error* error);
/* Returns the NUL-terminated value of a NUL-terminated metadata key; NULL if there is none. A value
 * may contain a NUL: safetensors_metadata_value gives its size. */
SAFETENSORS_API const char* safetensors_metadata_find(const safetensors_file* file,
                                                      const char* key);
/* Returns the value of a metadata key, followed by a NUL; NULL if there is none, or if an argument
 * is not allowed. Sets *value_size, unless value_size is NULL, to the value's size in bytes,
 * without that NUL. The value belongs to the file and is valid until the file is closed. */
SAFETENSORS_API const char* safetensors_metadata_value(const safetensors_file* file,
                                                       const char* key, size_t key_size,
                                                       size_t* value_size);

/* Copies a tensor's bytes to `to`, with several threads if there is enough to copy. `room`, the
 * size of that memory, must be tensor->nbytes. After an error the contents of `to` are unspecified.
 * Codes: IO, FILE_CHANGED, UNSUPPORTED_DTYPE (no such dtype), INVALID_ARGUMENT (another room, a
 * tensor outside the file's data, a header alone). */
SAFETENSORS_API int32_t safetensors_read(const safetensors_file* file,
                                         const safetensors_tensor* tensor, void* to, size_t room,
                                         safetensors_error* error);
/* Copies `count` tensors, which is faster than one by one: tensors[i] goes to to[i], which has
 * tensors[i].nbytes bytes.
 * Codes: those of safetensors_read. */
SAFETENSORS_API int32_t safetensors_read_many(const safetensors_file* file,
                                              const safetensors_tensor* tensors, void* const* to,
                                              size_t count, safetensors_error* error);

/* The kinds of index in an expression such as NumPy's t[3, :, 1:9:2, ..., None]. An expression is
 * an array of safetensors_index; axes without an index are selected completely. */
enum {
  SAFETENSORS_ALL = 0,      /* the whole axis */
  SAFETENSORS_ONE = 1,      /* element `start`; a negative one counts from the end. The result does
                               not have this axis */
  SAFETENSORS_RANGE = 2,    /* the elements from `start` to before `stop`, as in Python: negative
                               numbers count from the end, and both are clipped to the axis */
  SAFETENSORS_ELLIPSIS = 3, /* all axes that no other index selects */
  SAFETENSORS_NEW_AXIS = 4  /* a new axis of size 1 in the result */
};
#define SAFETENSORS_END INT64_MAX /* for `stop`: the end of the axis */
typedef struct safetensors_index {
  int32_t kind;
  int64_t start;
  int64_t stop;
  int64_t step; /* SAFETENSORS_RANGE: every step-th element; 0 means 1, less is an error */
} safetensors_index;

/* Sets *part to a part of a tensor. `tensor` is a whole tensor, as safetensors_at and
 * safetensors_find return it. The part's shape goes to `shape`, with room for tensor->rank +
 * index_count sizes. If the part's bytes are contiguous in the file, as those of rows are, `data`
 * points to them (where the file is in memory) and the part can be read and written like other
 * tensors. If they are not, as those of columns, `data` is NULL: use safetensors_read_slice. A part
 * cannot be sliced again. Codes: TOO_MANY_INDICES, INDEX_OUT_OF_BOUNDS, INVALID_SLICE,
 * MISALIGNED_SLICE, UNSUPPORTED_DTYPE (no such dtype), INVALID_TENSOR_INFO (a part of a tensor, or
 * a tensor that was changed), INVALID_ARGUMENT (a tensor outside the file's data, no such kind of
 * index). */
SAFETENSORS_API int32_t safetensors_slice(const safetensors_file* file,
                                          const safetensors_tensor* tensor,
                                          const safetensors_index* indices, size_t index_count,
                                          uint64_t* shape, safetensors_tensor* part,
                                          safetensors_error* error);
/* Copies a part of a tensor to `to`, in C order. `room`, the size of that memory, must be the
 * part's nbytes. If the file is not in memory, only the part is read. Codes: those of
 * safetensors_slice, IO, FILE_CHANGED, INVALID_ARGUMENT (another room, a header alone). */
SAFETENSORS_API int32_t safetensors_read_slice(const safetensors_file* file,
                                               const safetensors_tensor* tensor,
                                               const safetensors_index* indices, size_t index_count,
                                               void* to, size_t room, safetensors_error* error);

/* Flags of functions that write. */
enum {
  SAFETENSORS_FSYNC = 1, /* flush the file and its directory entry to the disk before returning */
  SAFETENSORS_BLOCKS = 2 /* safetensors_writer_create: place tensors so that file systems can share
                            their blocks between files (docs/format.md, "Blocks") */
};
/* Writes a file atomically: a temporary file in the same directory is renamed over `path`. The
 * tensors are sorted by dtype, then by name, so the order of `tensors` does not matter and the same
 * input gives the same bytes. If `metadata` is NULL the file has none. `flags` is 0 or
 * SAFETENSORS_FSYNC. Tensors of an open file can be passed on, if that file is mapped or in memory.
 * Codes: INVALID_TENSOR_INFO, OVERFLOW, MISALIGNED_SLICE, DUPLICATE_NAME (of a tensor or a metadata
 * key), UNSUPPORTED_DTYPE (no such dtype), HEADER_TOO_LARGE, IO, NOT_REGULAR_FILE (a directory, a
 * socket, a block device), INVALID_ARGUMENT (a text that is not UTF-8, unknown flags). */
SAFETENSORS_API int32_t safetensors_save(const char* path, const safetensors_tensor* tensors,
                                         size_t count, const safetensors_item* metadata,
                                         size_t metadata_count, uint32_t flags,
                                         safetensors_error* error);
/* Writes the bytes of a file to `to`, and sets *nbytes to their number. If `to` is NULL, only sets
 * *nbytes.
 * Codes: those of safetensors_save except IO and NOT_REGULAR_FILE; INVALID_ARGUMENT also if `room`
 * is less than *nbytes. */
SAFETENSORS_API int32_t safetensors_serialize(const safetensors_tensor* tensors, size_t count,
                                              const safetensors_item* metadata,
                                              size_t metadata_count, void* to, size_t room,
                                              uint64_t* nbytes, safetensors_error* error);

/* Writes a file tensor by tensor, for tensors that are never all in memory:
 *
 *   safetensors_writer *writer;
 *   if (safetensors_writer_create(path, tensors, count, NULL, 0, 0, &writer, &error)) ...
 *   if (safetensors_writer_write(writer, "weight", 6, bytes, nbytes, &error)) ...
 *   if (safetensors_writer_commit(writer, &error)) ...
 *   safetensors_writer_free(writer);
 *
 * Tensors may be written in any order, each once. If writing or copying fails (IO, FILE_CHANGED,
 * OUT_OF_MEMORY), all later calls but safetensors_writer_free return WRITER_CLOSED. After other
 * errors the writer is as it was before the call.
 *
 * Thread safety: several threads may write to one writer, and commit it, at once: one commit
 * completes the file, and none does while bytes are being written. safetensors_writer_free must be
 * called when all others have returned. A sink must not call a function of its writer. */
typedef struct safetensors_writer safetensors_writer;

/* Where the bytes of a file go. The functions of a writer call `write` on their own thread, while
 * they run. */
typedef struct safetensors_sink {
  void* context; /* what `write` gets as its first argument; the caller owns it */
  /* Writes all of these bytes. Returns 0, or the errno of a failure, which the function of the
   * writer reports as IO. If `seeks` is 0, each call continues where the last one ended. If not,
   * `offset` may be any, the first 8 bytes are written twice, and threads that write to one writer
   * may call it at once, for different ranges. */
  int32_t (*write)(void* context, uint64_t offset, const void* bytes, size_t nbytes);
  int32_t seeks; /* 1 if `write` takes any offset, else 0 */
} safetensors_sink;

/* Begins a file of these tensors, whose name, shape and dtype are used; `data`, `nbytes` and
 * `begin` are not. As safetensors_save, writes a temporary file in the same directory, which
 * safetensors_writer_commit renames over `path`. `flags` is 0, or SAFETENSORS_FSYNC,
 * SAFETENSORS_BLOCKS or both. Free *writer with safetensors_writer_free.
 * Codes: those of safetensors_save. */
SAFETENSORS_API int32_t safetensors_writer_create(const char* path,
                                                  const safetensors_tensor* tensors, size_t count,
                                                  const safetensors_item* metadata,
                                                  size_t metadata_count, uint32_t flags,
                                                  safetensors_writer** writer,
                                                  safetensors_error* error);
/* The same, to a sink, which is copied. If it does not seek, tensors that it needs later are kept
 * in memory, up to 256 MiB. `flags` is 0 or SAFETENSORS_BLOCKS. Codes: those of
 * safetensors_writer_create except NOT_REGULAR_FILE. */
SAFETENSORS_API int32_t safetensors_writer_create_sink(
    const safetensors_sink* sink, const safetensors_tensor* tensors, size_t count,
    const safetensors_item* metadata, size_t metadata_count, uint32_t flags,
    safetensors_writer** writer, safetensors_error* error);
/* Writes a whole tensor.
 * Codes: TENSOR_NOT_FOUND, INVALID_TENSOR_INFO (`nbytes` is not the tensor's size), WRITTEN_TWICE,
 * OUT_OF_ORDER (the sink needs others first, and 256 MiB are kept for it), WRITER_CLOSED, IO. */
SAFETENSORS_API int32_t safetensors_writer_write(safetensors_writer* writer, const char* name,
                                                 size_t name_size, const void* bytes, size_t nbytes,
                                                 safetensors_error* error);
/* Writes a part of a tensor, `begin` bytes after its start. Parts that overlap are not noticed
 * unless together they have more bytes than the tensor.
 * Codes: those of safetensors_writer_write, INVALID_ARGUMENT (the part reaches past the end). */
SAFETENSORS_API int32_t safetensors_writer_write_at(safetensors_writer* writer, const char* name,
                                                    size_t name_size, uint64_t begin,
                                                    const void* bytes, size_t nbytes,
                                                    safetensors_error* error);
/* Copies a whole tensor from an open file. Blocks are shared with that file if the file system can
 * do that. `tensor` is a tensor of the file, or a part that is contiguous in it, with the dtype and
 * size of the tensor `name`.
 * Codes: those of safetensors_writer_write, INVALID_TENSOR_INFO (another dtype), FILE_CHANGED,
 * UNSUPPORTED_DTYPE (no such dtype), INVALID_ARGUMENT (a tensor outside the file's data, a header
 * alone). */
SAFETENSORS_API int32_t safetensors_writer_copy(safetensors_writer* writer, const char* name,
                                                size_t name_size, const safetensors_file* file,
                                                const safetensors_tensor* tensor,
                                                safetensors_error* error);
/* Completes the file.
 * Codes: MISSING_TENSORS (the text names up to five, or says that another thread is writing; the
 * writer is as it was), WRITER_CLOSED, IO.
 */
SAFETENSORS_API int32_t safetensors_writer_commit(safetensors_writer* writer,
                                                  safetensors_error* error);
/* Frees a writer. Discards the file unless safetensors_writer_commit has completed it: then `path`
 * is as it was before. Does nothing for NULL. */
SAFETENSORS_API void safetensors_writer_free(safetensors_writer* writer);

#ifdef __cplusplus
}
#endif

#endif
