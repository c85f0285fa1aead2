//! Audio files of the formats that people have, and files that are none.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use akunu_audio::{Audio, AudioError, Pcm, SampleFormat};
use akunu_testing::data;

fn all(mut audio: Audio) -> Result<Vec<f32>, AudioError> {
    let mut samples = Vec::new();
    while audio.read(&mut samples)? {}
    Ok(samples)
}

fn tones(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/audio").join(name)
}

fn of_bytes(bytes: Vec<u8>) -> Result<Vec<f32>, AudioError> {
    all(Audio::from_reader(Cursor::new(bytes))?)
}

struct Wav {
    /// 1: integers, 3: floating point.
    kind: u16,
    bits: u16,
    rate: u32,
    channels: u16,
}

const USUAL: Wav = Wav { kind: 1, bits: 16, rate: 16_000, channels: 1 };

fn wav(what: &Wav, data: &[u8]) -> Vec<u8> {
    let frame = what.channels * what.bits / 8;
    let mut bytes = Vec::from(*b"RIFF");
    bytes.extend((36 + data.len() as u32).to_le_bytes());
    bytes.extend(b"WAVEfmt ");
    bytes.extend(16u32.to_le_bytes());
    bytes.extend(what.kind.to_le_bytes());
    bytes.extend(what.channels.to_le_bytes());
    bytes.extend(what.rate.to_le_bytes());
    bytes.extend(what.rate.wrapping_mul(u32::from(frame)).to_le_bytes());
    bytes.extend(frame.to_le_bytes());
    bytes.extend(what.bits.to_le_bytes());
    bytes.extend(b"data");
    bytes.extend((data.len() as u32).to_le_bytes());
    bytes.extend(data);
    bytes
}

fn ramp(count: usize) -> Vec<i16> {
    (0..count).map(|i| (i as i16).wrapping_mul(37)).collect()
}

fn bytes(samples: &[i16]) -> Vec<u8> {
    samples.iter().flat_map(|sample| sample.to_le_bytes()).collect()
}

#[test]
fn samples_at_16_khz_are_passed_on_exactly() {
    let samples = ramp(40_000);
    let wanted: Vec<f32> = samples.iter().map(|&sample| f32::from(sample) / 32_768.0).collect();
    assert_eq!(of_bytes(wav(&USUAL, &bytes(&samples))).expect("a WAV file"), wanted);

    let pcm = Pcm { rate: 16_000, channels: 1, format: SampleFormat::I16 };
    let audio = Audio::from_pcm(Cursor::new(bytes(&samples)), pcm).expect("PCM");
    assert_eq!(all(audio).expect("PCM"), wanted);

    let floats: Vec<u8> = wanted.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    let audio =
        Audio::from_pcm(Cursor::new(floats.clone()), Pcm { format: SampleFormat::F32, ..pcm }).expect("PCM");
    assert_eq!(all(audio).expect("PCM"), wanted);
    assert_eq!(of_bytes(wav(&Wav { kind: 3, bits: 32, ..USUAL }, &floats)).expect("a WAV file"), wanted);
}

#[test]
fn channels_are_mixed_in_equal_parts() {
    for channels in [2u16, 5, 26] {
        let samples: Vec<i16> = (0..100 * i32::from(channels)).map(|i| (i * 7 % 1000) as i16).collect();
        let mixed = of_bytes(wav(&Wav { channels, ..USUAL }, &bytes(&samples))).expect("a WAV file");
        assert_eq!(mixed.len(), 100);
        for (mixed, frame) in mixed.iter().zip(samples.chunks_exact(usize::from(channels))) {
            let mean =
                frame.iter().map(|&sample| f32::from(sample) / 32_768.0).sum::<f32>() / f32::from(channels);
            assert!((mixed - mean).abs() < 1e-6);
        }
    }
}

/// The same speech in three formats: the compressed ones were made from a recording with another sample rate.
#[test]
fn formats_agree_about_a_recording() {
    let file = |name: &str| data("formats_agree_about_a_recording", &format!("whisper/{name}"));
    let Some(wav) = file("jfk.wav") else { return };
    let wav = all(Audio::open(&wav).expect("a WAV file")).expect("its samples");
    assert_eq!(wav.len(), 176_000);
    for name in ["jfk.flac", "jfk.mp3"] {
        let Some(path) = file(name) else { return };
        let audio = Audio::open(&path).expect("an audio file");
        let seconds = audio.seconds();
        let samples = all(audio).expect("its samples");
        assert!(
            seconds.is_none_or(|seconds| (seconds - samples.len() as f64 / 16_000.0).abs() < 0.1),
            "{seconds:?}"
        );
        assert!(samples.len().abs_diff(176_000) < 1_600, "{name}: {}", samples.len());
        let correlation = |offset: usize| {
            let pairs = || {
                samples[offset..].iter().zip(&wav).take(32_000).map(|(&a, &b)| (f64::from(a), f64::from(b)))
            };
            let product = |f: fn((f64, f64)) -> f64| pairs().map(f).sum::<f64>();
            product(|(a, b)| a * b) / (product(|(a, _)| a * a) * product(|(_, b)| b * b)).sqrt()
        };
        let best = (0..800).map(correlation).fold(f64::MIN, f64::max);
        assert!(best > 0.99, "{name}: a correlation of {best}");
    }
}

