/* The weight layer in C99: models of MLX, Hugging Face and GGUF as named weights.
 *
 *   safetensors_error error;
 *   safetensors_weights *model;
 *   if (safetensors_weights_open(SAFETENSORS_TEXT("model.gguf"), NULL, &model, &error)) ...
 *   if (safetensors_weights_decode(model, SAFETENSORS_TEXT("token_embedding.weight"), row, 1,
 *                                  SAFETENSORS_F32, floats, sizeof floats, NULL, &error)) ...
 *   safetensors_weights_close(model);
 *
 * The rules of safetensors.h hold here, too: results and codes, text, structs, ownership, threads.
 * docs/weights.md describes names, types and schemes.
 *
 * Faults: a function that fails with a code above 0 because of the model or of what was asked of it
 * sets `detail` of the error to a fault, which is more precise than the code: for example
 * SAFETENSORS_FAULT_QUANT_MISMATCH, where the code is SAFETENSORS_INVALID_TENSOR_INFO. It is 0 for
 * arguments that C forbids, such as NULL.
 *
 * Names: a weight has a canonical name, such as "layers.0.attention.q.weight", which is the same
 * in all formats, and a source name, which is that of the file. Functions that take a name take the
 * canonical one; or the source name of a tensor of the lists SAFETENSORS_LIST_UNMAPPED and
 * SAFETENSORS_LIST_EXTRAS, which have no other.
 *
 * Thread safety: many threads may use one model and one buffer at once. A child process after a
 * fork may use the model of its parent; its cache is empty.
 */
#ifndef SAFETENSORS_WEIGHTS_H
#define SAFETENSORS_WEIGHTS_H

#include "safetensors/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Faults. Their values are stable: new ones are added at the end. */
enum {
  SAFETENSORS_FAULT_IO = 1,              /* the system reported an error, or the file changed */
  SAFETENSORS_FAULT_BAD_MAGIC = 2,       /* neither GGUF nor safetensors */
  SAFETENSORS_FAULT_VERSION = 3,         /* a version or byte order of GGUF that is not supported */
  SAFETENSORS_FAULT_TRUNCATED = 4,       /* the file ends before what it claims to hold */
  SAFETENSORS_FAULT_OVERFLOW = 5,        /* a size does not fit in 64 bits */
  SAFETENSORS_FAULT_LIMIT = 6,           /* a count, length or depth above what is allowed */
  SAFETENSORS_FAULT_DUPLICATE = 7,       /* a name or key occurs twice */
  SAFETENSORS_FAULT_BAD_NAME = 8,        /* a name or key is empty, too long, not UTF-8 */
  SAFETENSORS_FAULT_BAD_TYPE = 9,        /* a type that does not exist or does not fit */
  SAFETENSORS_FAULT_BAD_SHAPE = 10,      /* dimensions or rows that the tensor cannot have */
  SAFETENSORS_FAULT_BAD_OFFSET = 11,     /* a tensor outside the data, or overlapping another */
  SAFETENSORS_FAULT_ALIGNMENT = 12,      /* an invalid alignment, or an offset not aligned */
  SAFETENSORS_FAULT_JSON = 13,           /* text that is not JSON, or not the expected JSON */
  SAFETENSORS_FAULT_CONFIG = 14,         /* a configuration value of a wrong type or range */
  SAFETENSORS_FAULT_MISSING_SHARD = 15,  /* a file of a set is absent */
  SAFETENSORS_FAULT_QUANT_MISMATCH = 16, /* quantisation parameters and shapes disagree */
  SAFETENSORS_FAULT_MIXED_TYPES = 17,    /* tensors of different types cannot be fused */
  SAFETENSORS_FAULT_F16_OVERFLOW = 18,   /* a value is too large for F16 */
  SAFETENSORS_FAULT_UNKNOWN_TENSOR = 19, /* no tensor of that name */
  SAFETENSORS_FAULT_UNSUPPORTED = 20     /* a format, type or scheme that is not supported */
};
/* Returns the name of a fault, such as "quant_mismatch"; NULL if there is no such fault. */
SAFETENSORS_API const char* safetensors_fault_name(int32_t fault);

