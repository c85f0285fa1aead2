//! Every kernel against the reference, over the shapes of the CPU's tests; and in two orders of threads, which must
//! give the same bits.
//!
//! Compiling takes most of the time, so of a test's texts only those are compiled that cover something new
//! ([`Cover`]): every value of a variant and every weight type. Of these the first of each kernel and every third run
//! (every sixtieth with the fewest cases), in one shape. With `AKUNU_TEST_CASES=many` all run, also every pair of these that
//! occurs together in a spec, and what is compiled runs in all its shapes. With `AKUNU_TEST_CASES=all`, all are compiled.

#![cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashSet;

use akunu_device_testing::attention::{self, Seen};
use akunu_device_testing::{
    Case, Spec, asking, cache, eights, experts, folded, halves, latent, matrices, packed, picked, rows, state,
};
use akunu_emulated::{Emulator, skipped};
use akunu_kernels::{Cover, Function, Work, emulated_text, launches, repack, weights};
use akunu_plan::ops;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::verify::compare;
use akunu_plan::{Access, DType, Kernel, KvType, OutputForms};
use akunu_testing::{Cases, cases, few_or_many, fewest_or};

fn check_all(specs: impl IntoIterator<Item = Spec>) {
    check_cases(specs.into_iter().map(|spec| (spec.name.clone(), spec.whole())));
}

/// As [`check_all`] of those that the emulator takes the longest for: with many cases, every third.
fn check_third(specs: impl IntoIterator<Item = Spec>) {
    check_all(specs.into_iter().step_by(if cases() == Cases::Many { 3 } else { 1 }));
}

fn check_cases(cases: impl IntoIterator<Item = (String, Case)>) {
    if skipped() {
        return;
    }
    let mut few = Few::new(Emulator::default);
    cases.into_iter().for_each(|(name, case)| few.check(&name, &case));
}

/// Cases on a device, and the selection of those that are worth compiling.
struct Few<E> {
    emulator: E,
    cover: Option<Cover>,
    /// The texts that were offered, and the kernels that ran.
    seen: HashSet<String>,
    /// How many of the cases so far had a new text.
    new: usize,
    checked: usize,
}

impl<E: Fn() -> Emulator> Few<E> {
    fn new(emulator: E) -> Few<E> {
        let cover = match cases() {
            Cases::Fewest | Cases::Few => Some(Cover::of_numbers()),
            Cases::Many => Some(Cover::of_pairs()),
            Cases::All => None,
        };
        Few { emulator, cover, seen: HashSet::new(), new: 0, checked: 0 }
    }

    fn check(&mut self, name: &str, case: &Case) {
        let command = &case.table.commands[0];
        let works = launches(&case.table, 0, (self.emulator)().chip()).unwrap();
        let repacks: Vec<_> = weights(command).iter().flat_map(repack).collect();
        let launched = works.iter().filter_map(Work::launch).chain(&repacks);
        let functions: Vec<&Function> = launched.map(|launch| &launch.function).collect();
        if self.cover.as_mut().is_none_or(|cover| cover.takes(&functions)) && self.may_run(&functions) {
            check_on(&self.emulator, name, case);
            self.checked += 1;
        }
    }

    /// With few cases the first of each kernel, and every third of those that have a new text; with the fewest, every
    /// sixtieth.
    fn may_run(&mut self, functions: &[&Function]) -> bool {
        if cases() > Cases::Few {
            return true;
        }
        let first = functions.iter().filter(|f| self.seen.insert(f.entry.into())).count() > 0;
        let new = functions.iter().filter(|f| self.seen.insert(emulated_text(f))).count() > 0;
        self.new += usize::from(new);
        let step = if cases() == Cases::Fewest { 60 } else { 3 };
        first || new && self.new.is_multiple_of(step)
    }
}

