/* The C interface: C99, and the base of bindings from other languages.
 *
 *   safetensors_error error;
 *   safetensors_file *file;
 *   safetensors_tensor bias;
 *   if (safetensors_open("model.safetensors", SAFETENSORS_MMAP, &file, &error)) puts(error.text);
 *   if (safetensors_find(file, "h.4.ln_1.bias", 0, &bias, &error)) puts(error.text);
 *   ... bias.shape[0], (const float *)bias.data ...
 *   safetensors_close(file);
 *
 * Results: functions that can fail return a code, 0 (SAFETENSORS_OK) for success, and take as
 * their last argument where the error goes, which may be NULL. What they give back by other
 * pointers is set on success only. No exception leaves them.
 *
 * Codes: each function that can fail lists the codes that it returns. Any of them also returns
 * SAFETENSORS_INVALID_ARGUMENT for a NULL where a pointer is needed, SAFETENSORS_OUT_OF_MEMORY and
 * SAFETENSORS_INTERNAL. "1 to 11" are the codes from SAFETENSORS_INVALID_HEADER_UTF8 to
 * SAFETENSORS_MISALIGNED_SLICE: the file is not a valid safetensors file.
 *
 * Threads: an open file never changes. All functions may be called from many threads at once,
 * also on one file; only safetensors_close must be the last call on its file.
 *
 * Texts: UTF-8. They come with their size, as JSON allows a NUL within them, and a NUL that is not
 * counted stands after them. Given to a function, a size of 0 means: up to the first NUL.
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

/* SAFETENSORS_ABI_VERSION of the library that runs. A program that loads the library itself
 * compares it with the one it was compiled with. */
SAFETENSORS_API uint32_t safetensors_abi_version(void);
/* SAFETENSORS_VERSION of the library that runs. */
SAFETENSORS_API const char* safetensors_version(void);

/* Codes. Their values are stable: new ones are added at the end. */
enum {
  SAFETENSORS_OK = 0,
  SAFETENSORS_INVALID_HEADER_UTF8 = 1,   /* the header is not valid UTF-8 */
  SAFETENSORS_INVALID_HEADER_JSON = 2,   /* it is not the JSON that the format prescribes */
  SAFETENSORS_HEADER_TOO_LARGE = 3,      /* its length is above the limit */
  SAFETENSORS_HEADER_TOO_SMALL = 4,      /* fewer than the 8 bytes of the header length */
  SAFETENSORS_INVALID_HEADER_LENGTH = 5, /* it reaches past the end of the file */
  SAFETENSORS_DUPLICATE_NAME = 6,        /* a key stands twice in one JSON object */
  SAFETENSORS_INVALID_OFFSET = 7,        /* bytes leave a hole, overlap, or run backwards */
  SAFETENSORS_INVALID_TENSOR_INFO = 8,   /* byte range, shape and dtype disagree */
  SAFETENSORS_INCOMPLETE_DATA = 9,       /* the data is shorter or longer than the tensors */
  SAFETENSORS_OVERFLOW = 10,             /* a size does not fit in 64 bits */
  SAFETENSORS_MISALIGNED_SLICE = 11,     /* a sub-byte dtype does not end on a byte boundary */
  SAFETENSORS_TENSOR_NOT_FOUND = 12,     /* no tensor of that name */
  SAFETENSORS_TOO_MANY_INDICES = 13,     /* more indices than dimensions, or two ellipses */
  SAFETENSORS_INDEX_OUT_OF_BOUNDS = 14,  /* an index outside its dimension, or past the count */
  SAFETENSORS_INVALID_SLICE = 15,        /* a slice step below 1 */
  SAFETENSORS_INVALID_ARGUMENT = 16,     /* an argument that the call cannot accept */
  SAFETENSORS_UNSUPPORTED_DTYPE = 17,    /* a dtype that the call cannot handle */
  SAFETENSORS_NOT_REGULAR_FILE = 18,     /* a directory (os_error is then EISDIR), pipe, socket or
                                            device */
  SAFETENSORS_IO = 19,                   /* the operating system refused: see os_error */
  SAFETENSORS_FILE_CHANGED = 20,         /* the file is shorter than when it was opened */
  SAFETENSORS_OUT_OF_MEMORY = 21,        /* memory could not be had */
  SAFETENSORS_DEVICE = 22,               /* a device or its driver refused: no function here yet */
  SAFETENSORS_INTERNAL = -1              /* a fault of the library */
};
/* The code's name, as "INVALID_OFFSET"; NULL when there is no such code. */
SAFETENSORS_API const char* safetensors_code_name(int32_t code);