/* An open model. Immutable. */
typedef struct safetensors_weights safetensors_weights;

/* Where the memory of buffers comes from. Any thread may call its functions, several at once. They
 * must not ask for a weight, which may be the one whose memory they allocate. */
typedef struct safetensors_allocator {
  size_t size;
  void* context; /* the first argument of its functions */
  /* Returns `nbytes` bytes (never 0) that the processor can write to, aligned to 64 bytes or more.
   * NULL: OUT_OF_MEMORY. */
  void* (*allocate)(void* context, size_t nbytes);
  /* Frees what `allocate` returned, when the last reference to its buffer is freed. */
  void (*deallocate)(void* context, void* memory, size_t nbytes);
  /* Called exactly once, when nothing uses the allocator any more, also if no model is opened. Only
   * a struct whose `size`, `allocate` or `deallocate` is wrong, or whose options have a wrong
   * `size`, is not taken. NULL: nothing to do. */
  void (*release)(void* context);
} safetensors_allocator;

/* How MLX quantises. */
enum {
  SAFETENSORS_QUANT_NONE = 0,
  SAFETENSORS_QUANT_AFFINE = 1,
  SAFETENSORS_QUANT_MXFP4 = 2,
  SAFETENSORS_QUANT_MXFP8 = 3,
  SAFETENSORS_QUANT_NVFP4 = 4
};
/* Flags of safetensors_weights_options. */
enum {
  SAFETENSORS_WEIGHTS_LAYOUT_HF = 1,          /* numbers of the Hugging Face checkpoint that a GGUF
                                                 file was made from; fails where that cannot be
                                                 undone */
  SAFETENSORS_WEIGHTS_KEEP_BF16 = 2,          /* safetensors_weights_get returns BF16 as stored, not
                                                 F16 */
  SAFETENSORS_WEIGHTS_KEEP_SCALES = 4,        /* likewise the scales and biases of packs */
  SAFETENSORS_WEIGHTS_ALLOW_F16_OVERFLOW = 8, /* values too large for F16 become infinite */
  SAFETENSORS_WEIGHTS_NO_MMAP = 16,           /* read on demand, map nothing */
  SAFETENSORS_WEIGHTS_LAX_INDEX = 32,         /* tensors that an index lacks only cause a warning */
  SAFETENSORS_WEIGHTS_ALLOW_GAPS = 64 /* accept unused bytes between tensors of a GGUF file */
};
typedef struct safetensors_weights_options {
  size_t size;
  uint32_t flags;
  /* Parameters of packs for which the files state none: of values that share a scale,
   * `quant_group_size` follow one another on the last axis. */
  int32_t quant_mode; /* SAFETENSORS_QUANT_NONE: there are none; the next two are 0 then */
  uint32_t quant_bits;
  uint32_t quant_group_size;
  uint64_t
      cache_nbytes; /* above this sum, the buffers used least recently are freed; 0: no limit */
  const char* name; /* which model of a folder of safetensors files, as in safetensors_options */
  size_t name_size;
  const char* variant;
  size_t variant_size;
  const safetensors_allocator* allocator; /* if set, only _get_stored and _get_part return views */
} safetensors_weights_options;

/* Opens a folder (safetensors files of MLX or Hugging Face with config.json, or GGUF), a single
 * .safetensors or .gguf file, or any file of a split GGUF model. Reads headers only. Close *weights
 * with safetensors_weights_close.
 * Safe for untrusted input.
 * Codes: 1 to 11, UNSUPPORTED_DTYPE, NOT_REGULAR_FILE, FILE_CHANGED, NO_MODEL, SEVERAL_MODELS,
 * INCOMPLETE_MODEL (a file of a numbered set, of an index or of a split GGUF model is absent), IO,
 * INVALID_ARGUMENT. */
SAFETENSORS_API int32_t safetensors_weights_open(const char* path, size_t path_size,
                                                 const safetensors_weights_options* options,
                                                 safetensors_weights** weights,
                                                 safetensors_error* error);
