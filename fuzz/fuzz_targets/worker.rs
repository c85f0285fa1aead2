//! What the processes that share out a model send each other: frames with requests and replies. Those that are read are
//! written again as they were.
#![no_main]

use akunu_fleet::hosts::read_all;
use libfuzzer_sys::fuzz_target;

/// The most bytes of a frame, which few inputs reach.
const MOST: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let written = match read_all(data, MOST) {
        Ok(written) => {
            assert_eq!(written.len(), data.len());
            written
        }
        Err((written, _)) => written,
    };
    assert!(data.starts_with(&written));
});
