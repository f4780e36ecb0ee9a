/* The C interface, in C99: for C programs, and for bindings from other languages.
 *
 *   safetensors_error error;
 *   safetensors_file *model;
 *   safetensors_tensor norm;
 *   if (safetensors_open_model(SAFETENSORS_TEXT("folder"), NULL, &model, &error)) puts(error.text);
 *   if (safetensors_find(model, SAFETENSORS_TEXT("model.norm.weight"), &norm, &error))
 *     puts(error.text);
 *   ... norm.shape[0], (const float *)norm.data ...
 *   safetensors_close(model);
 *
 * Results: a function that can fail returns a code, 0 (SAFETENSORS_OK) on success. Its last
 * argument receives the error, and may be NULL. Other output arguments are set on success only. No
 * exception leaves a function.
 *
 * Codes: each function that can fail lists the codes that it returns. Some are not listed. Any
 * function may return SAFETENSORS_OUT_OF_MEMORY and SAFETENSORS_INTERNAL, and
 * SAFETENSORS_INVALID_ARGUMENT for a NULL where a pointer is required and for a text or a struct of
 * options that breaks the rules below. Any function that reads a file may return
 * SAFETENSORS_DAMAGED if the file was opened with sums, and the code that a callback has set if it
 * was opened by safetensors_open_source or safetensors_open_model_source. "1 to 11" are the codes
 * from SAFETENSORS_INVALID_HEADER_UTF8 to SAFETENSORS_MISALIGNED_SLICE: the file is not a valid
 * safetensors file.
 *
 * Text: UTF-8, a pointer and a size. JSON allows a NUL within a string, so use the size. Text of
 * the library is also followed by a NUL, which the size does not include. In arguments:
 *   a size of 0                 the empty text; the pointer is not followed, and may be NULL
 *   SAFETENSORS_NUL_TERMINATED  the text ends before the first NUL
 * With any other size than 0, NULL is an error, and so is a size above PTRDIFF_MAX. Paths are text,
 * too: UTF-8 on Windows, the bytes of the system's file name elsewhere. A path that is empty or
 * contains a NUL is an error.
 *
 * Structs that the library fills in, and those that come in arrays, never change. Structs of
 * options and callbacks begin with `size`, which the caller sets to their sizeof; members may be
 * added at the end. A member that is 0 has its default. `{sizeof options}` is all defaults, and so
 * is NULL for a whole struct of options. A library that is older than the program refuses a member
 * that it does not know, unless it is 0. The library copies these structs.
 *
 * Ownership: each handle has one function that frees it, which does nothing for NULL. What the
 * library points to belongs to the handle that it came from, and is valid until that is freed. What
 * a function returns that takes no handle, such as a name, is valid while the library is loaded.
 * The caller owns all memory that the library reads into.
 *
 * Callbacks return normally: no exception, longjmp or panic may pass through the library. They may
 * call its functions, except to free a handle that the call uses, and must not fork.
 *
 * Thread safety: open files, sums and patches never change. All functions may be called from many
 * threads at once, also on one handle, except that the function that frees it must be the last
 * call. Writers and loads have rules of their own (see safetensors_writer and safetensors_load).
 *
 * Fork: a child process may use the files, sums and patches of its parent. It may only free writers
 * and loads, which does nothing to those of the parent.
 *
 * Untrusted input: all functions that open or read are safe for untrusted files, except that a
 * mapped file which another process truncates can end this process (see SAFETENSORS_PREAD).
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

/* The size of a text argument that ends before its first NUL. */
#define SAFETENSORS_NUL_TERMINATED SIZE_MAX
/* Both arguments of such a text, in C and C++. */
#define SAFETENSORS_TEXT(text) (text), SAFETENSORS_NUL_TERMINATED
/* A text of an array, with its size. */
typedef struct safetensors_text {
  const char* data;
  size_t size;
} safetensors_text;

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
  SAFETENSORS_DEVICE = 22,               /* a device or its driver failed, or is not there */
  SAFETENSORS_WRITTEN_TWICE = 23,        /* a tensor was written twice */
  SAFETENSORS_MISSING_TENSORS = 24,      /* a file was to be completed before all were written */
  SAFETENSORS_OUT_OF_ORDER = 25,         /* a sink that does not seek needs other tensors first */
  SAFETENSORS_WRITER_CLOSED = 26,        /* a writer that has failed or is closed */
  SAFETENSORS_INVALID_PATCH = 27,        /* a patch is damaged or breaks its format */
  SAFETENSORS_WRONG_BASE = 28,           /* a tensor or a model that a patch does not belong to */
  SAFETENSORS_PATCH_APPLIED = 29,        /* one that has the patch already */
  SAFETENSORS_DAMAGED = 30,              /* bytes differ from the digest that they should have */
  SAFETENSORS_NO_MODEL = 31,             /* a folder has no model, or none of this name */
  SAFETENSORS_SEVERAL_MODELS = 32,       /* more than one set of files in a folder may be it */
  SAFETENSORS_INCOMPLETE_MODEL = 33,     /* a file of a numbered set, or of an index, is absent */
  SAFETENSORS_INTERNAL = -1,             /* a bug in the library */
  SAFETENSORS_STOPPED = -2               /* a callback ended the call: see `detail` */
};
/* Returns the name of a code, such as "INVALID_OFFSET"; NULL if there is no such code. */
SAFETENSORS_API const char* safetensors_code_name(int32_t code);