/* What went wrong. Yours: the library keeps no reference to it. */
typedef struct safetensors_error {
  int32_t code;     /* what the function returned */
  int32_t os_error; /* errno when the operating system refused, else 0 */
  char text[1016];  /* one line that names the file or tensor at fault; NUL-terminated UTF-8, cut
                       short where it would not fit; empty on success */
} safetensors_error;

/* Element types. Their values are stable: new ones are added at the end. */
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
  SAFETENSORS_F6_E3M2 = 18, /* 6 bits an element, packed */
  SAFETENSORS_F6_E2M3 = 19, /* 6 bits an element, packed */
  SAFETENSORS_F4 = 20,      /* 4 bits an element, two to a byte, the first in the low half */
  SAFETENSORS_BOOL = 21     /* one byte an element; a file may hold other bytes than 0 and 1 */
};
/* The name in a file's header, as "F32"; NULL when there is no such dtype. */
SAFETENSORS_API const char* safetensors_dtype_name(int32_t dtype);
/* The dtype of a header name, NUL-terminated; -1 when there is none. Case matters. */
SAFETENSORS_API int32_t safetensors_dtype_from_name(const char* name);
/* Bits of one element: 4, 6, 8, 16, 32 or 64; 0 when there is no such dtype. */
SAFETENSORS_API uint32_t safetensors_dtype_bits(int32_t dtype);

/* An open file, or a header without one. */
typedef struct safetensors_file safetensors_file;

/* A tensor: of an open file, whose memory its pointers then lead to until the file is closed; or
 * one of yours to be written, of which only the call reads.
 *
 * Functions that take a file and a tensor follow none of the tensor's pointers. They compare its
 * numbers with the file's header, so that no change to the struct makes them touch other memory.
 * Functions that write take it as it is: `name`, `shape` and `data` must lead to what the sizes
 * say. */
typedef struct safetensors_tensor {
  const char* name;
  size_t name_size;
  const uint64_t* shape; /* `rank` sizes, one for each axis */
  size_t rank;           /* 0 for a scalar */
  const void* data;      /* `nbytes` bytes: little-endian, C order, not aligned. NULL when they are
                            not in memory (SAFETENSORS_PREAD, or a header alone): safetensors_read
                            fetches them */
  uint64_t nbytes;
  uint64_t begin; /* first byte, counted from the start of the file's data; not used in writing */
  int32_t dtype;
} safetensors_tensor;

/* A pair of texts in a file's metadata. */
typedef struct safetensors_item {
  const char* key;
  size_t key_size;
  const char* value;
  size_t value_size;
} safetensors_item;

/* How tensor bytes come into memory. */
enum {
  SAFETENSORS_MMAP = 0, /* the file's own pages: nothing is read until it is touched. Where the
                           system refuses a mapping, as SAFETENSORS_PREAD */
  SAFETENSORS_PREAD = 1 /* when safetensors_read asks for them. Safe from the SIGBUS that touching a
                           page raises after another process cut the file short */
};

/* Opens and validates a file: reads its header and no tensor data. `path` is UTF-8 on Windows, the
 * system's bytes elsewhere. Close what it gives by safetensors_close.
 * Codes: 1 to 11, NOT_REGULAR_FILE, IO, FILE_CHANGED, INVALID_ARGUMENT (no such backend). */
SAFETENSORS_API int32_t safetensors_open(const char* path, int32_t backend, safetensors_file** file,
                                         safetensors_error* error);
/* The same for an open descriptor (on Windows: a C run-time descriptor), which stays yours. `label`
 * names the file in errors.
 * Codes: those of safetensors_open. */
SAFETENSORS_API int32_t safetensors_open_descriptor(int descriptor, const char* label,
                                                    int32_t backend, safetensors_file** file,
                                                    safetensors_error* error);
/* The same for a whole file in memory, which must stay as it is until the file is closed.
 * Codes: 1 to 11. */
SAFETENSORS_API int32_t safetensors_open_memory(const void* bytes, size_t nbytes,
                                                safetensors_file** file, safetensors_error* error);
/* The length of the header that follows a file's first 8 bytes, for those who read it themselves.
 * `start` holds these bytes, or more if there are more.
 * Codes: HEADER_TOO_SMALL, HEADER_TOO_LARGE, INVALID_HEADER_LENGTH. */
