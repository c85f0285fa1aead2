use std::io;

use crate::{MOST_CHANNELS, RATES};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AudioError {
    #[error("cannot read the audio: {0}")]
    Io(#[from] io::Error),
    #[error("it is empty")]
    Empty,
    #[error("it is not an audio file that can be read: WAV, MP3, FLAC, OGG Vorbis, M4A (AAC or ALAC) are")]
    UnknownFormat,
    #[error("it has no audio track")]
    NoAudio,
    #[error("its audio is encoded as {0}, which cannot be read")]
    Codec(String),
    #[error("the file is damaged: {0}")]
    Damaged(String),
    #[error("its sample rate is {0} Hz, and rates from {low} to {high} Hz can be read", low = RATES.start(), high = RATES.end())]
    Rate(u32),
    #[error("it has {0} channels, and from 1 to {MOST_CHANNELS} can be read")]
    Channels(usize),
    #[error(
        "it has {0} channels, and a WAV file with up to {1} can be read; samples without a container may have more (--pcm)"
    )]
    WavChannels(usize, usize),
    #[error("its sample rate or number of channels changes after {seconds:.1} s")]
    Changes { seconds: f64 },
    #[error("it has a sample that is not a finite number, after {seconds:.1} s")]
    NotFinite { seconds: f64 },
    #[error("the last frame of samples is incomplete: {bytes} bytes are left of frames of {frame} bytes")]
    PartOfFrame { bytes: usize, frame: usize },
}