/* Opens a model of files that the program opens, as safetensors_weights_open does a folder: its
 * safetensors files, with config.json and such beside them if they are among the names, or its only
 * GGUF model. Names that the source does not list are asked for only if they are shards of an
 * index, or parts of a split GGUF model. `label` names the folder in errors and paths, and may be
 * empty. Reads headers only. Close *weights with safetensors_weights_close.
 *
 * `open` is called only before this function returns, for several safetensors files at once. The
 * sources and the folder are released when the model is freed: buffers have memory of their own, as
 * with SAFETENSORS_WEIGHTS_NO_MMAP. `read` of a source must not ask for a weight of the model: it
 * could wait for itself. The source and the allocator of the options are both released exactly
 * once, also if no model is opened, except for a struct that is not taken.
 * Safe for untrusted input.
 * Codes: those of safetensors_weights_open except NOT_REGULAR_FILE; STOPPED, the codes that the
 * callbacks fail with, INVALID_ARGUMENT also for a source that is wrong or returns more than it was
 * asked for. */
SAFETENSORS_API int32_t safetensors_weights_open_source(const safetensors_model_source* source,
                                                        const char* label, size_t label_size,
                                                        const safetensors_weights_options* options,
                                                        safetensors_weights** weights,
                                                        safetensors_error* error);
/* Frees a model and all memory that its functions point to, except buffers. Does nothing for NULL.
 */
SAFETENSORS_API void safetensors_weights_close(safetensors_weights* weights);

/* Formats of models. */
enum { SAFETENSORS_FORMAT_HF = 0, SAFETENSORS_FORMAT_MLX = 1, SAFETENSORS_FORMAT_GGUF = 2 };
/* Sets *format to that of the model at a path, by its content. Opens no model.
 * Codes: those of safetensors_weights_open. */
SAFETENSORS_API int32_t safetensors_weights_detect(const char* path, size_t path_size,
                                                   int32_t* format, safetensors_error* error);

/* What a model is. */
typedef struct safetensors_weights_info {
  size_t count;          /* of weights with a canonical name */
  size_t metadata_count; /* of items of metadata */
  const char* scheme; /* the quantisation scheme of most weights, such as "fp8"; empty: of none */
  size_t scheme_size;
  const char* output_name; /* the weight that computes the logits; empty: there is none */
  size_t output_name_size;
  int32_t format;
  uint32_t reserved; /* 0 */
} safetensors_weights_info;
/* Sets *info to what the model is.
 * Codes: none but those that any function may return. */
SAFETENSORS_API int32_t safetensors_weights_look(const safetensors_weights* weights,
                                                 safetensors_weights_info* info,
                                                 safetensors_error* error);

/* Lists of a model. */
enum {
  SAFETENSORS_LIST_UNMAPPED = 0, /* names in the file that no rule maps */
  SAFETENSORS_LIST_EXTRAS = 1, /* names of scales of activations and caches, which are no weights */
  SAFETENSORS_LIST_WARNINGS = 2,
  SAFETENSORS_LIST_FILES = 3 /* paths of the files that contain the tensors */
};
/* Returns a list as a table of *count texts. Returns NULL, with a *count of 0, if the list is
 * empty, `weights` is NULL, there is no such list, or no memory. `count` may be NULL. */
SAFETENSORS_API const safetensors_text* safetensors_weights_list(const safetensors_weights* weights,
                                                                 int32_t list, size_t* count);

