/* The version of the C and C++ interface. The Python package has its own version. */
#ifndef SAFETENSORS_VERSION_H
#define SAFETENSORS_VERSION_H

#define SAFETENSORS_VERSION_MAJOR 0
#define SAFETENSORS_VERSION_MINOR 2
#define SAFETENSORS_VERSION_PATCH 0
#define SAFETENSORS_VERSION "0.2.0"

/* One number to compare with: #if SAFETENSORS_VERSION_NUMBER >= 200 asks for 0.2.0. */
#define SAFETENSORS_VERSION_NUMBER \
  (SAFETENSORS_VERSION_MAJOR * 10000 + SAFETENSORS_VERSION_MINOR * 100 + SAFETENSORS_VERSION_PATCH)

/* The version of the C ABI. It changes when programs compiled against an older safetensors.h can no
 * longer run with the library. Additions do not change it. */
#define SAFETENSORS_ABI_VERSION 2

#endif