SAFETENSORS_API int32_t safetensors_header_length(const void* start, size_t nbytes,
                                                  uint64_t file_nbytes, uint64_t* length,
                                                  safetensors_error* error);
/* A header alone: `json` is what follows the 8 bytes, of a file with `data_nbytes` bytes of data.
 * Keeps no reference to it. The tensors have no bytes.
 * Codes: 1 to 11. */
SAFETENSORS_API int32_t safetensors_open_header(const void* json, size_t nbytes,
                                                uint64_t data_nbytes, safetensors_file** file,
                                                safetensors_error* error);
/* Frees a file, and all memory that its tensors and metadata point to. Does nothing for NULL. */
SAFETENSORS_API void safetensors_close(safetensors_file* file);

/* The length of the file's header in bytes, without the 8 bytes before it; 0 for NULL. */
SAFETENSORS_API uint64_t safetensors_header_nbytes(const safetensors_file* file);
/* Where the data begins, in bytes from the start of the file; 0 for NULL. A tensor's first byte is
 * at safetensors_data_offset(file) + tensor.begin. */
SAFETENSORS_API uint64_t safetensors_data_offset(const safetensors_file* file);
/* Copies the header's JSON to your memory, as the file has it: with the spaces that pad it, nothing
 * decoded, no NUL after it. `room` is the size of that memory, which must be
 * safetensors_header_nbytes(file).
 * The library does not keep the text: a file on disk is read again. If another process has
 * overwritten it in place since it was opened, the text may differ from what was checked then.
 * After an error the contents of `to` are unspecified. Codes: IO, FILE_CHANGED (cut short, or a
 * header of another length by now), INVALID_ARGUMENT (another room, or a file of
 * safetensors_open_header, which keeps no text). */
SAFETENSORS_API int32_t safetensors_header_json(const safetensors_file* file, char* to, size_t room,
                                                safetensors_error* error);

/* How many tensors. */
SAFETENSORS_API size_t safetensors_count(const safetensors_file* file);
/* Tensor number `index` of the file's order, which is that of its bytes: to go through all of them.
 * Codes: INDEX_OUT_OF_BOUNDS. */
SAFETENSORS_API int32_t safetensors_at(const safetensors_file* file, size_t index,
                                       safetensors_tensor* tensor, safetensors_error* error);
/* The tensor of that name. Codes: TENSOR_NOT_FOUND. */
SAFETENSORS_API int32_t safetensors_find(const safetensors_file* file, const char* name,
                                         size_t name_size, safetensors_tensor* tensor,
                                         safetensors_error* error);

/* How many pairs of metadata. */
SAFETENSORS_API size_t safetensors_metadata_count(const safetensors_file* file);
/* Pair number `index`, in the header's order. Codes: INDEX_OUT_OF_BOUNDS. */
SAFETENSORS_API int32_t safetensors_metadata_at(const safetensors_file* file, size_t index,
                                                safetensors_item* item, safetensors_error* error);
/* The value of a metadata key, NUL-terminated as the key is; NULL when there is none. A value that
 * contains a NUL seems to end there: safetensors_metadata_value tells its size. */
SAFETENSORS_API const char* safetensors_metadata_find(const safetensors_file* file,
                                                      const char* key);
/* The value of a metadata key, with a NUL after it; NULL when there is none. Sets *value_size,
 * unless value_size is NULL, to the value's size in bytes, without that NUL. The value belongs to
 * the file and is valid until the file is closed. */
SAFETENSORS_API const char* safetensors_metadata_value(const safetensors_file* file,
                                                       const char* key, size_t key_size,
                                                       size_t* value_size);

/* Copies a tensor's bytes to your memory, of tensor->nbytes bytes, by several threads when there is
 * enough to copy. `room` is the size of that memory, which must be the tensor's.
 * After an error the contents of `to` are unspecified.
 * Codes: IO, FILE_CHANGED, UNSUPPORTED_DTYPE (no such dtype), INVALID_ARGUMENT (another room, a
 * tensor outside the file's data, a header alone). */
SAFETENSORS_API int32_t safetensors_read(const safetensors_file* file,
                                         const safetensors_tensor* tensor, void* to, size_t room,
                                         safetensors_error* error);
/* The same for `count` tensors at once, which is faster than one by one: tensors[i] goes to to[i],
 * which has tensors[i].nbytes bytes. Codes: those of safetensors_read. */
SAFETENSORS_API int32_t safetensors_read_many(const safetensors_file* file,
                                              const safetensors_tensor* tensors, void* const* to,
                                              size_t count, safetensors_error* error);