/* How the values of a weight are stored. */
enum {
  SAFETENSORS_STORAGE_RAW = 0,        /* one value after another */
  SAFETENSORS_STORAGE_MLX_PACK = 1,   /* words of packed values; scales and biases beside them */
  SAFETENSORS_STORAGE_GGML_BLOCK = 2, /* blocks of values, each with its own scales */
  SAFETENSORS_STORAGE_SCHEME = 3      /* tensors of a quantisation scheme: see `scheme` */
};
/* Flags of safetensors_weight. */
enum {
  SAFETENSORS_WEIGHT_DECODED = 1,    /* safetensors_weights_decode supports it */
  SAFETENSORS_WEIGHT_SYMMETRIC = 2,  /* of a scheme: no zero point is subtracted from the codes */
  SAFETENSORS_WEIGHT_NORM_OFFSET = 4 /* `norm_offset` is known */
};
/* A weight, without its bytes. */
typedef struct safetensors_weight {
  const char* name; /* canonical; the source name if there is no other */
  size_t name_size;
  const char* source; /* name in the file */
  size_t source_size;
  const char* type_name; /* such as "Q4_K", "mlx_q4", "F16" */
  size_t type_name_size;
  const char* scheme; /* of SAFETENSORS_STORAGE_SCHEME, such as "fp8"; else empty */
  size_t scheme_size;
  const int64_t* shape; /* `rank` sizes, slowest axis first; of values, not of packed words */
  size_t rank;
  uint64_t stored_nbytes; /* in the file, with all parts */
  uint64_t group_rows;    /* values that share a scale, of a pack or scheme; else 0 */
  uint64_t group_columns;
  double norm_offset;   /* to add to a stored norm weight before multiplying by it */
  uint32_t type;        /* ggml's number, or one from 99 on (docs/weights.md) */
  uint32_t scales_type; /* of a pack: type of the scales in safetensors_weights_get's buffer */
  int32_t storage;
  int32_t quant_mode;  /* of a pack; else SAFETENSORS_QUANT_NONE */
  uint32_t bits;       /* of one value, of a pack or scheme; else 0 */
  uint32_t part_count; /* of the tensors of the file that make it up */
  uint32_t flags;
  uint32_t reserved; /* 0 */
} safetensors_weight;
/* Sets *weight to weight number `index`, in the order of canonical names; layers are in the order
 * of their numbers.
 * Codes: INDEX_OUT_OF_BOUNDS. */
SAFETENSORS_API int32_t safetensors_weights_at(const safetensors_weights* weights, size_t index,
                                               safetensors_weight* weight,
                                               safetensors_error* error);
/* Sets *weight to the weight with this name.
 * Codes: TENSOR_NOT_FOUND (the text suggests similar names). */
SAFETENSORS_API int32_t safetensors_weights_find(const safetensors_weights* weights,
                                                 const char* name, size_t name_size,
                                                 safetensors_weight* weight,
                                                 safetensors_error* error);
/* Sets *weight to the weight with this source name, which of several parts is that of the first.
 * If several weights have it, takes the first of them.
 * Codes: TENSOR_NOT_FOUND. */
SAFETENSORS_API int32_t safetensors_weights_find_source(const safetensors_weights* weights,
                                                        const char* source, size_t source_size,
                                                        safetensors_weight* weight,
                                                        safetensors_error* error);

/* A tensor of the file that belongs to a weight. */
typedef struct safetensors_part {
  const char* role; /* last component of the name, such as "weight", "scales" */
  size_t role_size;
  const char* source;
  size_t source_size;
  const char* type_name; /* as stored, such as "F8_E4M3" */
  size_t type_name_size;
  const int64_t* shape; /* as stored */
  size_t rank;
  uint64_t stored_nbytes;
  uint32_t type;
  uint32_t reserved; /* 0 */
} safetensors_part;
/* Sets *part to part number `index` of a weight. Parts are in the order of the sections of
 * safetensors_weights_get's buffer.
 * Codes: TENSOR_NOT_FOUND, INDEX_OUT_OF_BOUNDS. */
SAFETENSORS_API int32_t safetensors_weights_part(const safetensors_weights* weights,
                                                 const char* name, size_t name_size, size_t index,
                                                 safetensors_part* part, safetensors_error* error);