fn check_on(emulator: impl Fn() -> Emulator, name: &str, case: &Case) {
    let expected = case.run(&mut ReferenceDevice::new());
    let found = case.run(&mut emulator().device().unwrap());
    let command = &case.table.commands[0];
    let written: Vec<_> = case.kernel.bindings().into_iter().filter(|s| s.access != Access::Read).collect();
    for ((slot, e), f) in written.iter().zip(&expected).zip(&found) {
        let (error, tolerance) = compare(command, *slot, e, f);
        assert!(error <= tolerance, "{name}: {} is off by {error:e}, more than {tolerance:e}", slot.name);
    }
    let backwards = case.run(&mut emulator().backwards().device().unwrap());
    assert!(backwards == found, "{name} depends on the order of threads");
}

/// Checks the cases whose launch is `wanted`; returns how many.
fn check_those(
    emulator: impl Fn() -> Emulator,
    specs: impl IntoIterator<Item = Spec>,
    wanted: impl Fn(&Case, &Function) -> bool,
) -> usize {
    let mut few = Few::new(emulator);
    for spec in specs {
        let case = spec.whole();
        let works = launches(&case.table, 0, (few.emulator)().chip()).unwrap();
        if works[0].launch().is_some_and(|launch| wanted(&case, &launch.function)) {
            few.check(&spec.name, &case);
        }
    }
    few.checked
}

#[test]
fn kernels_along_rows_are_near_the_reference() {
    check_all(rows::along_rows());
}

#[test]
fn rows_weights_and_products_of_halves_are_near_the_reference() {
    check_all(halves());
    check_all(eights());
}

#[test]
fn products_of_packed_weights_are_near_the_reference_on_warpgroups() {
    if skipped() {
        return;
    }
    let emulator = || Emulator::default().with_warpgroups();
    // With the fewest cases, too, one is split.
    let (mut few, mut few_split) = (Few::new(emulator), Few::new(emulator));
    // The parts of the inputs, and whether tiles are one below the other.
    let mut shapes = HashSet::new();
    for spec in packed() {
        let case = spec.whole();
        let works = launches(&case.table, 0, emulator().chip()).unwrap();
        let groups: Vec<_> = works.iter().filter_map(Work::launch).map(|launch| launch.groups).collect();
        shapes.extend(groups.iter().map(|[_, rows, parts]| (*parts, *rows > 1)));
        let is_split = groups.iter().any(|[.., parts]| *parts > 1);
        if is_split { &mut few_split } else { &mut few }.check(&spec.name, &case);
    }
    let wanted = [(1, true), (2, false), (2, true), (4, false)];
    assert!(wanted.iter().all(|shape| shapes.contains(shape)), "{shapes:?}");
    for case in picked().into_iter().chain(experts::packed_experts()) {
        few.check(&case.kernel.name(), &case);
    }
    let checked = few.checked + few_split.checked;
    assert!(few_split.checked > 0 && checked > fewest_or(2, 5, 60), "{checked}");
}

/// Half of the specs; the two halves have different types, so they compile different kernels.
fn matrices(half: usize) {
    let mut first = matrices::matrices();
    let second = first.split_off(first.len() / 2);
    let specs = if half == 0 { first } else { second };
    let cases = specs.into_iter().map(|spec| (spec.name.clone(), spec.whole()));
    check_cases(cases.filter(|(_, case)| is_worth_compiling(case)));
}

#[test]
fn matrices_are_near_the_reference_in_the_first_half_of_the_types() {
    matrices(0);
}

#[test]
fn matrices_are_near_the_reference_in_the_second_half_of_the_types() {
    matrices(1);
}

/// Whether other types represent this one where kernels differ only in how weights are decoded: affine codes of these
/// bits are decoded like other types', which every test has, and the scales like affine ones of 3 and 8 bits. IQ2_XS
/// and IQ3_S stand for other lattices with and without scales of halves.
fn has_stand_ins(dtype: DType) -> bool {
    match dtype {
        DType::Affine(affine) => [2, 4, 5, 6].contains(&affine.bits()),
        dtype => dtype.is_lattice() && !matches!(dtype, DType::IQ2XS | DType::IQ3S),
    }
}

/// Of types that others represent, one kernel for one row and one for many.
fn is_worth_compiling(case: &Case) -> bool {
    match case.kernel {
        Kernel::Matmul(ops::Matmul { weight, .. }) if has_stand_ins(weight) => {
            [1, 64].contains(&case.table.rows)
        }
        Kernel::Qkv(ops::Qkv { weight, .. }) | Kernel::GluMatmul(ops::GluMatmul { weight, .. }) => {
            !has_stand_ins(weight)
        }
        _ => true,
    }
}