/* An error: 1024 bytes that the caller owns. The library keeps no reference to it. */
typedef struct safetensors_error {
  int32_t code;     /* what the function returned */
  int32_t os_error; /* errno if the operating system reported the error, else 0 */
  int32_t detail;   /* SAFETENSORS_STOPPED: what the callback returned; else 0, or what another
                       header says of its functions */
  uint16_t path;    /* text + path is the file at fault: NUL-terminated, empty if there is none */
  uint16_t subject; /* text + subject is the tensor or key at fault: likewise */
  char text[1008];  /* one line that names the file or tensor at fault; NUL-terminated, truncated if
                       it does not fit; empty on success. UTF-8, except that the path in it has the
                       bytes of the system's file name. `path` and `subject` follow it. One of them
                       that does not fit is empty */
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
/* Returns the dtype with this name; -1 if there is none. Case matters. */
SAFETENSORS_API int32_t safetensors_dtype_from_name(const char* name, size_t name_size);
/* Returns the bits of one element: 4, 6, 8, 16, 32 or 64; 0 if there is no such dtype. */
SAFETENSORS_API uint32_t safetensors_dtype_bits(int32_t dtype);

/* An open file, the files of an open model, or a header alone. The files of a model are numbered
 * from 0; a file or header alone is number 0. */
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
  uint32_t file; /* number of its file in a model, else 0; not used when writing */
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
  SAFETENSORS_MMAP = 0,  /* mapped: each page is read when it is first touched. If the system
                            refuses to map the file, the same as SAFETENSORS_PREAD */
  SAFETENSORS_PREAD = 1, /* read by safetensors_read. Safe from the SIGBUS that touching a page
                            raises after another process has truncated the file */
  SAFETENSORS_AUTO = 2,  /* mapped on local file systems; on network file systems, read if the file
                            takes more than 90 % of the available memory */
  SAFETENSORS_DIRECT = 3 /* read past the page cache, for files that are read once. Linux only;
                            elsewhere the same as SAFETENSORS_PREAD */
};
/* Flags of functions that open. */
enum {
  SAFETENSORS_FOR_DEVICE = 1,    /* the bytes go to a device: the file is read, never mapped */
  SAFETENSORS_CLOSE_BETWEEN = 2, /* with SAFETENSORS_PREAD and SAFETENSORS_DIRECT, keep no file
                                    open between reads, for more files than descriptors */
  SAFETENSORS_OPEN_ALL = 4       /* models: open all files at once, by several threads and while a
                                    large index is read, and not each when something of it is
                                    requested */
};
/* The digests of a model's files and tensors (docs/verify.md). */
typedef struct safetensors_sums safetensors_sums;
/* Options of functions that open. */
typedef struct safetensors_options {
  size_t size;
  int32_t backend;
  uint32_t flags;
  const char* name; /* of the model of a folder: what the names of its files begin with, such as
                       "consolidated"; empty: the rule chooses */
  size_t name_size;
  const char* variant; /* likewise: such as "fp16", of model.fp16.safetensors */
  size_t variant_size;
  /* safetensors_open and those that open models: compare all that is read with these sums, which
   * may be freed after the call. Files are then read, not mapped. What differs is DAMAGED, at
   * opening (size and header; a tensor of the sums that the model of a folder or an index lacks) or
   * at reading. */
  const safetensors_sums* sums;
} safetensors_options;

/* Opens and validates a file: reads its header and no tensor data. Close *file with
 * safetensors_close.
 * Safe for untrusted input.
 * Codes: 1 to 11, NOT_REGULAR_FILE, IO, FILE_CHANGED, INVALID_ARGUMENT (no such backend or flag, a
 * name or variant; sums that have nothing about the file, no digest of one of its tensors, or only
 * a SHA-256). */
SAFETENSORS_API int32_t safetensors_open(const char* path, size_t path_size,
                                         const safetensors_options* options,
                                         safetensors_file** file, safetensors_error* error);
/* Opens a model of one or several files, which is then read as if it were one file. `path` leads to
 * a folder, an index (its name ends with .json) or a file. Which files of a folder are the model,
 * docs/loading.md says. Close *model with safetensors_close.
 *
 * With an index, its tensors are the model's, and each file is opened when something of it is first
 * requested; unless SAFETENSORS_OPEN_ALL is set, files of which nothing is requested may be absent.
 * Without an index, all files are opened at once.
 * Safe for untrusted input.
 * Codes: those of safetensors_open; NO_MODEL, SEVERAL_MODELS, INCOMPLETE_MODEL (a file is absent of
 * a numbered set or, with an `os_error` of ENOENT, of an index); DUPLICATE_NAME (two files with one
 * tensor and no index); for a file of an index also TENSOR_NOT_FOUND (it lacks a tensor that the
 * index puts into it). */
SAFETENSORS_API int32_t safetensors_open_model(const char* path, size_t path_size,
                                               const safetensors_options* options,
                                               safetensors_file** model, safetensors_error* error);
/* Opens the file behind a descriptor (on Windows: a C run-time descriptor), which the caller may
 * close after the call. `label` names the file in errors. SAFETENSORS_CLOSE_BETWEEN does nothing.
 * Safe for untrusted input.
 * Codes: those of safetensors_open. */
SAFETENSORS_API int32_t safetensors_open_descriptor(int descriptor, const char* label,
                                                    size_t label_size,
                                                    const safetensors_options* options,
                                                    safetensors_file** file,
                                                    safetensors_error* error);
/* Opens a whole file in memory, without a copy. The bytes must stay valid and unchanged until the
 * file, and all loads and patches of it, are freed.
 * Safe for untrusted input.
 * Codes: 1 to 11. */
SAFETENSORS_API int32_t safetensors_open_memory(const void* bytes, size_t nbytes,
                                                safetensors_file** file, safetensors_error* error);
/* Where the bytes of a file come from, such as an archive or a server. */
typedef struct safetensors_source {
  size_t size;
  void* context;   /* the first argument of its functions */
  uint64_t nbytes; /* of the whole file; it never changes */
  /* Reads up to `nbytes` bytes from `offset` on, and returns how many: if fewer, the rest is asked
   * for again, and 0 means that the file ends here (FILE_CHANGED). To fail, returns a negative
   * number after setting members of *error, all of which are 0 before: `code` (IO if it stays 0, or
   * is no code), `os_error`, `detail` and `text`. The code SAFETENSORS_STOPPED ends the call.
   *
   * Called by any thread, also by threads of the library, and by several at once. */
  int64_t (*read)(void* context, uint64_t offset, void* to, size_t nbytes,
                  safetensors_error* error);
  /* Called exactly once, on any thread, when nothing uses the source any more, also if it is not
   * opened. Only a struct whose `size` or `read` is wrong is not taken. NULL: nothing to do. */
  void (*release)(void* context);
  uint32_t concurrency;  /* how many reads at once give the best throughput; 0: one for each
                            processor */
  uint32_t is_request;   /* 1 if each read is a request to a server, else 0 */
  uint64_t chunk_nbytes; /* of one read of a long tensor; 0: the default */
  uint64_t gap_nbytes; /* longest gap between wanted bytes that is read and discarded; 0: 64 KiB */
} safetensors_source;
/* Opens a file that a source reads. `label` names it in errors, and may be empty. The options are
 * NULL, or all 0. Close *file with safetensors_close. The source is released when the file, and all
 * loads and patches of it, are freed.
 * Safe for untrusted input.
 * Codes: 1 to 11, FILE_CHANGED, STOPPED, the codes that the source fails with, INVALID_ARGUMENT
 * (options of files, a source that returns more than it was asked for). */
