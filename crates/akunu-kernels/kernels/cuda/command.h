// A command of a program, as `ProgramCommand` in Rust.
struct ProgramCommand {
    u8* pointers[16];
    Params params;
    u32 function;
    u32 groups[3];
};

#define INLINE_AS_ASKED __device__ __noinline__
