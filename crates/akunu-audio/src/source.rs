//! Audio from files and pipes: decoded, mixed to one channel, at 16 kHz.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use symphonia::core::codecs::audio::well_known::{CODEC_ID_OPUS, CODEC_ID_SPEEX, CODEC_ID_WMA};
use symphonia::core::codecs::audio::{AudioCodecId, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatReader, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, ReadOnlySource};

use crate::pcm::PcmReader;
use crate::{AudioError, MOST_CHANNELS, Pcm, RATES, Resampler, wav};

/// A stream of samples at [`RATE`](crate::RATE), one channel.
pub struct Audio {
    input: Input,
    /// It does not know its length, so that where it ends is its end.
    is_endless: bool,
    /// What the input's samples are, known from the first of them on.
    spec: Option<Spec>,
    /// Frames of the input that came.
    taken: u64,
    seconds: Option<f64>,
    damage: Damage,
    frames: Vec<f32>,
    mixed: Vec<f32>,
}

/// What could not be decoded of a file that could be read otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Packets that were left out.
    pub packets: u64,
    /// Why the stream ended before its end.
    pub ended: Option<String>,
}

enum Input {
    File { format: Box<dyn FormatReader>, decoder: Box<dyn AudioDecoder>, track: u32 },
    Pcm(PcmReader),
    Ended,
}

struct Spec {
    rate: u32,
    channels: usize,
    resampler: Resampler,
}

impl Audio {
    pub fn open(path: &Path) -> Result<Self, AudioError> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory).into());
        }
        if metadata.is_file() && metadata.len() == 0 {
            return Err(AudioError::Empty);
        }
        let extension = path.extension().and_then(|extension| extension.to_str());
        let mut head = Vec::new();
        if metadata.is_file() {
            (&file).take(wav::HEAD as u64).read_to_end(&mut head)?;
            (&file).rewind()?;
        }
        Self::from_source(Box::new(file), &head, extension)
    }

    /// From bytes that come one after the other.
    pub fn from_reader(reader: impl Read + Send + Sync + 'static) -> Result<Self, AudioError> {
        let mut reader = BufReader::new(reader);
        let head = io::BufRead::fill_buf(&mut reader)?.to_vec();
        if head.is_empty() {
            return Err(AudioError::Empty);
        }
        Self::from_source(Box::new(ReadOnlySource::new(reader)), &head, None)
    }

    /// From a file in memory.
    pub fn from_bytes(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self, AudioError> {
        let head = bytes.as_ref()[..bytes.as_ref().len().min(wav::HEAD)].to_vec();
        if head.is_empty() {
            return Err(AudioError::Empty);
        }
        Self::from_source(Box::new(io::Cursor::new(bytes)), &head, None)
    }

    /// From a file of samples without a container.
    pub fn open_pcm(path: &Path, pcm: Pcm) -> Result<Self, AudioError> {
        Self::from_pcm(File::open(path)?, pcm)
    }

    /// From samples without a container.
    pub fn from_pcm(reader: impl Read + Send + Sync + 'static, pcm: Pcm) -> Result<Self, AudioError> {
        let spec = Spec::new(pcm.rate, pcm.channels)?;
        let input = Input::Pcm(PcmReader::new(Box::new(reader), pcm));
        Ok(Self { spec: Some(spec), ..Self::new(input, None) })
    }

    /// `head`: the first bytes of the source.
    fn from_source(
        source: Box<dyn MediaSource>,
        head: &[u8],
        extension: Option<&str>,
    ) -> Result<Self, AudioError> {
        let is_endless = wav::check(head)?;
        guarded(|| Self::probed(source, extension)).map(|audio| Self { is_endless, ..audio })
    }

    fn probed(source: Box<dyn MediaSource>, extension: Option<&str>) -> Result<Self, AudioError> {
        let mut hint = Hint::new();
        if let Some(extension) = extension {
            hint.with_extension(extension);
        }
        let stream = MediaSourceStream::new(source, Default::default());
        let format =
            symphonia::default::get_probe().probe(&hint, stream, Default::default(), Default::default());
        let format = format.map_err(|error| match error {
            Error::IoError(error) if error.kind() != io::ErrorKind::UnexpectedEof => AudioError::Io(error),
            Error::IoError(_) | Error::Unsupported(_) => AudioError::UnknownFormat,
            error => AudioError::Damaged(error.to_string()),
        })?;
        let track = format.default_track(TrackType::Audio).ok_or(AudioError::NoAudio)?;
        let parameters = track.codec_params.as_ref().and_then(|parameters| parameters.audio());
        let parameters = parameters.ok_or(AudioError::NoAudio)?;
        let seconds =
            parameters.sample_rate.zip(track.num_frames).map(|(rate, count)| count as f64 / f64::from(rate));
        let decoder =
            symphonia::default::get_codecs().make_audio_decoder(parameters, &AudioDecoderOptions::default());
        let decoder = decoder.map_err(|error| match error {
            Error::Unsupported(_) => AudioError::Codec(codec_name(parameters.codec)),
            error => AudioError::Damaged(error.to_string()),
        })?;
        let track = track.id;
        Ok(Self::new(Input::File { format, decoder, track }, seconds.filter(|seconds| seconds.is_finite())))
    }

    fn new(input: Input, seconds: Option<f64>) -> Self {
        let (frames, mixed) = (Vec::new(), Vec::new());
        Self {
            input,
            is_endless: false,
            spec: None,
            taken: 0,
            seconds,
            damage: Damage::default(),
            frames,
            mixed,
        }
    }

    /// The length that the file says it has. It may be wrong.
    pub fn seconds(&self) -> Option<f64> {
        self.seconds
    }

    /// What could not be decoded up to now.
    pub fn damage(&self) -> &Damage {
        &self.damage
    }

    /// Appends the next samples. Whether the stream goes on.
    pub fn read(&mut self, out: &mut Vec<f32>) -> Result<bool, AudioError> {
        let rate_and_channels = match &mut self.input {
            Input::Ended => return Ok(false),
            Input::Pcm(reader) => {
                let more = reader.read(&mut self.frames)?;
                self.spec.as_ref().filter(|_| more).map(|spec| (spec.rate, spec.channels))
            }
            Input::File { format, decoder, track } => guarded(|| {
                packet(format.as_mut(), decoder.as_mut(), *track, &mut self.damage, &mut self.frames)
            })?,
        };
        let Some((rate, channels)) = rate_and_channels else {
            self.input = Input::Ended;
            if self.is_endless && self.damage.ended.as_deref().is_some_and(|why| why.contains("end of file"))
            {
                self.damage.ended = None;
            }
            match &mut self.spec {
                Some(spec) => spec.resampler.finish(out),
                None if self.damage != Damage::default() => {
                    return Err(AudioError::Damaged("nothing in it can be decoded".into()));
                }
                None => {}
            }
            return Ok(false);
        };
        let spec = match &mut self.spec {
            Some(spec) if (spec.rate, spec.channels) == (rate, channels) => spec,
            Some(spec) => {
                let seconds = self.taken as f64 / f64::from(spec.rate);
                return Err(AudioError::Changes { seconds });
            }
            None => self.spec.insert(Spec::new(rate, channels)?),
        };
        let frames = self.frames.chunks_exact(channels);
        self.mixed.clear();
        self.mixed.extend(frames.map(|frame| frame.iter().sum::<f32>() / channels as f32));
        if let Some(at) = self.mixed.iter().position(|sample| !sample.is_finite()) {
            return Err(AudioError::NotFinite { seconds: (self.taken + at as u64) as f64 / f64::from(rate) });
        }
        self.taken += self.mixed.len() as u64;
        spec.resampler.push(&self.mixed, out);
        Ok(true)
    }
}