SAFETENSORS_API int32_t safetensors_open_source(const safetensors_source* source, const char* label,
                                                size_t label_size,
                                                const safetensors_options* options,
                                                safetensors_file** file, safetensors_error* error);
/* Where the files of a model come from: a folder that the program reads itself, such as one of an
 * archive or a server. */
typedef struct safetensors_model_source {
  size_t size;
  void* context; /* the first argument of its functions */
  /* The names of the files in the folder, in any order; not used after the call. The rule of
   * safetensors_open_model chooses among them. Names with a "/" are in folders below, where only an
   * index leads. Of a model with an index, that of the index is enough. */
  const safetensors_text* names;
  size_t name_count;
  /* Opens the index, or a file of the model: `name` is one of `names`, or what the index says; it
   * is valid during the call. Sets *source to what safetensors_open_source takes, with its `size`,
   * and returns 0. Before, *source is 0, with room for later versions of the struct. To fail,
   * returns another number after setting *error as `read` of a source does; an `os_error` of ENOENT
   * says that there is no such file. Then *source is not taken.
   *
   * Called by any thread, for different files by several at once, when something of a file is first
   * requested; and again if the file could not be opened. Neither `open` nor the sources may call a
   * function with the model: it could wait for itself. */
  int32_t (*open)(void* context, const char* name, size_t name_size, safetensors_source* source,
                  safetensors_error* error);
  /* Called exactly once, on any thread, when nothing uses the folder any more and all sources that
   * `open` gave are released, also if no model is opened. Only a struct whose `size` or `open` is
   * wrong is not taken. NULL: nothing to do. */
  void (*release)(void* context);
} safetensors_model_source;
/* Opens a model of one or several files, as safetensors_open_model does a folder. `label` names the
 * folder in errors and paths, and may be empty. Of the options, only the flag SAFETENSORS_OPEN_ALL,
 * name, variant and sums may be set. Close *model with safetensors_close. The sources and the
 * folder are released when the model, and all loads and patches of it, are freed.
 * Safe for untrusted input.
 * Codes: those of safetensors_open_model except NOT_REGULAR_FILE; STOPPED, the codes that the
 * callbacks fail with, INVALID_ARGUMENT (options of local files, a source that is wrong or returns
 * more than it was asked for). */
SAFETENSORS_API int32_t safetensors_open_model_source(const safetensors_model_source* source,
                                                      const char* label, size_t label_size,
                                                      const safetensors_options* options,
                                                      safetensors_file** model,
                                                      safetensors_error* error);
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

/* A file of a model, or a file alone. */
typedef struct safetensors_file_info {
  uint64_t header_nbytes; /* length of the header, without the 8 bytes before it */
  uint64_t data_offset;   /* of the data section in the file. The offset of a tensor's first byte is
                             data_offset + tensor.begin */
  size_t metadata_count;
} safetensors_file_info;
/* Returns the number of files: 1 for a file or a header alone; 0 for NULL. */
SAFETENSORS_API uint32_t safetensors_file_count(const safetensors_file* file);
/* Returns the path or label of file `number`, which need not be open yet; NULL if there is no such
 * file, or for a header alone and bytes in memory. Sets *size, unless it is NULL, to the size of
 * the path. */
SAFETENSORS_API const char* safetensors_file_path(const safetensors_file* file, uint32_t number,
                                                  size_t* size);
/* Sets *info to what file `number` is, and opens it if it is not open yet.
 * Codes: INDEX_OUT_OF_BOUNDS; those of safetensors_open_model. */
SAFETENSORS_API int32_t safetensors_file_at(const safetensors_file* file, uint32_t number,
                                            safetensors_file_info* info, safetensors_error* error);
/* Copies the JSON of file `number`'s header to `to` exactly as it is in the file: with padding
 * spaces, nothing decoded, no NUL at the end. `room`, the size of that memory, must be the file's
 * header_nbytes. The library does not keep the text: it reads it from the file again. If another
 * process has overwritten the file in place, the text may differ from the header that was checked
 * when the file was opened. After an error the contents of `to` are unspecified.
 * Codes: those of safetensors_file_at; IO, FILE_CHANGED (the file has been truncated, or its header
 * has another length now), INVALID_ARGUMENT (another room, or a file of safetensors_open_header,
 * which keeps no text). */
SAFETENSORS_API int32_t safetensors_header_json(const safetensors_file* file, uint32_t number,
                                                char* to, size_t room, safetensors_error* error);

/* Returns the number of tensors; 0 for NULL. */
SAFETENSORS_API size_t safetensors_count(const safetensors_file* file);
/* Sets *tensor to tensor number `index`: of a model in the order of their names, of a file in the
 * order of their bytes. Opens the tensor's file if it is not open yet.
 * Codes: INDEX_OUT_OF_BOUNDS; those of safetensors_open_model. */
SAFETENSORS_API int32_t safetensors_at(const safetensors_file* file, size_t index,
                                       safetensors_tensor* tensor, safetensors_error* error);
/* Sets *tensor to the tensor with this name, and opens its file if it is not open yet.
 * Codes: TENSOR_NOT_FOUND (the text suggests similar names); those of safetensors_open_model. */
SAFETENSORS_API int32_t safetensors_find(const safetensors_file* file, const char* name,
                                         size_t name_size, safetensors_tensor* tensor,
                                         safetensors_error* error);

/* Sets *item to item `index` of the metadata of file `number`, in the header's order.
 * Codes: INDEX_OUT_OF_BOUNDS; those of safetensors_file_at. */
SAFETENSORS_API int32_t safetensors_metadata_at(const safetensors_file* file, uint32_t number,
                                                size_t index, safetensors_item* item,
                                                safetensors_error* error);
/* Returns the value of a metadata key of file `number`, followed by a NUL; NULL if there is none,
 * if an argument is not allowed, or if the file cannot be opened, which safetensors_file_at
 * reports. Sets *value_size, unless value_size is NULL, to the value's size in bytes, without that
 * NUL. */
SAFETENSORS_API const char* safetensors_metadata_value(const safetensors_file* file,
                                                       uint32_t number, const char* key,
                                                       size_t key_size, size_t* value_size);

/* The kinds of index in an expression such as NumPy's t[3, :, 1:9:2, ..., None]. An expression is
 * an array of safetensors_index; axes without an index are selected completely. */
