//! Arbitrary bytes from a peer of the sockets with events of the cache. Messages and commands that are read are bounded,
//! and read again as they were written.
#![no_main]

use akunu_server::fuzzing::messages;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(all) = messages(data) else { return };
    assert!(all.iter().all(|message| (2..=8 * (4096 + 9)).contains(&message.len())));
    // Nothing is made of nothing: a frame has the same length as what was read, or a shorter form of it.
    assert!(all.iter().map(Vec::len).sum::<usize>() <= data.len());
});