/* Kinds of values. */
enum {
  SAFETENSORS_VALUE_NONE = 0,     /* the files do not state it */
  SAFETENSORS_VALUE_BOOLEAN = 1,  /* `integer`: 0 or 1 */
  SAFETENSORS_VALUE_INTEGER = 2,  /* `integer` */
  SAFETENSORS_VALUE_UNSIGNED = 3, /* (uint64_t)`integer`, which is above INT64_MAX */
  SAFETENSORS_VALUE_NUMBER = 4,   /* `number` */
  SAFETENSORS_VALUE_STRING = 5,   /* `string`; of a file, it need not be UTF-8 */
  SAFETENSORS_VALUE_INTEGERS = 6, /* `items`: const int64_t* */
  SAFETENSORS_VALUE_NUMBERS = 7,  /* `items`: const double* */
  SAFETENSORS_VALUE_STRINGS = 8,  /* `items`: const safetensors_text* */
  SAFETENSORS_VALUE_ARRAY = 9,  /* `items`: numbers of `stored_type` as in the file, little-endian,
                             of any alignment */
  SAFETENSORS_VALUE_NESTED = 10 /* an array of arrays: its number only, as no model has one */
};
/* A value of the configuration or of the metadata. All members that its kind does not name are 0,
 * except that `number` also has what `integer` has. */
typedef struct safetensors_value {
  int32_t kind;
  int32_t stored_type; /* of metadata: GGUF's number of the type, of an array that of its elements;
                          of the configuration: -1 */
  int64_t integer;
  double number;
  const char* string;
  size_t string_size;
  const void* items;
  size_t count; /* of items */
} safetensors_value;
/* Sets *value to a field of the configuration: "n_layers", "rope_scaling.factor",
 * "quantization.bits". It comes from the file: check it before it determines a size.
 * Codes: INVALID_ARGUMENT (there is no such field). */
SAFETENSORS_API int32_t safetensors_weights_config(const safetensors_weights* weights,
                                                   const char* field, size_t field_size,
                                                   safetensors_value* value,
                                                   safetensors_error* error);
/* Returns the names of all fields as a table of *count texts, which is valid while the library is
 * loaded. Returns NULL, with a *count of 0, if there is no memory. `count` may be NULL. */
SAFETENSORS_API const safetensors_text* safetensors_weights_config_fields(size_t* count);
/* Sets *key and *value, each unless it is NULL, to item `index` of the metadata: of the GGUF file,
 * or of the first safetensors file, in its order. An array of strings is made into a table at the
 * first request.
 * Codes: INDEX_OUT_OF_BOUNDS. */
SAFETENSORS_API int32_t safetensors_weights_metadata_at(const safetensors_weights* weights,
                                                        size_t index, safetensors_text* key,
                                                        safetensors_value* value,
                                                        safetensors_error* error);
/* Sets *value to the metadata of a key; its kind is SAFETENSORS_VALUE_NONE if there is none.
 * Codes: none but those that any function may return. */
SAFETENSORS_API int32_t safetensors_weights_metadata(const safetensors_weights* weights,
                                                     const char* key, size_t key_size,
                                                     safetensors_value* value,
                                                     safetensors_error* error);

/* Immutable bytes with counted references. They are valid until the last reference is freed, also
 * after the model is closed. */
typedef struct safetensors_buffer safetensors_buffer;
#define SAFETENSORS_SECTIONS 8
/* The bytes of a buffer: its sections follow one another.
 *
 *   a pack     packed words, scales, biases
 *   nvfp4      packed words, scales, the global scale if there is one
 *   a scheme   its parts, in their order
 *   others     one section */
typedef struct safetensors_bytes {
  const void* data; /* aligned to 64 bytes unless is_view is 1 */
  uint64_t nbytes;
  uint64_t sections[SAFETENSORS_SECTIONS]; /* their sizes; 0 for those that the weight lacks */
  uint32_t is_view;  /* 1: pages of the mapped file, at any address. Reading them after another
                        process truncated the file ends this process (SIGBUS) */
  uint32_t reserved; /* 0 */
} safetensors_bytes;
/* Sets *bytes to the bytes of a buffer.
 * Codes: none but those that any function may return. */
SAFETENSORS_API int32_t safetensors_buffer_bytes(const safetensors_buffer* buffer,
                                                 safetensors_bytes* bytes,
                                                 safetensors_error* error);
/* Returns `buffer`, with one more reference to it. Returns NULL for NULL. */
SAFETENSORS_API safetensors_buffer* safetensors_buffer_share(safetensors_buffer* buffer);
/* Frees one reference. Does nothing for NULL. */
SAFETENSORS_API void safetensors_buffer_free(safetensors_buffer* buffer);