impl fmt::Debug for Audio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audio")
            .field("seconds", &self.seconds)
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}

impl Spec {
    fn new(rate: u32, channels: usize) -> Result<Self, AudioError> {
        if !RATES.contains(&rate) {
            return Err(AudioError::Rate(rate));
        }
        if channels == 0 || channels > MOST_CHANNELS {
            return Err(AudioError::Channels(channels));
        }
        Ok(Self { rate, channels, resampler: Resampler::new(rate) })
    }
}

/// What a decoder gives. A decoder that panics is not used again.
fn guarded<T>(decode: impl FnOnce() -> Result<T, AudioError>) -> Result<T, AudioError> {
    catch_unwind(AssertUnwindSafe(decode))
        .unwrap_or_else(|_| Err(AudioError::Damaged("its decoder cannot deal with it".into())))
}

/// Replaces `frames` by the samples of the next packet of a track that can be decoded, channels in turn. Their sample
/// rate and number of channels; none at the end.
fn packet(
    format: &mut dyn FormatReader,
    decoder: &mut dyn AudioDecoder,
    track: u32,
    damage: &mut Damage,
    frames: &mut Vec<f32>,
) -> Result<Option<(u32, usize)>, AudioError> {
    loop {
        let packet = match format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => return Ok(None),
            Err(Error::IoError(error)) if error.kind() != io::ErrorKind::UnexpectedEof => {
                return Err(error.into());
            }
            Err(error) => {
                damage.ended = Some(error.to_string());
                return Ok(None);
            }
        };
        if packet.track_id != track {
            continue;
        }
        match decoder.decode(&packet) {
            Ok(decoded) if decoded.frames() == 0 => {}
            Ok(decoded) => {
                decoded.copy_to_vec_interleaved(frames);
                return Ok(Some((decoded.spec().rate(), decoded.spec().channels().count())));
            }
            Err(Error::DecodeError(_) | Error::IoError(_)) => damage.packets += 1,
            Err(error) => {
                damage.ended = Some(error.to_string());
                return Ok(None);
            }
        }
    }
}

/// For those that people have; else the number that the decoder's library gives it.
fn codec_name(codec: AudioCodecId) -> String {
    match codec {
        CODEC_ID_OPUS => "Opus".into(),
        CODEC_ID_SPEEX => "Speex".into(),
        CODEC_ID_WMA => "WMA".into(),
        other => format!("a codec that is not known ({other})"),
    }
}