enum {
  SAFETENSORS_ALL = 0,      /* the whole axis */
  SAFETENSORS_ONE = 1,      /* element `start`; a negative one counts from the end. The result does
                               not have this axis */
  SAFETENSORS_RANGE = 2,    /* the elements from `start` to before `stop`, as in Python: negative
                               numbers count from the end, and both are clipped to the axis */
  SAFETENSORS_ELLIPSIS = 3, /* all axes that no other index selects */
  SAFETENSORS_NEW_AXIS = 4, /* a new axis of size 1 in the result */
  SAFETENSORS_LIST = 5 /* the next `count` entries, each ONE, RANGE or ALL, select from one axis; in
                          the result they follow one another. A ONE of a list keeps the axis */
};
#define SAFETENSORS_END INT64_MAX /* for `stop`: the end of the axis */
typedef struct safetensors_index {
  int32_t kind;
  uint32_t count; /* SAFETENSORS_LIST: how many of the next entries belong to it; else 0 */
  int64_t start;
  int64_t stop;
  int64_t step; /* SAFETENSORS_RANGE: every step-th element; 0 means 1, less is an error */
} safetensors_index;

/* Sets *part to a part of a tensor. `tensor` is a whole tensor, as safetensors_at and
 * safetensors_find return it. The part's shape goes to `shape`, with room for tensor->rank +
 * index_count sizes. If the part's bytes are contiguous in the file, as those of rows are, `data`
 * points to them (where the file is in memory) and the part can be read and written like other
 * tensors. If they are not, as those of columns, `data` is NULL: safetensors_read takes the tensor
 * and the indices. A part cannot be sliced again. Codes: TOO_MANY_INDICES, INDEX_OUT_OF_BOUNDS,
 * INVALID_SLICE, MISALIGNED_SLICE, UNSUPPORTED_DTYPE (no such dtype), INVALID_TENSOR_INFO (a part
 * of a tensor, or a tensor that was changed), INVALID_ARGUMENT (a tensor outside the file's data,
 * no such kind of index, a list that has other kinds or reaches past the last index). */
SAFETENSORS_API int32_t safetensors_slice(const safetensors_file* file,
                                          const safetensors_tensor* tensor,
                                          const safetensors_index* indices, size_t index_count,
                                          uint64_t* shape, safetensors_tensor* part,
                                          safetensors_error* error);

/* Watches a long call, on the calling thread and while it runs. Each function returns 0 to go on.
 * Another number ends the call with SAFETENSORS_STOPPED, and is the error's `detail`. Both may be
 * NULL. */
typedef struct safetensors_watch {
  size_t size;
  void* context;                       /* their first argument; the caller owns it */
  int32_t (*interrupt)(void* context); /* called about every 20 ms, by loads every 50 ms */
  /* Called from time to time with the bytes that are done and their sum, which are equal in the
   * last call. */
  int32_t (*progress)(void* context, uint64_t done, uint64_t total);
} safetensors_watch;

#define SAFETENSORS_AS_STORED (-1) /* where a dtype is chosen: no conversion */
/* What to read, where to, and as what. `room`, the size of the memory at `to`, must be that of the
 * part as it is stored; or, converted, the number of its elements times the size of `dtype`. */
typedef struct safetensors_request {
  const safetensors_tensor* tensor; /* a whole tensor; without indices also a part from
                                       safetensors_slice that is contiguous */
  const safetensors_index* indices; /* NULL, and a count of 0: all of it */
  size_t index_count;
  void* to; /* of any alignment */
  uint64_t room;
  int32_t dtype;     /* SAFETENSORS_AS_STORED, or the dtype that the elements are converted to, as
                        safetensors_convert does */
  uint32_t reserved; /* 0 */
} safetensors_request;
/* Reads tensors and parts of tensors, of any of the files, in C order. What is adjacent in a file
 * is read together, and several threads share the work: one call for many tensors is faster than
 * many calls. Only the parts are read, and gaps of up to 64 KiB within them. A conversion takes
 * about 2 MiB of memory for each thread, whatever the size of the tensor. After an error the
 * contents of all destinations are unspecified. No two destinations may overlap.
 * Codes: those of safetensors_slice and safetensors_convert, IO, FILE_CHANGED, STOPPED,
 * INVALID_ARGUMENT (another room, a part that is not contiguous, a header alone). */
SAFETENSORS_API int32_t safetensors_read(const safetensors_file* file,
                                         const safetensors_request* requests, size_t count,
                                         const safetensors_watch* watch, safetensors_error* error);
/* Converts elements, on the calling thread. Neither pointer needs any alignment. `from_dtype` is
 * any dtype but C64, F6_E3M2 and F6_E2M3; `to_dtype` is F64, F32, F16, BF16, F8_E4M3 or F8_E5M2, or
 * `from_dtype`, which copies. Values are rounded to the nearest, ties to even; except for F64, by
 * way of a float, as torch does. The values of `room` are as in safetensors_request.
 * Requires: the two do not overlap.
 * Codes: UNSUPPORTED_DTYPE, INVALID_ARGUMENT (not as many elements). */
SAFETENSORS_API int32_t safetensors_convert(int32_t from_dtype, const void* from, uint64_t nbytes,
                                            int32_t to_dtype, void* to, uint64_t room,
                                            safetensors_error* error);

/* Loads tensors and parts of tensors to the memory of a GPU or to host memory, by threads of the
 * library, while the program goes on:
 *
 *   safetensors_load *load;
 *   size_t number;
 *   if (safetensors_load_start(model, requests, count, &options, &load, &error)) ...
 *   for (;;) {
 *     if (safetensors_load_next(load, &number, NULL, &error)) ...
 *     if (number == count) break;
 *     ... requests[number] is loaded ...
 *   }
 *   safetensors_load_free(load);
 *
 * The CUDA driver is found at run time: the library needs no CUDA to build or to run. Bytes that
 * are loaded are visible to work on every stream.
 *
 * Lifetime: the caller owns the memory that is loaded to, and keeps it until the load is freed, or
 * _wait has returned. The file may be closed before that; what safetensors_open_memory and
 * safetensors_open_source were given is used until the load is freed.
 *
 * Thread safety: several threads may call safetensors_load_next at once, each of which gets other
 * tensors, and one more safetensors_load_wait. safetensors_load_free must be called when all others
 * have returned.
 *
 * Fork: a child process may only free its parent's load, which does nothing to the parent. All else
 * returns INVALID_ARGUMENT. */