/* The next four functions set *buffer to one reference, which safetensors_buffer_free frees. Of a
 * watch they call `interrupt` only, which must not ask for a weight; `progress` is
 * INVALID_ARGUMENT. A call for a buffer that another thread builds waits for that thread, and fails
 * as that one does, also with STOPPED. Meanwhile its own `interrupt` is not called. */

/* Gets the bytes of a weight for a compute kernel. Plain tensors and GGUF blocks are views of the
 * mapped file. Packs are assembled as words, scales and biases, weights of a scheme as their parts.
 * BF16 of safetensors becomes F16, unless an option keeps it. The buffer is cached.
 * Codes: TENSOR_NOT_FOUND, INVALID_TENSOR_INFO, IO, FILE_CHANGED, STOPPED, INVALID_ARGUMENT (a
 * value is too large for F16). */
SAFETENSORS_API int32_t safetensors_weights_get(const safetensors_weights* weights,
                                                const char* name, size_t name_size,
                                                const safetensors_watch* watch,
                                                safetensors_buffer** buffer,
                                                safetensors_error* error);
/* Gets the bytes of a weight as stored, of one of several parts the first. In safetensors files
 * also takes the source name of any tensor. A view, or newly read at each call. Codes:
 * TENSOR_NOT_FOUND, IO, FILE_CHANGED, STOPPED. */
SAFETENSORS_API int32_t safetensors_weights_get_stored(const safetensors_weights* weights,
                                                       const char* name, size_t name_size,
                                                       const safetensors_watch* watch,
                                                       safetensors_buffer** buffer,
                                                       safetensors_error* error);
/* Gets the bytes of part number `index` of a weight, which safetensors_weights_part describes. A
 * view, or newly read at each call.
 * Codes: those of safetensors_weights_get_stored, INDEX_OUT_OF_BOUNDS. */
SAFETENSORS_API int32_t safetensors_weights_get_part(const safetensors_weights* weights,
                                                     const char* name, size_t name_size,
                                                     size_t index, const safetensors_watch* watch,
                                                     safetensors_buffer** buffer,
                                                     safetensors_error* error);
/* Gets several weights as one, concatenated along the first axis: all words, then all scales, then
 * all biases; of a scheme part by part. The buffer is cached.
 * Codes: those of safetensors_weights_get; INVALID_ARGUMENT also if they differ in more than their
 * rows, or cannot be joined by rows. */
SAFETENSORS_API int32_t safetensors_weights_fuse(const safetensors_weights* weights,
                                                 const safetensors_text* names, size_t count,
                                                 const safetensors_watch* watch,
                                                 safetensors_buffer** buffer,
                                                 safetensors_error* error);
/* Removes all buffers from the cache. Those in use stay valid. Does nothing for NULL. */
SAFETENSORS_API void safetensors_weights_clear_cache(safetensors_weights* weights);

#define SAFETENSORS_ALL_ROWS (-1) /* all rows that remain */
/* Decodes `rows` rows from row `row` on to F32, F16 or BF16, rounded once to the nearest, ties to
 * even. A row is one index of all axes but the last; a weight of one axis or none is one row.
 * `room`, the size of the memory at `to`, must be that of the values; `to` is aligned as `dtype`.
 * Large results are decoded by several threads. Nothing is cached. After an error the contents of
 * `to` are unspecified. The watch is as in safetensors_weights_get.
 * Codes: TENSOR_NOT_FOUND, INVALID_TENSOR_INFO (no such rows, another room), UNSUPPORTED_DTYPE
 * (another `dtype`, or a scheme that is not decoded), IO, FILE_CHANGED, STOPPED, INVALID_ARGUMENT
 * (`to` or `room` is no multiple of the size of a value). */
SAFETENSORS_API int32_t safetensors_weights_decode(const safetensors_weights* weights,
                                                   const char* name, size_t name_size, int64_t row,
                                                   int64_t rows, int32_t dtype, void* to,
                                                   uint64_t room, const safetensors_watch* watch,
                                                   safetensors_error* error);

#ifdef __cplusplus
}
#endif

#endif
