/* Version of the C++ and C interface. The Python package has one of its own. For C and C++. */
#ifndef SAFETENSORS_VERSION_H
#define SAFETENSORS_VERSION_H

#define SAFETENSORS_VERSION_MAJOR 0
#define SAFETENSORS_VERSION_MINOR 1
#define SAFETENSORS_VERSION_PATCH 0
#define SAFETENSORS_VERSION "0.1.0"

/* Of the C interface. It changes when a program that was compiled against an older safetensors.h
 * cannot run with the library; additions leave it as it is. */
#define SAFETENSORS_ABI_VERSION 1

#endif
