//! The emulator detects the errors that it is designed to detect.

use akunu_kernels::{Function, Launch, Source};

use crate::library::{Stacks, library, skipped};
use crate::memory::Memory;

/// Kernels that each contain one kind of error, except the first.
static KERNELS: Source = Source {
    name: "wrong.h",
    text: "
BODY(sums_of_lanes) {
    const f32 sum = SIMD_SUM((f32)at.in_group);
    TG_ARRAY(f32, sums, 0);
    if (LANE == 0) sums[SIMD] = sum;
    BARRIER();
    ((DEVICE f32*)in.out)[at.group_x * THREADS + at.in_group] = sums[SIMDS - 1 - SIMD];
}
BODY(a_lane_is_missing) {
    if (LANE != 7) ((DEVICE f32*)in.out)[0] = SIMD_SUM(1.0f);
}
BODY(lanes_are_at_different_words) {
    f32 sum = 0;
    if (LANE < 16) sum = SIMD_MAX(1.0f);
    else sum = SIMD_SUM(1.0f);
    ((DEVICE f32*)in.out)[0] = sum;
}
BODY(a_simd_group_skips_a_barrier) {
    if (SIMD == 1) return;
    BARRIER();
}
BODY(a_load_is_not_aligned) {
    ((DEVICE u32*)in.out)[0] = read16(in.out + 8).x;
}
BODY(the_last_thread_wins) {
    ((DEVICE f32*)in.out)[0] = (f32)at.in_group;
}
BODY(tiles_are_transposed_and_multiplied) {
    TG_ARRAY(f32, numbers, 0);
    THREADGROUP f32* const mine = numbers + SIMD * 64;
    mine[LANE] = (f32)LANE;
    mine[32 + LANE] = (f32)(32 + LANE);
    SIMD_SYNC();
    Tile a, b, sums = filled_tile(0.5f);
    load_tile(&a, mine, 8);
    load_tile_transposed(&b, mine, 8);
    multiply_tiles(&sums, &a, &b);
    SIMD_SYNC();
    store_tile(&sums, mine, 8);
    SIMD_SYNC();
    ((DEVICE f32*)in.out)[at.group_x * THREADS + at.in_group] = mine[2 * LANE];
}
BODY(lanes_look_for_a_tile_in_two_places) {
    TG_ARRAY(f32, numbers, 0);
    Tile tile;
    load_tile(&tile, numbers + LANE / 31, 8);
}
BODY(a_lane_does_not_store_its_part) {
    TG_ARRAY(f32, numbers, 0);
    Tile tile = filled_tile(0);
    if (LANE != 3) store_tile(&tile, numbers, 8);
}
BODY(threadgroup_memory_is_read_before_it_is_written) {
    TG_ARRAY(f32, poisoned, 0);
    ((DEVICE f32*)in.out)[0] = poisoned[1];
}
",
};

/// Requests the emulator's simdgroup matrices.
static TILES: Source = Source { name: "metal/tiles.h", text: "" };

/// The 128 f32 that 2 threadgroups of 64 threads write, or the emulator's error.
fn run(entry: &'static str, backwards: bool) -> Result<Vec<f32>, String> {
    let function = Function {
        name: entry.into(),
        entry,
        sources: vec![&TILES, &KERNELS],
        variant: vec![],
        constants: vec![("THREADS", 64)],
        arguments: vec!["out"],
    };
    let library = library(&function)?;
    let launch = Launch { function, groups: [2, 1, 1], threads: 64, shared_bytes: 512 };
    let mut out = Memory::zeroed(512).unwrap();
    let mut stacks = Stacks::new().unwrap();
    let params = Memory::zeroed(64).unwrap();
    let start = out.bytes_mut().as_mut_ptr();
    library.run(&launch, &[start, start, start, params.start()], &mut stacks, backwards)?;
    Ok(out.bytes().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

#[test]
fn threads_meet_at_simd_words_and_barriers() {
    if skipped() {
        return;
    }
    let first: f32 = (0..32).map(|i| i as f32).sum();
    let sums: Vec<f32> = (0..128).map(|i| if i % 64 < 32 { first + 1024.0 } else { first }).collect();
    for backwards in [false, true] {
        assert_eq!(run("sums_of_lanes", backwards).unwrap(), sums);
    }
}

#[test]
fn tiles_are_products_of_what_all_lanes_loaded() {
    if skipped() {
        return;
    }
    let number = |row: usize, k: usize| (row * 8 + k) as f32;
    let product = |e: usize| 0.5 + (0..8).map(|k| number(e / 8, k) * number(e % 8, k)).sum::<f32>();
    let products: Vec<f32> = (0..128).map(|i| product(i % 32 * 2)).collect();
    for backwards in [false, true] {
        assert_eq!(run("tiles_are_transposed_and_multiplied", backwards).unwrap(), products);
    }
}

#[test]
fn meetings_that_cannot_happen_are_errors() {
    if skipped() {
        return;
    }
    for (entry, what) in [
        ("a_lane_is_missing", "a SIMD word that some lanes do not reach"),
        ("lanes_are_at_different_words", "a SIMD word that some lanes do not reach"),
        ("a_simd_group_skips_a_barrier", "a BARRIER that some threads do not reach"),
        ("a_lane_does_not_store_its_part", "a SIMD word that some lanes do not reach"),
        ("lanes_look_for_a_tile_in_two_places", "a tile that lanes look for in different places"),
        ("a_load_is_not_aligned", "a load from an address that is not aligned"),
    ] {
        for backwards in [false, true] {
            let error = run(entry, backwards).unwrap_err();
            assert!(error.starts_with(&format!("{entry}: {what}")), "{error}");
        }
    }
}

#[test]
fn races_and_unwritten_memory_show_in_what_comes_out() {
    if skipped() {
        return;
    }
    let last = |backwards| run("the_last_thread_wins", backwards).unwrap()[0];
    assert_eq!((last(false), last(true)), (63.0, 0.0));
    assert!(run("threadgroup_memory_is_read_before_it_is_written", false).unwrap()[0].is_nan());
}

#[test]
fn what_does_not_compile_is_an_error_that_says_where() {
    if skipped() {
        return;
    }
    let error = run("not_there", false).unwrap_err();
    assert!(error.contains("not_there does not compile") && error.contains("error"), "{error}");
}
