//! From an audio file to what a speech model reads: decoded, mixed to one channel, resampled to 16 kHz, and turned into
//! log-mel frames. Everything is a stream, so that memory does not depend on the length of the audio.
//!
//! ```
//! use akunu_audio::{Audio, Mel, Pcm, SampleFormat};
//!
//! # fn main() -> Result<(), akunu_audio::AudioError> {
//! let second_of_silence = vec![0; 2 * 16_000];
//! let pcm = Pcm { rate: 16_000, channels: 1, format: SampleFormat::I16 };
//! let mut audio = Audio::from_pcm(std::io::Cursor::new(second_of_silence), pcm)?;
//! let mut mel = Mel::new(80);
//! let mut samples = Vec::new();
//! while audio.read(&mut samples)? {
//!     mel.push(&samples);
//!     samples.clear();
//! }
//! mel.finish();
//! assert_eq!(mel.length(), 100);
//! let mut frames = Vec::new();
//! mel.scaled(0, 100, 3000, &mut frames);
//! assert_eq!(frames.len(), 80 * 3000);
//! # Ok(())
//! # }
//! ```

mod error;
mod fft;
mod mel;
mod pcm;
mod resample;
mod source;
mod wav;

pub use error::AudioError;
pub use mel::{HOP, Mel, mel_filters};
pub use pcm::{Pcm, SampleFormat};
pub use resample::Resampler;
pub use source::{Audio, Damage};

/// The sample rate of all that comes out of [`Audio`] and goes into [`Mel`].
pub const RATE: u32 = 16_000;
/// The sample rates that can be read.
pub const RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;
/// The most channels that can be read.
pub const MOST_CHANNELS: usize = 64;