/// Products with experts' matrices differ from others in which rows and matrices they take, not in how they decode
/// weights, so a few types represent all.
fn expert_cases() -> impl Iterator<Item = (String, Case)> {
    let types = [DType::F32, DType::BF16, DType::Q4_0, DType::Q6K, DType::MXFP4];
    let products = experts::experts().into_iter().filter(move |case| match case.kernel {
        Kernel::ExpertMatmul(ops::ExpertMatmul { weight, .. })
        | Kernel::ExpertSum(ops::ExpertSum { weight, .. })
        | Kernel::ExpertGlu(ops::ExpertGlu { weight, .. }) => types.contains(&weight),
        _ => true,
    });
    products.map(|case| (format!("{} of {} rows", case.kernel.name(), case.table.rows), case))
}

#[test]
fn experts_are_near_the_reference() {
    check_all(experts::routes());
    check_cases(expert_cases());
}

#[test]
fn experts_are_near_the_reference_on_tensor_cores() {
    if skipped() {
        return;
    }
    let mut few = Few::new(|| Emulator::default().with_tensor_cores());
    expert_cases().for_each(|(name, case)| few.check(&name, &case));
    assert!(few.checked > few_or_many(0, 40), "{}", few.checked);
}

#[test]
fn experts_are_near_the_reference_by_tiles() {
    if skipped() {
        return;
    }
    let mut few = Few::new(|| Emulator::default().with_tiles(true));
    let tiled = |f: &Function| f.entry == "gemm_tiles";
    for (name, case) in expert_cases() {
        let works = launches(&case.table, 0, (few.emulator)().chip()).unwrap();
        if works.iter().filter_map(Work::launch).any(|launch| tiled(&launch.function)) {
            few.check(&name, &case);
        }
    }
    assert!(few.checked > few_or_many(0, 20), "{}", few.checked);
}

#[test]
fn matrices_of_many_rows_are_near_the_reference_on_tensor_cores() {
    if skipped() {
        return;
    }
    let specs = || matrices::matrices().into_iter().chain(matrices::large_matrices());
    let on_tensor_cores = |case: &Case, f: &Function| {
        ["gemm_few", "gemm_mma", "gemm_tf32"].contains(&f.entry) && is_worth_compiling(case)
    };
    let count = check_those(|| Emulator::default().with_tensor_cores(), specs(), on_tensor_cores);
    assert!(count > few_or_many(0, 100), "{count}");
}

#[test]
fn matrices_of_many_rows_are_near_the_reference_by_tiles() {
    if skipped() {
        return;
    }
    let specs =
        || matrices::matrices().into_iter().chain(matrices::large_matrices()).chain(folded::matrices());
    let tiled = |case: &Case, f: &Function| f.entry == "gemm_tiles" && is_worth_compiling(case);
    let emulator = |bf16| move || Emulator::default().with_tiles(bf16);
    let count = check_those(emulator(false), specs(), tiled);
    assert!(count > few_or_many(0, 150), "{count}");
    let of_bf16 = |f: &Function| f.variant.contains(&("BF16_TILES", 1));
    let count = check_those(emulator(true), specs(), |case, f| tiled(case, f) && of_bf16(f));
    assert!(count > few_or_many(0, 5), "{count}");
}

/// Whether it is a product of one row, which may use streaming.
fn is_of_one_row(case: &Case) -> bool {
    match case.kernel {
        Kernel::Matmul(ops::Matmul { weight, .. })
        | Kernel::Qkv(ops::Qkv { weight, .. })
        | Kernel::GluMatmul(ops::GluMatmul { weight, .. }) => case.table.rows == 1 && !has_stand_ins(weight),
        _ => false,
    }
}

#[test]
fn products_of_one_row_are_near_the_reference_where_weights_stream() {
    if skipped() {
        return;
    }
    let specs = matrices::matrices().into_iter().chain(matrices::long_rows()).chain(folded::matrices());
    let emulator = || Emulator::default().with_copies();
    let streams = |case: &Case, f: &Function| is_of_one_row(case) && f.entry == "gemv_stream";
    let streamed = check_those(emulator, specs, streams);
    assert!(streamed > few_or_many(0, 30), "{streamed}");
}

