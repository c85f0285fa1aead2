// Emulates cuda/copies.h. All copies are done at once; with threads in reverse order, none before the thread waits for it.

namespace emulated {

// The most pending copies of a thread.
enum { MOST_COPIES = 512 };

struct Copy {
    u8* to;
    const u8* from;
    u32 bytes;
    u32 group;
};

static Copy copies[MOST_THREADS][MOST_COPIES];
static u32 copy_counts[MOST_THREADS], copy_groups[MOST_THREADS];

// Completes the copies of all groups before this one.
static void copies_done_before(u32 group) {
    u32 kept = 0;
    for (u32 i = 0; i < copy_counts[thread]; i++) {
        const Copy copy = copies[thread][i];
        if ((i32)(copy.group - group) >= 0) copies[thread][kept++] = copy;
        else if (copy.from) memcpy(copy.to, copy.from, copy.bytes);
        else memset(copy.to, 0, copy.bytes);
    }
    copy_counts[thread] = kept;
}

static void copy(void* to, const u8* from, u32 bytes, bool there, int line) {
    if ((uintptr_t)to % bytes != 0 || (uintptr_t)from % bytes != 0) fail("a copy from or to an address that is not aligned", line);
    else if (copy_counts[thread] == MOST_COPIES) fail("more copies than the emulator remembers", line);
    else copies[thread][copy_counts[thread]++] = {(u8*)to, there ? from : nullptr, bytes, copy_groups[thread]};
    if (!call->backwards) copies_done_before(copy_groups[thread] + 1);
}

}  // namespace emulated

#define copy16(to, from, there) emulated::copy(to, from, 16, there, __LINE__)
#define copy8(to, from, there) emulated::copy(to, from, 8, there, __LINE__)
#define copy4(to, from, there) emulated::copy(to, from, 4, there, __LINE__)
#define COPY_GROUP() (void)emulated::copy_groups[emulated::thread]++
#define COPIES_DONE() emulated::copies_done_before(++emulated::copy_groups[emulated::thread])
#define COPIES_DONE_BUT(n) emulated::copies_done_before(emulated::copy_groups[emulated::thread] - (n))