typedef struct safetensors_load safetensors_load;
/* Where a load goes. */
enum {
  SAFETENSORS_HOST = 0, /* host memory */
  SAFETENSORS_CUDA =
      1 /* a GPU: the primary context of a CUDA device, which the CUDA runtime uses */
};
typedef struct safetensors_load_options {
  size_t size;
  void* context; /* the first argument of `allocate` */
  /* Gives room for `nbytes` bytes of requests[number], on the device: sets *to to its address.
   * Called on the calling thread, in the order of the requests, for each whose `to` is NULL unless
   * it has no bytes. Returns 0; another number ends the call with SAFETENSORS_STOPPED, and is the
   * error's `detail`. 0 and a *to of NULL: OUT_OF_MEMORY. The memory is the caller's, also if the
   * call fails. NULL: all requests say where their bytes go. */
  int32_t (*allocate)(void* context, size_t number, uint64_t nbytes, void** to);
  void* stream;         /* a CUstream: copies start after the work that is on it when the load is
                           started, from which its allocator may have taken the memory. Not used
                           after the call. NULL: the default stream */
  int32_t device;       /* SAFETENSORS_HOST or SAFETENSORS_CUDA */
  int32_t device_index; /* of the CUDA devices that the process sees */
  uint32_t threads;     /* that read; 0: as many as processors, at most 12, or 8 to 16 for files
                           that are not in the page cache */
  uint32_t reserved;    /* 0 */
} safetensors_load_options;
/* Starts a load, and returns. The requests are as those of safetensors_read, except that nothing is
 * converted, and `to` is an address on the device; where `allocate` gives it, `to` and `room` are
 * 0. They, their tensors and their indices may be freed after the call. Files should be opened with
 * SAFETENSORS_FOR_DEVICE. Free *load with safetensors_load_free.
 * Codes: those of safetensors_slice; DEVICE (no driver, no such device, a process that was forked
 * from one that had used it), STOPPED, INVALID_ARGUMENT (another room, a conversion, no such kind
 * of device, a stream that is being captured, a part that is not contiguous, a header alone). */
SAFETENSORS_API int32_t safetensors_load_start(const safetensors_file* file,
                                               const safetensors_request* requests, size_t count,
                                               const safetensors_load_options* options,
                                               safetensors_load** load, safetensors_error* error);
/* Blocks until a request is loaded whose number was not returned before, and sets *number to it, in
 * the order in which they are ready. After the last one, sets *number to the count of requests. If
 * the watch ends the call, the load goes on.
 * Codes: IO, FILE_CHANGED, DEVICE, STOPPED (also if the load was stopped), INVALID_ARGUMENT (a
 * process that was forked). */
SAFETENSORS_API int32_t safetensors_load_next(safetensors_load* load, size_t* number,
                                              const safetensors_watch* watch,
                                              safetensors_error* error);
/* Blocks until all is loaded. If the load fails or the watch ends the call, the load is stopped: no
 * byte is written any more, and later calls fail likewise. If the arguments are refused, or another
 * thread waits, the load goes on.
 * Codes: as safetensors_load_next; INVALID_ARGUMENT also if another thread waits. */
SAFETENSORS_API int32_t safetensors_load_wait(safetensors_load* load,
                                              const safetensors_watch* watch,
                                              safetensors_error* error);
/* Stops a load that is not complete, and frees it. No byte is written any more when it returns.
 * Does nothing for NULL. */
SAFETENSORS_API void safetensors_load_free(safetensors_load* load);
/* Frees the pinned host memory, up to 128 MiB, that loads to GPUs have left for later ones, and
 * returns its size in bytes. */
SAFETENSORS_API uint64_t safetensors_release_staging(void);

/* Reads the sums of a model. `path` is a file of sums (its name ends with .sums.json), or a file,
 * an index or a folder of a model, beside or in which they are. Close *sums with
 * safetensors_sums_close.
 * Safe for untrusted input.
 * Codes: IO, NOT_REGULAR_FILE, FILE_CHANGED, HEADER_TOO_LARGE, INVALID_HEADER_JSON; for a folder
 * also NO_MODEL, SEVERAL_MODELS and INCOMPLETE_MODEL. */
SAFETENSORS_API int32_t safetensors_sums_open(const char* path, size_t path_size,
                                              safetensors_sums** sums, safetensors_error* error);
/* Frees sums. Does nothing for NULL. */
SAFETENSORS_API void safetensors_sums_close(safetensors_sums* sums);

#define SAFETENSORS_DIGEST_SIZE 80 /* room for the text of any digest, with a NUL */
/* Sets `text` to the digest of a tensor, such as "xxh3-128:99aa06d3014798d86001c324468d497f": by
 * XXH3-128, or by SHA-256 if the sums have no other.
 * Codes: TENSOR_NOT_FOUND. */
SAFETENSORS_API int32_t safetensors_sums_digest(const safetensors_sums* sums, const char* name,
                                                size_t name_size,
                                                char text[SAFETENSORS_DIGEST_SIZE],
                                                safetensors_error* error);
/* Sets `text` to the digest by XXH3-128 of the caller's tensor: of its dtype, shape and bytes, to
 * compare with that of sums. Follows its pointers, as functions that write do.
 * Codes: UNSUPPORTED_DTYPE, OVERFLOW, INVALID_TENSOR_INFO (`nbytes` does not fit dtype and
 * shape). */
SAFETENSORS_API int32_t safetensors_digest(const safetensors_tensor* tensor,
                                           char text[SAFETENSORS_DIGEST_SIZE],
                                           safetensors_error* error);
/* A range of a file that differs from its sums. The texts are NUL-terminated. */
typedef struct safetensors_damage {
  const char* text; /* one line */
  const char* file;
  const char* tensor;   /* empty: the header, the size or the whole file */
  const char* expected; /* digest of the range's first block, such as "xxh3-64:99aa06d3014798d8";
                           empty if there is none */
  const char* found;
  uint64_t begin; /* in the file */
  uint64_t end;
} safetensors_damage;
/* Reads all files, and compares them with sums. Calls `report` on the calling thread for each range
 * that differs, for each file and tensor of which the sums have no digest, and, of a model that a
 * folder, an index or safetensors_open_model_source led to, for each file and tensor of the sums
 * that it lacks. Those of a file are reported when all of the file is read; the struct and its
 * texts are valid until `report` returns. It returns 0 to go on, as the functions of a watch, and
 * may be NULL. Sets *count to the number of reports: 0 means that all is as the sums say. A SHA-256
 * of a header or a file is not compared. Codes: those of safetensors_file_at; IO, FILE_CHANGED,
 * STOPPED, INVALID_ARGUMENT (a header alone; sums that have only a SHA-256 of a tensor). */