#[test]
fn products_of_one_row_are_near_the_reference_where_a_group_shares_its_input() {
    if skipped() {
        return;
    }
    let emulator = Emulator::default;
    let specs = matrices::long_rows().into_iter().chain(folded::long_rows());
    let shared = check_those(emulator, specs, |case, f| {
        let shares = f.variant.iter().any(|(name, pieces)| *name == "INPUT_PIECES" && *pieces > 0);
        shares && is_of_one_row(case)
    });
    assert!(shared > few_or_many(0, 60), "{shared}");
}

#[test]
fn products_of_one_row_are_near_the_reference_where_simd_groups_have_two_outputs() {
    if skipped() {
        return;
    }
    let emulator = || Emulator::default().with_two_gemv_outputs();
    let specs = matrices::matrices().into_iter().chain(folded::matrices());
    let checked = check_those(emulator, specs, |case, f| {
        let alone = matches!(case.kernel, Kernel::Matmul(_)) && is_of_one_row(case);
        alone && f.entry == "gemv" && f.variant.contains(&("OUTS", 2))
    });
    assert!(checked > few_or_many(0, 20), "{checked}");
}

#[test]
fn products_with_a_part_in_norms_are_near_the_reference() {
    check_all(folded::matrices());
}

#[test]
fn attention_that_rotates_its_heads_is_near_the_reference() {
    check_all(folded::attention());
}

#[test]
fn latent_attention_is_near_the_reference() {
    check_all(latent::writes());
    check_cases(latent::latent().into_iter().map(|case| (case.kernel.name(), case)));
}

#[test]
fn states_are_near_the_reference() {
    check_cases(state::states().into_iter().map(|case| (case.kernel.name(), case)));
}

#[test]
fn rope_and_the_cache_are_near_the_reference() {
    check_all(cache::rope());
    check_all(cache::rope_before_norms());
    check_cases(cache::moves().into_iter().map(|case| (case.kernel.name(), case)));
}

#[test]
fn attention_is_near_the_reference() {
    check_third(attention::attention());
    check_third(attention::attention_with_sinks());
    check_third(attention::attention_in_chunks());
}

#[test]
fn scores_of_heads_are_near_the_reference() {
    check_all(attention::head_scores());
}

#[test]
fn attention_of_whole_texts_is_near_the_reference() {
    check_third(attention::whole_texts());
}

/// With heads rotated by this kernel or before it, from one query head per KV head to more than a product has rows,
/// with one split and several.
#[test]
fn attention_of_few_rows_is_near_the_reference_on_tensor_cores() {
    if skipped() {
        return;
    }
    let emulator = || Emulator::default().with_tensor_cores();
    let several = [(0, 0.0), (1500, 0.0), (1500, 5.0)].map(|(first, soft_cap)| {
        let seen = Seen { rows: 1, first, window: 0, soft_cap, factor_step: 0, paged: true };
        attention::attend((17, 1, 64), KvType::F16, seen, OutputForms::Both)
    });
    let quantised = [
        ((4, 1, 128), 1, 1100, 0),
        ((6, 2, 64), 1, 300, 40),
        ((17, 1, 64), 9, 37, 0),
        ((3, 3, 128), 2, 0, 0),
    ];
    let quantised = quantised.map(|(shape, rows, first, window)| {
        let seen = Seen { rows, first, window, soft_cap: 5.0, factor_step: 7, paged: true };
        attention::attend(shape, KvType::Q8_0, seen, OutputForms::Both)
    });
    let emulated = || Emulator::default().with_tensor_cores();
    check_those(emulated, quantised, |_, f| {
        assert_eq!(f.entry, "attention_few", "{}", f.name);
        true
    });
    let specs = attention::attention().into_iter().chain(folded::attention()).chain(several);
    let specs = specs.chain(attention::attention_with_sinks()).chain(attention::attention_in_chunks());
    let count = check_those(emulator, specs, |_, f| f.entry == "attention_few");
    assert!(count > few_or_many(0, 20), "{count}");
}

