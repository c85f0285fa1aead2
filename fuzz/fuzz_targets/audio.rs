//! An audio file as a stream: decoded, resampled, as frames.
#![no_main]

use std::io::Cursor;

use akunu_audio::{Audio, Mel};
use libfuzzer_sys::fuzz_target;

/// A file of some bytes may be hours of silence.
const MOST_SAMPLES: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let Ok(mut audio) = Audio::from_reader(Cursor::new(data.to_vec())) else { return };
    let (mut samples, mut mel) = (Vec::new(), Mel::new(80));
    while samples.len() < MOST_SAMPLES && matches!(audio.read(&mut samples), Ok(true)) {}
    assert!(samples.iter().all(|sample| sample.is_finite()));
    samples.truncate(2_000);
    mel.push(&samples);
    mel.finish();
    let mut frames = Vec::new();
    mel.scaled(0, 20, 20, &mut frames);
    assert!(frames.iter().all(|value| value.is_finite()));
});
