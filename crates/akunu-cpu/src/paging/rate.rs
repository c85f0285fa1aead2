//! How fast experts can be read.

use std::time::Instant;

use akunu_format::Region;
use akunu_plan::DeviceError;

use super::readers::{PIECE, Read, Readers};
use crate::device::NAME;
use crate::memory::Owned;

/// Pieces that are read at once, into memory that is used again.
const AT_ONCE: usize = 64;

/// Bytes per second of reads that are spread over parts of files: (region, offset, bytes). At most `bytes` are read.
pub fn read_rate(places: &[(Region, usize, usize)], bytes: usize) -> Result<f64, DeviceError> {
    let failed = |message: String| DeviceError::Failed { device: NAME, message };
    let piece = places.iter().map(|(_, _, bytes)| *bytes).min().unwrap_or(0).min(PIECE);
    if piece == 0 || bytes < piece {
        return Err(failed("there are no experts whose reads could be measured".into()));
    }
    let all: usize = places.iter().map(|(_, _, bytes)| bytes / piece).sum();
    let count = (bytes / piece).min(all);
    let all_at_once = (AT_ONCE * piece) as u64;
    let out_of_memory =
        || DeviceError::OutOfMemory { device: NAME, what: "a measurement".into(), bytes: all_at_once };
    let memory = Owned::zeroed(all_at_once).ok_or_else(out_of_memory)?;
    let readers = Readers::new(1, AT_ONCE)
        .map_err(|error| failed(format!("cannot start threads that read experts: {error}")))?;
    // Each place has as many of the pieces as is its part of all bytes.
    let pieces = places.iter().flat_map(|(region, offset, bytes)| {
        (0..bytes / piece).map(move |number| (region, offset + number * piece))
    });
    let chosen: Vec<(&Region, usize)> = pieces
        .enumerate()
        .filter(|(index, _)| index * count / all != (index + 1) * count / all)
        .map(|(_, piece)| piece)
        .collect();
    // SAFETY: the memory has so many bytes. Writing them gives it its pages, so that the time of that does not count.
    unsafe { memory.start().write_bytes(1, memory.bytes) };
    let started = Instant::now();
    for chosen in chosen.chunks(AT_ONCE) {
        for (place, (region, offset)) in chosen.iter().enumerate() {
            let to = memory.start().wrapping_add(place * piece);
            let read = Read { region: (*region).clone(), offset: *offset, to, bytes: piece };
            // SAFETY: each piece has a place of its own in this memory, and all are waited for before it is used again.
            unsafe { readers.begin(0, &read) };
        }
        readers.wait(0).map_err(failed)?;
    }
    Ok((chosen.len() * piece) as f64 / started.elapsed().as_secs_f64())
}