/// `training/audio_files.py` made them. Each encoder may add some silence.
#[test]
fn every_format_gives_its_tones() {
    for name in ["pcm.wav", "flac.flac", "alac.m4a", "mp3.mp3", "aac.m4a", "vorbis.ogg"] {
        let samples = all(Audio::open(&tones(name)).expect("an audio file")).expect("its samples");
        assert!((4_000..5_000).contains(&samples.len()), "{name}: {} samples", samples.len());
        // Half of each of two tones of 0.4, in the middle, where nothing is faded in or out.
        let amplitude = |hertz: f64| {
            let middle = &samples[1_000..3_000];
            let part = |turn: f64| -> f64 {
                let angle = |i: usize| std::f64::consts::TAU * (hertz * i as f64 / 16_000.0 + turn);
                middle.iter().enumerate().map(|(i, &sample)| f64::from(sample) * angle(i).cos()).sum::<f64>()
            };
            part(0.0).hypot(part(0.25)) * 2.0 / middle.len() as f64
        };
        for (hertz, wanted) in [(440.0, 0.2), (880.0, 0.2), (1_320.0, 0.0)] {
            let found = amplitude(hertz);
            assert!((found - wanted).abs() < 0.02, "{name}: {found} of {hertz} Hz");
        }
    }
    let error = |name: &str| Audio::open(&tones(name)).expect_err("no audio that can be read").to_string();
    assert_eq!(error("opus.ogg"), "its audio is encoded as Opus, which cannot be read");
    assert_eq!(error("video.mp4"), "it has no audio track");
}

/// Bytes that are changed at random give samples or an error, from a file and from a pipe.
#[test]
fn damaged_files_give_samples_or_an_error() {
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    for name in ["flac.flac", "alac.m4a", "mp3.mp3", "aac.m4a", "vorbis.ogg", "pcm.wav"] {
        let whole = std::fs::read(tones(name)).expect("readable");
        for _ in 0..40 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random(8) {
                let near = if random(2) == 0 { 300 } else { bytes.len() };
                let at = random(near);
                bytes[at] = random(256) as u8;
            }
            bytes.truncate(bytes.len() - random(bytes.len() / 2) * random(2));
            if let Ok(mut audio) = Audio::from_reader(Cursor::new(bytes)) {
                let mut samples = Vec::new();
                while samples.len() < 1 << 20 && matches!(audio.read(&mut samples), Ok(true)) {}
            }
        }
    }
}

#[test]
fn a_file_that_is_cut_gives_what_it_has() {
    let Some(path) = data("a_file_that_is_cut_gives_what_it_has", "whisper/jfk.mp3") else { return };
    let mut whole = std::fs::read(path).expect("readable");
    whole.truncate(40_000);
    let samples = of_bytes(whole).expect("the samples before the end");
    assert!((60_000..120_000).contains(&samples.len()), "{}", samples.len());
}

#[test]
fn what_cannot_be_read_is_said() {
    let error = |bytes: Vec<u8>| of_bytes(bytes).expect_err("no audio").to_string();
    assert_eq!(error(Vec::new()), "it is empty");
    assert!(error(b"Dear diary, this is no music at all.".repeat(100)).contains("not an audio file"));
    let silence = vec![0; 3_200];
    assert!(error(wav(&Wav { rate: 1, ..USUAL }, &silence)).contains("1 Hz"));
    assert!(error(wav(&Wav { rate: 800_000, ..USUAL }, &silence)).contains("800000 Hz"));
    assert!(error(wav(&Wav { channels: 32, ..USUAL }, &silence)).contains("32 channels"));
    let nan = [0.5f32, f32::NAN, 0.0].iter().flat_map(|sample| sample.to_le_bytes()).collect::<Vec<u8>>();
    assert!(error(wav(&Wav { kind: 3, bits: 32, ..USUAL }, &nan)).contains("not a finite number"));
    let pcm = |channels| Pcm { rate: 16_000, channels, format: SampleFormat::I32 };
    assert!(Audio::from_pcm(Cursor::new([]), pcm(0)).is_err());
    assert!(Audio::from_pcm(Cursor::new([]), pcm(65)).is_err());
    let part =
        Audio::from_pcm(Cursor::new(vec![0; 13]), pcm(2)).and_then(all).expect_err("a part of a frame");
    assert!(matches!(part, AudioError::PartOfFrame { bytes: 5, frame: 8 }), "{part}");
}

#[test]
fn a_wav_file_without_samples_is_silent() {
    assert_eq!(of_bytes(wav(&USUAL, &[])).expect("a WAV file"), [0.0_f32; 0]);
}

#[test]
fn paths_that_are_no_files_are_errors() {
    assert!(matches!(Audio::open(Path::new("no-such-file.wav")), Err(AudioError::Io(_))));
    assert!(matches!(Audio::open(Path::new(".")), Err(AudioError::Io(_))));
    let empty = tempfile::NamedTempFile::new().expect("a file");
    assert!(matches!(Audio::open(empty.path()), Err(AudioError::Empty)));
}