/// Two slots in large tiles and small ones, more query heads per KV head than a tile has, windows, and rows to which
/// nothing of an iteration is visible.
#[test]
fn attention_of_many_rows_is_near_the_reference_on_tensor_cores() {
    if skipped() {
        return;
    }
    let shapes = [(4, 1, 64), (3, 3, 32), (6, 2, 128), (17, 1, 64), (5, 1, 96)];
    let seen = [(20, 0, 0, 0.0), (100, 90, 0, 5.0), (70, 210, 120, 0.0), (33, 500, 40, 0.0)];
    let specs = shapes.into_iter().enumerate().flat_map(|(i, shape)| {
        seen.into_iter().flat_map(move |(rows, first, window, soft_cap)| {
            let own = [OutputForms::F32, OutputForms::Q8, OutputForms::Both][(i + rows) % 3];
            let attend = match (i + rows) % 2 == 1 {
                true if window == 0 => attention::attend_with_sinks,
                true => attention::attend_in_chunks,
                false => attention::attend,
            };
            let seen = Seen { rows, first, window, soft_cap, factor_step: window, paged: true };
            [(KvType::F16, own), (KvType::F16, OutputForms::F16), (KvType::Q8_0, own)]
                .map(|(kv, out)| attend(shape, kv, seen, out))
        })
    });
    let emulator = || Emulator::default().with_tensor_cores();
    check_those(emulator, specs, |case, f| {
        assert_ne!(f.entry, "attention", "{} rows of {}", case.table.rows, f.name);
        true
    });
}

/// Two sequences, of which one begins and ends in the middle of a tile, more query heads per KV head than a tile has, windows,
/// sinks, and spans of which some rows see nothing; and runs that are for the small tile beside some for the large one.
#[test]
fn attention_of_many_rows_is_near_the_reference_on_warpgroups() {
    if skipped() {
        return;
    }
    let shapes: [(u32, u32, u32); 4] = [(1, 1, 128), (2, 1, 64), (18, 1, 64), (2, 1, 128)];
    let seen = [(530, 0, 0, 0.0), (520, 90, 0, 5.0), (514, 0, 100, 0.0)];
    let specs = shapes.into_iter().enumerate().flat_map(|(i, shape)| {
        seen.into_iter().enumerate().map(move |(j, (rows, first, window, soft_cap))| {
            let whole = (shape.0 * shape.2).is_multiple_of(128);
            let out = if whole && (i + j) % 2 > 0 { OutputForms::F16Lanes } else { OutputForms::F16 };
            // The first head's sink takes nearly all.
            let sinks = j == 1 && shape.0 > 1;
            let attend = match (sinks, window > 0 && i % 2 == 0) {
                (true, _) => attention::attend_with_sinks,
                (_, true) => attention::attend_in_chunks,
                _ => attention::attend,
            };
            let seen = Seen { rows, first, window, soft_cap, factor_step: window, paged: (i + j) % 3 > 0 };
            attend(shape, KvType::F16, seen, out)
        })
    });
    const SEQUENCES: &[(usize, u32)] =
        &[(1, 0), (1, 300), (3, 17), (16, 5), (17, 250), (1, 299), (32, 64), (33, 8), (1, 1), (450, 0)];
    let mixed = [((4, 1, 64), 0), ((6, 2, 128), 40)].map(|(heads, window)| {
        attention::attend_each(heads, (window, true), (KvType::F16, OutputForms::F16), SEQUENCES)
    });
    let emulator = || Emulator::default().with_warpgroups();
    let specs = mixed.into_iter().chain(specs);
    let count = check_those(emulator, specs, |_, f| f.entry == "attention_warpgroup");
    let least = if cases() == Cases::Fewest { 0 } else { few_or_many(2, 10) };
    assert!(count > least, "{count}");
}

