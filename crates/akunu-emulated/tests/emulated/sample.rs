//! Sampled tokens: the emulated kernels against the reference device, with the groups of a launch in either order (with the
//! fewest cases in descending order only).

#![cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(clippy::unwrap_used, reason = "tests")]

use akunu_device_testing::sampled::{self, OnDevices};
use akunu_emulated::{Emulator, skipped};
use akunu_testing::fewest_or;

fn emulated(check: impl Fn(&mut OnDevices<'_>)) {
    if skipped() {
        return;
    }
    check(&mut |check| {
        let emulators = [Emulator::default().backwards(), Emulator::default()];
        for emulator in emulators.into_iter().take(fewest_or(1, 2, 2)) {
            check(&mut emulator.device().unwrap());
        }
    });
}

#[test]
fn tokens_are_those_of_the_reference() {
    emulated(sampled::tokens_are_those_of_the_reference);
}

#[test]
fn logits_that_are_no_numbers_and_nothing_to_pick_are_reported() {
    emulated(sampled::logits_that_are_no_numbers_and_nothing_to_pick_are_reported);
}

#[test]
fn tokens_that_are_all_stairs_are_walked() {
    emulated(sampled::tokens_that_are_all_stairs_are_walked);
}

#[test]
fn sums_of_top_p_are_exact() {
    emulated(sampled::sums_of_top_p_are_exact);
}

#[test]
fn many_rows_have_settings_of_their_own() {
    emulated(sampled::many_rows_have_settings_of_their_own);
}

#[test]
fn rows_without_a_token_do_not_touch_others() {
    emulated(sampled::rows_without_a_token_do_not_touch_others);
}
