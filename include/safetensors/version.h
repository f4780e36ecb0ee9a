/* The version of the C and C++ interface. The Python package has its own version. */
#ifndef SAFETENSORS_VERSION_H
#define SAFETENSORS_VERSION_H

#define SAFETENSORS_VERSION_MAJOR 0
#define SAFETENSORS_VERSION_MINOR 2
#define SAFETENSORS_VERSION_PATCH 0
#define SAFETENSORS_VERSION "0.2.0"

/* The version of the C ABI. It changes when programs compiled against an older safetensors.h can no
 * longer run with the library. Additions do not change it. */
#define SAFETENSORS_ABI_VERSION 1

#endif