/* What is taken of an axis, or an entry between axes, as in NumPy's t[3, :, 1:9:2, ..., None]. An
 * expression is an array of them; axes without an entry are taken whole. */
enum {
  SAFETENSORS_ALL = 0,      /* the whole axis */
  SAFETENSORS_ONE = 1,      /* element `start`, which may be negative: counted from the end. The
                               axis is dropped */
  SAFETENSORS_RANGE = 2,    /* from `start` up to, but without, `stop`, as in Python: negative ones
                               count from the end, and both are clipped to the axis */
  SAFETENSORS_ELLIPSIS = 3, /* as many whole axes as are left */
  SAFETENSORS_NEW_AXIS = 4  /* an axis of size 1 that the tensor does not have */
};
#define SAFETENSORS_END INT64_MAX /* as `stop`: to the end of the axis */
typedef struct safetensors_index {
  int32_t kind;
  int64_t start;
  int64_t stop;
  int64_t step; /* SAFETENSORS_RANGE: every step-th element; 0 is as 1, below that is an error */
} safetensors_index;

/* A part of a whole tensor, as safetensors_at and safetensors_find give it. Sets *part: its shape,
 * which goes to `shape`, with room for tensor->rank + index_count sizes; its nbytes; and as data a
 * view of the file's memory when the part's bytes stand together there (rows do, columns and steps
 * do not), else NULL: then safetensors_read_slice copies them. A part whose bytes stand together
 * can be read and written as other tensors are; it has no parts of its own. Codes:
 * TOO_MANY_INDICES, INDEX_OUT_OF_BOUNDS, INVALID_SLICE, MISALIGNED_SLICE, UNSUPPORTED_DTYPE (no
 * such dtype), INVALID_TENSOR_INFO (a part of a tensor, or a tensor that was changed),
 * INVALID_ARGUMENT (a tensor outside the file's data, no such kind of index). */
SAFETENSORS_API int32_t safetensors_slice(const safetensors_file* file,
                                          const safetensors_tensor* tensor,
                                          const safetensors_index* indices, size_t index_count,
                                          uint64_t* shape, safetensors_tensor* part,
                                          safetensors_error* error);
/* Copies a part of a tensor to your memory, in C order. `room` is the size of that memory, which
 * must be the part's nbytes. From a file that is not mapped only the part is read.
 * Codes: those of safetensors_slice, IO, FILE_CHANGED, INVALID_ARGUMENT (another room, a header
 * alone). */
SAFETENSORS_API int32_t safetensors_read_slice(const safetensors_file* file,
                                               const safetensors_tensor* tensor,
                                               const safetensors_index* indices, size_t index_count,
                                               void* to, size_t room, safetensors_error* error);

/* For safetensors_save. */
enum {
  SAFETENSORS_FSYNC = 1 /* flush the file, and the folder's entry for it, before returning */
};
/* Writes a file, whole or not at all: a temporary file in the same folder is renamed over `path`.
 * The tensors go by dtype, then name, whatever order they are given in; the same input gives the
 * same bytes. `metadata` may be NULL: then there is none. `flags` is 0 or SAFETENSORS_FSYNC.
 * Tensors of an open file may be given as they are, if it is mapped or in memory.
 * Codes: INVALID_TENSOR_INFO, OVERFLOW, MISALIGNED_SLICE, DUPLICATE_NAME (of a tensor or a metadata
 * key), UNSUPPORTED_DTYPE (no such dtype), HEADER_TOO_LARGE, IO, NOT_REGULAR_FILE (a directory, a
 * socket, a block device), INVALID_ARGUMENT (a text that is not UTF-8, unknown flags). */
SAFETENSORS_API int32_t safetensors_save(const char* path, const safetensors_tensor* tensors,
                                         size_t count, const safetensors_item* metadata,
                                         size_t metadata_count, uint32_t flags,
                                         safetensors_error* error);
/* The same bytes to your memory. Sets *nbytes to how many they are; writes nothing more when `to`
 * is NULL.
 * Codes: those of safetensors_save but IO and NOT_REGULAR_FILE; INVALID_ARGUMENT also when `room`
 * is less. */
SAFETENSORS_API int32_t safetensors_serialize(const safetensors_tensor* tensors, size_t count,
                                              const safetensors_item* metadata,
                                              size_t metadata_count, void* to, size_t room,
                                              uint64_t* nbytes, safetensors_error* error);

#ifdef __cplusplus
}
#endif

#endif
