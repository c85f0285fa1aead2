// Metal's built-in types and words for clang in OpenCL C++ mode, whose rules for address spaces are those of Metal: pointers to
// different ones cannot be mixed, not even by casts, and structs are copied between them. Metal requires an explicit address space
// where OpenCL uses the generic one; a test of akunu-kernels rejects pointers without one.

#define device __attribute__((opencl_global_device))
// Read-only in Metal, which is not checked here. Pointers to it cannot be converted to pointers to device memory.
#define constant __global
#define threadgroup __local
#define thread __private
#define kernel

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __SIZE_TYPE__ size_t;

// Since Metal 3.1.
struct bfloat {
    ushort bits;
};

typedef char char4 __attribute__((ext_vector_type(4)));
typedef float float2 __attribute__((ext_vector_type(2)));
typedef float float4 __attribute__((ext_vector_type(4)));
typedef uint uint2 __attribute__((ext_vector_type(2)));
typedef uint uint3 __attribute__((ext_vector_type(3)));
typedef uint uint4 __attribute__((ext_vector_type(4)));
typedef ulong ulong2 __attribute__((ext_vector_type(2)));