SAFETENSORS_API int32_t safetensors_verify(
    const safetensors_file* file, const safetensors_sums* sums,
    int32_t (*report)(void* context, const safetensors_damage* damage), void* context,
    size_t* count, const safetensors_watch* watch, safetensors_error* error);

/* Flags of functions that write. */
enum {
  SAFETENSORS_FSYNC = 1,  /* flush the file and its directory entry to the disk before returning */
  SAFETENSORS_BLOCKS = 2, /* writers: place tensors so that file systems can share their blocks
                             between files (docs/format.md, "Blocks") */
  SAFETENSORS_SUMS = 4,   /* write the sums of the file as well (docs/verify.md); not writers */
  /* safetensors_update_file only: */
  SAFETENSORS_UPDATE_ADD = 8,              /* add tensors that the file does not have */
  SAFETENSORS_UPDATE_REMOVE_METADATA = 16, /* the new file has no metadata */
  SAFETENSORS_UPDATE_IN_PLACE = 32,        /* write into the file itself, and remove its sums */
  SAFETENSORS_UPDATE_SHARED = 64           /* in place also if the file is open or mapped: views of
                                              it change */
};
/* Options of functions that write. A flag or watch for another function is INVALID_ARGUMENT. */
typedef struct safetensors_save_options {
  size_t size;
  const safetensors_item* metadata; /* NULL: the file has no metadata */
  size_t metadata_count;
  const safetensors_watch* watch; /* of safetensors_save */
  uint32_t flags;
  uint32_t reserved; /* 0 */
} safetensors_save_options;

/* Writes a file atomically: a temporary file is renamed over `path` or, if that is a symbolic link,
 * over the file that it leads to. A pipe or a device is written to directly. After an error, `path`
 * is as it was; with SAFETENSORS_FSYNC and IO it may be the complete new file, if its directory
 * could not be flushed. The tensors are sorted by dtype, then by name, so the order of `tensors`
 * does not matter and the same input gives the same bytes. Tensors of an open file can be passed
 * on, if that file is mapped or in memory. Codes: INVALID_TENSOR_INFO, OVERFLOW, MISALIGNED_SLICE,
 * DUPLICATE_NAME (of a tensor or a metadata key), UNSUPPORTED_DTYPE (no such dtype),
 * HEADER_TOO_LARGE, IO, NOT_REGULAR_FILE (a directory, a socket, a block device), STOPPED,
 * INVALID_ARGUMENT (a text that is not UTF-8, unknown flags, sums of a path that does not end with
 * .safetensors). */
SAFETENSORS_API int32_t safetensors_save(const char* path, size_t path_size,
                                         const safetensors_tensor* tensors, size_t count,
                                         const safetensors_save_options* options,
                                         safetensors_error* error);
/* Options of safetensors_save_model. */
typedef struct safetensors_save_model_options {
  size_t size;
  const safetensors_item* metadata; /* of each file; NULL: none */
  size_t metadata_count;
  const safetensors_watch* watch;
  uint64_t max_shard_nbytes; /* limit of the tensors of a file; 0: 5,000,000,000 */
  const char* name;          /* what the names of the files begin with; empty: "model" */
  size_t name_size;
  uint32_t flags;    /* SAFETENSORS_FSYNC, SAFETENSORS_SUMS */
  uint32_t reserved; /* 0 */
} safetensors_save_model_options;
/* Saves a model to a folder, and replaces an older one of the same name there as a whole. The
 * folder is made if it does not exist, within one that does. The model is NAME.safetensors, or
 * NAME-00001-of-00003.safetensors and so on with the index NAME.safetensors.index.json. Tensors are
 * taken in the order given: a file ends before the tensor that would bring it above the limit, and
 * one that exceeds the limit by itself gets a file of its own. After an error the folder has the
 * old model or, if only the rest of the work failed, the new one; INCOMPLETE_MODEL means that it
 * has neither, and that safetensors_recover completes the save. Not on Windows.
 * Codes: those of safetensors_save; INVALID_HEADER_UTF8 (the name of a tensor), INCOMPLETE_MODEL
 * (some files took their places, and the system refused others), IO also if another process is
 * saving to the folder, INVALID_ARGUMENT also for a name that files cannot have, more than 99,999
 * files, an older model that another program changes meanwhile, and what an interrupted save has
 * left and cannot be trusted. For the index of an older model also FILE_CHANGED and
 * INVALID_HEADER_JSON. */
SAFETENSORS_API int32_t safetensors_save_model(const char* folder, size_t folder_size,
                                               const safetensors_tensor* tensors, size_t count,
                                               const safetensors_save_model_options* options,
                                               safetensors_error* error);
/* Writes the bytes of a file to `to`, and sets *nbytes to their number. `room`, the size of that
 * memory, may be more. If it is less, sets *nbytes and returns INVALID_ARGUMENT. If `to` is NULL,
 * only sets *nbytes. The options may have metadata only.
 * Codes: those of safetensors_save except IO, NOT_REGULAR_FILE and STOPPED. */
SAFETENSORS_API int32_t safetensors_serialize(const safetensors_tensor* tensors, size_t count,
                                              const safetensors_save_options* options, void* to,
                                              size_t room, uint64_t* nbytes,
                                              safetensors_error* error);

/* Options of safetensors_update_file. */
typedef struct safetensors_update_options {
  size_t size;
  const safetensors_tensor* remove; /* tensors to remove, of which only the names are used */
  size_t remove_count;
  const safetensors_item* metadata; /* the new metadata; NULL: that of the file */
  size_t metadata_count;
  const safetensors_watch* watch; /* in place, `interrupt` is called until the file is marked */
  uint32_t flags;
  uint32_t reserved; /* 0 */
} safetensors_update_options;
/* Gives tensors of a file new values, of the dtypes and shapes that it has. Writes a new file,
 * which replaces the old one when it is complete; file systems such as btrfs and XFS share the
 * unchanged tensors between them. After an error, `path` is as it was. With
 * SAFETENSORS_UPDATE_IN_PLACE, only values can change. The change is flushed to a journal beside
 * the file first; after a kill or a power failure, no reader takes the file for a valid one until
 * safetensors_recover, or the next change of it, has completed the change (docs/format.md, "Changes
 * in place"). Not on Windows; without SAFETENSORS_UPDATE_SHARED only on Linux, and not on
 * overlayfs. Codes: those of safetensors_open and safetensors_save; TENSOR_NOT_FOUND, FILE_CHANGED
 * (another program changed the file meanwhile), INVALID_ARGUMENT (another dtype or shape, options
 * that do not suit each other; in place a file that is in use, that has several names, or that
 * another process changes), NOT_REGULAR_FILE (in place a symbolic link), INVALID_PATCH (a damaged
 * journal). */
