//! What the beginning of a WAV file says that its decoder does not look at, or not in time.

use crate::AudioError;

/// The most channels that have positions in a WAV file.
const MOST_CHANNELS: u16 = 26;

/// As much of a file as [`check`] needs.
pub(crate) const HEAD: usize = 4096;

/// Whether the file does not know its length, as programs write it into a pipe. Files with more channels than can be
/// decoded are refused.
pub(crate) fn check(head: &[u8]) -> Result<bool, AudioError> {
    let unknown = |size: [u8; 4]| size == [0xff; 4] || size == [0; 4];
    let [b'R', b'I', b'F', b'F', a, b, c, d, b'W', b'A', b'V', b'E', chunks @ ..] = head else {
        return Ok(false);
    };
    let mut endless = unknown([*a, *b, *c, *d]);
    let mut rest = chunks;
    while let Some((head, contents)) = rest.split_first_chunk::<8>() {
        let size = [head[4], head[5], head[6], head[7]];
        match &head[..4] {
            b"fmt " => {
                if let [_, _, low, high, ..] = contents {
                    let channels = u16::from_le_bytes([*low, *high]);
                    if channels > MOST_CHANNELS {
                        return Err(AudioError::WavChannels(channels.into(), MOST_CHANNELS.into()));
                    }
                }
            }
            b"data" => {
                endless |= unknown(size);
                break;
            }
            _ => {}
        }
        // Chunks have an even size.
        let size = u32::from_le_bytes(size) as usize;
        rest = contents.get(size.saturating_add(size % 2)..).unwrap_or_default();
    }
    Ok(endless)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(riff: u32, channels: u16, data: u32) -> Vec<u8> {
        let mut head = b"RIFF".to_vec();
        head.extend(riff.to_le_bytes());
        head.extend(b"WAVELIST\x03\0\0\0abc\0fmt \x10\0\0\0\x01\0");
        head.extend(channels.to_le_bytes());
        head.extend([0; 12]);
        head.extend(b"data");
        head.extend(data.to_le_bytes());
        head
    }

    #[test]
    fn lengths_that_are_not_known_and_too_many_channels_are_found() {
        assert!(!check(&header(100, 2, 50)).unwrap());
        assert!(check(&header(u32::MAX, 2, u32::MAX)).unwrap() && check(&header(100, 2, u32::MAX)).unwrap());
        assert!(matches!(check(&header(100, 32, 50)), Err(AudioError::WavChannels(32, 26))));
        let whole = header(100, 26, 50);
        assert!((0..=whole.len()).all(|end| check(&whole[..end]).is_ok()));
        assert!(!check(b"fLaC").unwrap());
    }
}
