// Words of cuda/bulk.h. Nothing arrives before somebody waits for it.

namespace emulated {

struct BulkCopy {
    u8* to;
    const u8* from;
    u32 bytes;
    u64* arrival;
};

enum { MOST_BULK_COPIES = 4096 };

static BulkCopy bulk_copies[MOST_BULK_COPIES];
static u32 bulk_count;

// Of an arrival: the turn that it is in, whether somebody said what would come, and the bytes that are still to come.
struct Arrival {
    u32 bytes;
    u16 turn, expected;
};

static Arrival* arrival_of(u64* word) { return (Arrival*)word; }

static void new_arrival(u64* word) { *arrival_of(word) = {0, 0, 0}; }

static void expect_bytes(u64* word, u32 bytes, int line) {
    Arrival* arrival = arrival_of(word);
    if (arrival->expected) fail("an arrival that is expected twice", line);
    arrival->expected = 1;
    arrival->bytes += bytes;
}

static void bulk_copy(u8* to, const u8* from, u32 bytes, u64* arrival, int line) {
    if (((uintptr_t)to | (uintptr_t)from | bytes) % 16 != 0) fail("a bulk copy that is not aligned", line);
    else if (bulk_count == MOST_BULK_COPIES) fail("more bulk copies than the emulator remembers", line);
    else bulk_copies[bulk_count++] = {to, from, bytes, arrival};
}

static void await_arrival(u64* word, u32 turn, int line) {
    Arrival* arrival = arrival_of(word);
    if (arrival->turn != turn) return;
    u32 kept = 0;
    for (u32 i = 0; i < bulk_count; i++) {
        const BulkCopy copy = bulk_copies[i];
        if (copy.arrival != word) {
            bulk_copies[kept++] = copy;
            continue;
        }
        memcpy(copy.to, copy.from, copy.bytes);
        arrival->bytes -= copy.bytes;
    }
    bulk_count = kept;
    if (!arrival->expected || arrival->bytes != 0) fail("a wait for what does not come", line);
    *arrival = {0, (u16)(1 - turn), 0};
}

}  // namespace emulated

#define new_arrival(arrival) emulated::new_arrival(arrival)
#define ARRIVALS_READY()
#define expect_bytes(arrival, bytes) emulated::expect_bytes(arrival, bytes, __LINE__)
#define bulk_copy(to, from, bytes, arrival) emulated::bulk_copy(to, from, bytes, arrival, __LINE__)
#define await_arrival(arrival, turn) emulated::await_arrival(arrival, turn, __LINE__)