SAFETENSORS_API int32_t safetensors_update_file(const char* path, size_t path_size,
                                                const safetensors_tensor* tensors, size_t count,
                                                const safetensors_update_options* options,
                                                safetensors_error* error);

/* What safetensors_recover did. */
enum {
  SAFETENSORS_RECOVERY_CLEAN = 0,         /* there was nothing to do */
  SAFETENSORS_RECOVERY_ROLLED_BACK = 1,   /* temporary files were removed */
  SAFETENSORS_RECOVERY_ROLLED_FORWARD = 2 /* a save or a change is complete now */
};
/* Completes or undoes saves of files and models, and changes in place, that a kill or a power
 * failure interrupted. `path` is a file of the model, or a folder, all of whose models are
 * recovered. What other users have left in a folder is left alone. Sets *outcome. Not on Windows.
 * Codes: IO (also if a process or another user is saving; no such file), INVALID_ARGUMENT (a
 * process is changing the file; a file that the recovery would follow cannot be trusted; a file
 * that does not open although there was nothing to recover), NOT_REGULAR_FILE, INVALID_PATCH (a
 * damaged journal). */
SAFETENSORS_API int32_t safetensors_recover(const char* path, size_t path_size, int32_t* outcome,
                                            safetensors_error* error);

/* Writes a file tensor by tensor, for tensors that are never all in memory:
 *
 *   safetensors_writer *writer;
 *   if (safetensors_writer_create(SAFETENSORS_TEXT(path), tensors, count, NULL, &writer, &error))
 *     ...
 *   if (safetensors_writer_write(writer, "weight", 6, 0, bytes, nbytes, &error)) ...
 *   if (safetensors_writer_commit(writer, &error)) ...
 *   safetensors_writer_free(writer);
 *
 * Tensors may be written in any order, each once. If a call fails while it writes, reads the tensor
 * that it copies, or completes the file, all later calls but safetensors_writer_free return
 * WRITER_CLOSED. If its arguments are refused before that, the writer is as it was.
 *
 * Thread safety: several threads may write to one writer, and commit it, at once: one commit
 * completes the file, and none does while bytes are being written. safetensors_writer_free must be
 * called when all others have returned. A sink must not call a function of its writer. */
typedef struct safetensors_writer safetensors_writer;

/* Where the bytes of a file go. The functions of a writer call `write` on their own thread, while
 * they run. */
typedef struct safetensors_sink {
  size_t size;
  void* context; /* the first argument of its functions */
  /* Writes all of these bytes. Returns 0, or the errno of a failure, which the function of the
   * writer reports as IO. If `seeks` is 0, each call continues where the last one ended. If not,
   * `offset` may be any, the first 8 bytes are written twice, and threads that write to one writer
   * may call it at once, for different ranges. */
  int32_t (*write)(void* context, uint64_t offset, const void* bytes, size_t nbytes);
  /* Called by safetensors_writer_commit when all `nbytes` bytes of the file are written. Returns as
   * `write`. NULL: nothing to do. */
  int32_t (*commit)(void* context, uint64_t nbytes);
  /* Called exactly once, when nothing uses the sink any more, also if no writer is made. Only a
   * struct whose `size` or `write` is wrong is not taken. NULL: nothing to do. */
  void (*release)(void* context);
  uint32_t seeks;    /* 1 if `write` takes any offset, else 0 */
  uint32_t reserved; /* 0 */
} safetensors_sink;

/* Begins a file of these tensors, whose name, shape and dtype are used; `data`, `nbytes` and
 * `begin` are not. As safetensors_save, writes a temporary file in the same directory, which
 * safetensors_writer_commit renames over `path`. The flags are SAFETENSORS_FSYNC and
 * SAFETENSORS_BLOCKS. Free *writer with safetensors_writer_free.
 * Codes: those of safetensors_save except STOPPED. */
SAFETENSORS_API int32_t safetensors_writer_create(const char* path, size_t path_size,
                                                  const safetensors_tensor* tensors, size_t count,
                                                  const safetensors_save_options* options,
                                                  safetensors_writer** writer,
                                                  safetensors_error* error);
/* The same, to a sink. If it does not seek, tensors that it needs later are kept in memory, up to
 * 256 MiB. The only flag is SAFETENSORS_BLOCKS. Codes: those of safetensors_writer_create except
 * NOT_REGULAR_FILE. */
SAFETENSORS_API int32_t safetensors_writer_create_sink(
    const safetensors_sink* sink, const safetensors_tensor* tensors, size_t count,
    const safetensors_save_options* options, safetensors_writer** writer, safetensors_error* error);
/* Writes a tensor, or a part of one that begins `begin` bytes after its start. Parts that overlap
 * are not noticed unless together they have more bytes than the tensor.
 * Codes: TENSOR_NOT_FOUND, WRITTEN_TWICE, OUT_OF_ORDER (the sink needs others first, and 256 MiB
 * are kept for it), WRITER_CLOSED, IO, INVALID_ARGUMENT (the bytes reach past the tensor's end). */
SAFETENSORS_API int32_t safetensors_writer_write(safetensors_writer* writer, const char* name,
                                                 size_t name_size, uint64_t begin,
                                                 const void* bytes, uint64_t nbytes,
                                                 safetensors_error* error);
/* Copies a whole tensor from an open file. Blocks are shared with that file if the file system can
 * do that. `tensor` is a tensor of the file, or a part that is contiguous in it, with the dtype and
 * size of the tensor `name`.
 * Codes: those of safetensors_writer_write, INVALID_TENSOR_INFO (another dtype or size),
 * FILE_CHANGED, UNSUPPORTED_DTYPE (no such dtype), INVALID_ARGUMENT (a tensor outside the file's
 * data, a header alone). */
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
/* Frees a writer. If safetensors_writer_commit has not completed the file, it is discarded, and
 * `path` is as it was. Does nothing for NULL. */
