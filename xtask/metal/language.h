// What Metal's compiler has built in, said to clang in its OpenCL C++ mode, whose rules for address spaces are Metal's: pointers to
// different ones do not mix, by casts neither, and structs are copied between them. Where Metal wants a space to be named and OpenCL
// takes the generic one, akunu-kernels' own test of words refuses a pointer without one.

#define device __attribute__((opencl_global_device))
// Read-only, which this does not show; no pointer to it is one to device memory.
#define constant __global
#define threadgroup __local
#define thread __private
#define kernel

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __SIZE_TYPE__ size_t;

// Of Metal 3.1 on.
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
