//! Sparse files, whose apparent size costs nothing, under a limit of the address space.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{akunu, finish, path};

/// Opens the file with 4 GiB of address space, of which it takes 3 to map it.
fn refused(file: &Path, message: &str) {
    let shell = "ulimit -v 4194304; exec \"$@\"";
    let inner = akunu(&["inspect", path(file)]);
    let mut command = Command::new("sh");
    command.args(["-c", shell, "sh"]).arg(inner.get_program()).args(inner.get_args());
    let began = Instant::now();
    let done = finish(command);
    assert_eq!(done.code, 1, "{}", done.stderr);
    assert!(done.stderr.contains(message), "{}", done.stderr);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn arrays_do_not_take_the_apparent_size_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse.gguf");
    const SIZE: u64 = 3 << 30;
    const ARRAY: u32 = 9;
    // The element's type, and the count of the smallest elements that would fill the file or just the limit.
    for (kind, count, message) in [
        (0u32, SIZE - 1000, "more than 128 MiB"),
        (7, SIZE - 1000, "more than 128 MiB"),
        (8, SIZE / 8 - 100, "more than 128 MiB"),
        (9, SIZE / 12 - 100, "more than 128 MiB"),
        (10, SIZE / 8 - 100, "more than 128 MiB"),
        (0, 100 << 20, "at most 4194304 are allowed"),
        (8, 15 << 20, "at most 4194304 are allowed"),
        (9, 10 << 20, "at most 4194304 are allowed"),
    ] {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(b"a");
        bytes.extend(ARRAY.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(SIZE).unwrap();
        refused(&path, message);
    }
}
