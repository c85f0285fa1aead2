//! Samples without a container, as programs that record write them into a pipe.

use std::io::Read;

use crate::AudioError;

/// How samples without a container are stored: channels in turn, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pcm {
    pub rate: u32,
    pub channels: usize,
    pub format: SampleFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleFormat {
    I16,
    I32,
    F32,
}

impl SampleFormat {
    fn bytes(self) -> usize {
        match self {
            Self::I16 => 2,
            Self::I32 | Self::F32 => 4,
        }
    }

    fn sample(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Self::I16, &[a, b]) => f32::from(i16::from_le_bytes([a, b])) / 32_768.0,
            (Self::I32, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]) as f32 / 2_147_483_648.0,
            (Self::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            _ => unreachable!("samples are cut by their size"),
        }
    }
}

const PIECE: usize = 1 << 16;

pub(crate) struct PcmReader {
    reader: Box<dyn Read + Send + Sync>,
    pcm: Pcm,
    bytes: Vec<u8>,
}

impl PcmReader {
    pub fn new(reader: Box<dyn Read + Send + Sync>, pcm: Pcm) -> Self {
        Self { reader, pcm, bytes: Vec::new() }
    }

    /// Replaces `out` by the next samples, channels in turn. Whether there were any.
    pub fn read(&mut self, out: &mut Vec<f32>) -> Result<bool, AudioError> {
        let sample = self.pcm.format.bytes();
        let frame = sample * self.pcm.channels;
        out.clear();
        while self.bytes.len() < frame {
            let more = (&mut self.reader).take(PIECE as u64).read_to_end(&mut self.bytes)?;
            if more == 0 {
                return match self.bytes.len() {
                    0 => Ok(false),
                    bytes => Err(AudioError::PartOfFrame { bytes, frame }),
                };
            }
        }
        let whole = self.bytes.len() / frame * frame;
        out.extend(self.bytes[..whole].chunks_exact(sample).map(|bytes| self.pcm.format.sample(bytes)));
        self.bytes.drain(..whole);
        Ok(true)
    }
}