SAFETENSORS_API void safetensors_writer_free(safetensors_writer* writer);

/* A patch: what changed between two states of a model (docs/patches.md). */
typedef struct safetensors_patch safetensors_patch;

/* Takes an open file as a patch, and checks its metadata and the names of its entries. Open the
 * file with SAFETENSORS_PREAD if another process may change it. Its metadata
 * (safetensors_metadata_value) also has `base` and `target`, the digests of the model before and
 * after; and, each if it is known, `base_label` and `target_label`, the names of these states, and
 * `metadata`, the metadata of the target's file as JSON. Close *patch with safetensors_patch_close.
 *
 * Lifetime: the file may be closed before the patch. What safetensors_open_memory and
 * safetensors_open_source were given is used until both are closed.
 * Safe for untrusted input.
 * Codes: INVALID_PATCH (no patch, or another version of the format), those of safetensors_file_at,
 * INVALID_ARGUMENT (a header alone, several files). */
SAFETENSORS_API int32_t safetensors_patch_open(const safetensors_file* file,
                                               safetensors_patch** patch, safetensors_error* error);
/* Frees a patch. Does nothing for NULL. */
SAFETENSORS_API void safetensors_patch_close(safetensors_patch* patch);

/* What a patch does to a tensor. */
enum {
  SAFETENSORS_PATCH_REMOVED = 0, /* the target has no such tensor */
  SAFETENSORS_PATCH_WHOLE = 1,   /* it is new, or has another dtype or shape */
  SAFETENSORS_PATCH_BLOCKS = 2 /* some of its units change: elements, or bytes of sub-byte types */
};
/* What a patch says about a tensor. Its pointers are valid until the patch is closed. */
typedef struct safetensors_patch_entry {
  const char* name;
  size_t name_size;
  const uint64_t* shape; /* of the target's tensor: `rank` sizes; none if it is removed */
  size_t rank;
  uint64_t units;   /* of the target's tensor; 0 if it is removed */
  uint64_t changed; /* the units that the patch lists */
  uint64_t nbytes;  /* what the patch has of the tensor */
  int32_t kind;
  int32_t dtype; /* of the target's tensor; -1 if it is removed, and for blocks of sub-byte types,
                    of which a patch does not say which */
  char base[SAFETENSORS_DIGEST_SIZE];   /* the digest of the base's tensor; empty if it has none */
  char target[SAFETENSORS_DIGEST_SIZE]; /* the digest of the target's tensor; empty if removed */
} safetensors_patch_entry;
/* Returns the number of tensors that are not as before; 0 for NULL. */
SAFETENSORS_API size_t safetensors_patch_count(const safetensors_patch* patch);
/* Sets *entry to what a patch says about a tensor. `index` counts from 0, in the order of the
 * names. One checksum covers all that the patch has of the tensor, so each call reads these
 * `nbytes` bytes, and those of a file that is not in memory into memory of the library.
 * Safe for untrusted input.
 * Codes: INDEX_OUT_OF_BOUNDS, INVALID_PATCH, IO, FILE_CHANGED. */
SAFETENSORS_API int32_t safetensors_patch_at(const safetensors_patch* patch, size_t index,
                                             safetensors_patch_entry* entry,
                                             safetensors_error* error);

/* What is compared when a patch is applied. Digests that are SHA-256 are not computed:
 * SAFETENSORS_VERIFY_FULL and SAFETENSORS_VERIFY_WHOLE, and tensors that are removed or replaced,
 * need others. */
enum {
  SAFETENSORS_VERIFY_DEFAULT = 0, /* in memory SAFETENSORS_VERIFY_BLOCKS, in files
                                     SAFETENSORS_VERIFY_FULL */
  SAFETENSORS_VERIFY_BLOCKS = 1,  /* the units that change with those of the base */
  SAFETENSORS_VERIFY_FULL = 2,    /* also digests of the tensors that change, before and after */
  SAFETENSORS_VERIFY_WHOLE = 3    /* also the digests of the whole model; for files only */
};
/* Options of functions that apply patches. */
typedef struct safetensors_patch_options {
  size_t size;
  const safetensors_watch* watch; /* safetensors_patch_apply calls only its `interrupt` */
  int32_t verify;
  uint32_t flags; /* safetensors_patch_apply_file: SAFETENSORS_FSYNC, SAFETENSORS_SUMS */
} safetensors_patch_options;

/* Changes a tensor in memory from the base's to the target's: `tensor` has its name, dtype, shape
 * and size, and `bytes` its `nbytes` bytes; `data` and `begin` are not used. After an error, the
 * bytes are as they were. A tensor of the kind WHOLE gets the values of the patch, and what it had
 * is not compared. Follows the pointers of `tensor`, as functions that write do.
 * Codes: TENSOR_NOT_FOUND (the patch does not change it), INVALID_PATCH, WRONG_BASE (also for
 * another dtype or shape), PATCH_APPLIED, UNSUPPORTED_DTYPE (no such dtype), IO, FILE_CHANGED,
 * STOPPED, INVALID_ARGUMENT (the patch removes it, digests that are SHA-256, no such verification,
 * flags). */
SAFETENSORS_API int32_t safetensors_patch_apply(const safetensors_patch* patch,
                                                const safetensors_tensor* tensor, void* bytes,
                                                const safetensors_patch_options* options,
                                                safetensors_error* error);
/* Writes the model that a patch makes of `base`, completely and verified, or not at all. `path` may
 * be the base's own. A base of one file becomes a file, or the model of a folder if `path` is one
 * or ends with a separator. A base of several files becomes as many in a folder, with an index, and
 * replaces the model of this name as a whole: not on Windows.
 * Codes: those of safetensors_patch_apply except TENSOR_NOT_FOUND, and those of safetensors_save;
 * those of safetensors_open_model for a base of several files; DAMAGED (a base that was opened with
 * sums), SEVERAL_MODELS (another model is in the folder), IO (another process is saving),
 * INVALID_ARGUMENT (a header alone; several files and a path that ends with .safetensors), and for
 * a folder INCOMPLETE_MODEL (some files took their places, and the system refused others: the
 * command `safetensors recover` completes it). */
SAFETENSORS_API int32_t safetensors_patch_apply_file(const safetensors_patch* patch,
                                                     const safetensors_file* base, const char* path,
                                                     size_t path_size,
                                                     const safetensors_patch_options* options,
                                                     safetensors_error* error);

#ifdef __cplusplus
}
#endif

#endif
