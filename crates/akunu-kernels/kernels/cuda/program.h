// A kernel that stays on the chip and goes through a table's commands, steps of a chain included. Every group comes to every command:
// it does its share, tells that it has, and waits for all others where the next command's function does (WAIT_FOR_INPUT), by which
// time that one's first weights are on their way. All groups have to be on the chip at once.

#define COMMAND_PIECES (sizeof(ProgramCommand) / 16)

extern "C" __global__ void __launch_bounds__(THREADS, GROUPS_A_UNIT)
program(const ProgramCommand* commands, u32* arrivals, Pass* pass, u8* scratch, const u32 count, const u32 steps) {
    extern __shared__ uint4 shared[];
    __shared__ alignas(16) ProgramCommand both[2];
    const u32 thread = threadIdx.x;
    if (thread < COMMAND_PIECES) ((uint4*)&both[0])[thread] = ((const uint4*)commands)[thread];
    __syncthreads();
    u32 awaited = 0, at_hand = 0;
    for (u32 step = 0; step < steps; step++) {
        for (u32 c = 0; c < count; c++) {
            const ProgramCommand* here = &both[at_hand];
            uint4 next;
            if (thread < COMMAND_PIECES) next = ((const uint4*)(commands + (c + 1 < count ? c + 1 : 0)))[thread];
            const u32 x = here->groups[0], y = here->groups[1], groups = x * y * here->groups[2];
            bool waits = true;
            for (u32 group = blockIdx.x; group < groups; group += gridDim.x) {
                const Place at = {group % x, group / x % y, group / x / y, thread, (u8*)shared, arrivals, awaited, waits};
                switch (here->function) { EACH_FUNCTION }
                waits = false;
                __syncthreads();
            }
            // A group is never two commands ahead of another.
            if (waits) wait_for_all(arrivals, awaited, thread);
            at_hand ^= 1;
            if (thread < COMMAND_PIECES) ((uint4*)&both[at_hand])[thread] = next;
            __syncthreads();
            if (thread == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(arrivals) : "memory");
            awaited += gridDim.x;
        }
        if (step + 1 == steps) break;
        wait_for_all(arrivals, awaited, thread);
        if (*(volatile u32*)&pass->stopped) break;
    }
}