/// Scores that rise along the text, so that sums are rescaled after every span, or after every other, or never.
#[test]
fn rising_scores_are_near_the_reference_on_tensor_cores() {
    if skipped() {
        return;
    }
    for (rows, first, window, sinks, out) in [
        (520, 70, 0, true, OutputForms::F16),
        (530, 0, 200, false, OutputForms::F16),
        (70, 300, 0, false, OutputForms::F32),
        (40, 400, 150, true, OutputForms::F16),
    ]
    .into_iter()
    .step_by(fewest_or(2, 1, 1))
    {
        for (i, shape) in [(3, 1, 64), (2, 1, 128)].into_iter().enumerate() {
            if rows > 512 && i == usize::from(sinks) {
                continue;
            }
            let seen = Seen { rows, first, window, soft_cap: 0.0, factor_step: 0, paged: false };
            let spec = attention::attend_rising(shape, seen, sinks, out);
            check_on(|| Emulator::default().with_warpgroups(), &spec.name, &spec.whole());
        }
    }
}

/// Sequences with one row in a pass beside some with many: of each, the number of rows and the first position. Runs
/// of 1 to 3 rows, of 4 and more, and runs that tiles of 16 and 64 rows cut.
#[test]
fn attention_of_rows_alone_and_of_runs_is_near_the_reference_on_tensor_cores() {
    const SEQUENCES: &[(usize, u32)] = &[
        (1, 0),
        (1, 300),
        (3, 17),
        (1, 5),
        (4, 0),
        (1, 31),
        (2, 64),
        (13, 250),
        (1, 299),
        (1, 1),
        (1, 150),
        (3, 8),
        (20, 40),
        (1, 90),
        (1, 200),
        (1, 33),
        (5, 3),
        (1, 270),
        (8, 0),
    ];
    if skipped() {
        return;
    }
    let mut both = Few::new(|| Emulator::default().with_tensor_cores());
    for (heads, window, out) in [
        ((4, 1, 64), 0, OutputForms::Q8),
        ((3, 3, 64), 0, OutputForms::F32),
        ((6, 2, 128), 40, OutputForms::F16),
        ((17, 1, 32), 0, OutputForms::Both),
    ] {
        for (kv, paged) in [(KvType::F16, false), (KvType::F16, true), (KvType::Q8_0, true)] {
            let spec = attention::attend_each(heads, (window, paged), (kv, out), SEQUENCES);
            both.check(&spec.name, &spec.whole());
        }
    }
}

/// Every head size and cache type, with two slots, more query heads per KV head than a threadgroup has lines, windows,
/// and rows to which nothing of an iteration is visible.
#[test]
fn attention_of_many_rows_is_near_the_reference_by_tiles() {
    if skipped() {
        return;
    }
    let shapes =
        [(4, 1, 64), (3, 3, 32), (6, 2, 128), (37, 1, 64), (5, 1, 96), (4, 2, 80), (3, 3, 80), (4, 2, 256)];
    let seen = [(20, 0, 0, 0.0), (70, 90, 0, 5.0), (70, 210, 120, 0.0), (33, 300, 40, 0.0)];
    let mut specs = vec![];
    for (i, shape) in shapes.into_iter().enumerate() {
        let kvs = [KvType::F32, KvType::F16, KvType::Q8_0].into_iter().enumerate();
        for (j, kv) in kvs.filter(|(_, kv)| kv.row_bytes(shape.2 as usize).is_some()) {
            for turn in 0..2 {
                let (rows, first, window, soft_cap) = seen[(i + j + 2 * turn) % 4];
                let out = match shape {
                    (3, 3, 80) => OutputForms::F32,
                    _ => [OutputForms::F32, OutputForms::Q8, OutputForms::Both, OutputForms::F16]
                        [(i + j + turn) % 4],
                };
                specs.push(attention::attend(
                    shape,
                    kv,
                    Seen { rows, first, window, soft_cap, factor_step: window, paged: true },
                    out,
                ));
            }
        }
    }
    let emulator = || Emulator::default().with_tiles(false);
    let all = specs.into_iter().chain(attention::attention()).chain(attention::attention_with_sinks());
    let all = all.chain(attention::attention_in_chunks());
    let count = check_those(emulator, all, |_, f| f.entry == "attention_tiles");
    assert!(count > few_or_many(0, 60), "{count}");
}

#[test]
fn what_asking_rows_run_is_near_the_reference() {
    check_cases(asking().into_iter().map(|case| (case.kernel.name(), case)));
}
