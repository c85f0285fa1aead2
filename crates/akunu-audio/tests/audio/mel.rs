//! Frames against those of the Whisper feature extractor of Hugging Face, and filters against OpenAI's own
//! (`mel_filters.npz` of its package, as JSON).

use akunu_audio::{Audio, Mel, mel_filters};
use akunu_testing::data;
use serde_json::Value;

fn scaled(mel: &Mel, from: u64, count: usize) -> Vec<f32> {
    let mut frames = Vec::new();
    mel.scaled(from, count, count, &mut frames);
    frames
}

/// A second of a tone of 440 Hz.
fn tone() -> Vec<f32> {
    (0..16_000)
        .map(|i| (0.5 * (std::f64::consts::TAU * 440.0 * f64::from(i) / 16_000.0).sin()) as f32)
        .collect()
}

/// `data/jfk_mel.json`: some frames by transformers 5.24 (`_np_extract_fbank_features`, which computes in float64), after
/// their number.
#[test]
fn frames_of_speech_are_those_of_hugging_face() {
    let Some(path) = data("frames_of_speech_are_those_of_hugging_face", "whisper/jfk.wav") else { return };
    let oracle: Value = serde_json::from_str(include_str!("../data/jfk_mel.json")).expect("JSON");
    for bands in [80, 128] {
        let mut audio = Audio::open(&path).expect("a WAV file");
        let (mut mel, mut samples) = (Mel::new(bands), Vec::new());
        while audio.read(&mut samples).expect("samples") {
            mel.push(&samples);
            samples.clear();
        }
        mel.finish();
        let scaled = scaled(&mel, 0, 3000);
        for row in oracle[bands.to_string()].as_array().expect("frames") {
            let row: Vec<f64> = row.as_array().expect("numbers").iter().filter_map(Value::as_f64).collect();
            assert_eq!(row.len(), 1 + bands);
            for (band, wanted) in row[1..].iter().enumerate() {
                let ours = f64::from(scaled[row[0] as usize * bands + band]);
                assert!(
                    (ours - wanted).abs() <= 2e-6,
                    "frame {}, band {band}: {ours} is not {wanted}",
                    row[0]
                );
            }
        }
    }
}

/// This oracle was computed in single precision: transformers' own float64 path differs from it by 1.16e-5, in frame 1,
/// band 69. Ours agrees with that path to 2e-6, see above.
#[test]
fn frames_of_a_tone_are_those_of_hugging_face() {
    let Some(path) = data("frames_of_a_tone_are_those_of_hugging_face", "whisper/whisper_mel_oracle.json")
    else {
        return;
    };
    let oracle: Value =
        serde_json::from_str(&std::fs::read_to_string(path).expect("readable")).expect("JSON");
    let mut mel = Mel::new(80);
    mel.push(&tone());
    mel.finish();
    let scaled = scaled(&mel, 0, 3000);
    let at = |frame: usize, band: usize| f64::from(scaled[frame * 80 + band]);
    let frames = oracle["oracle_mel"].as_array().expect("frames");
    assert_eq!(frames.len(), 30);
    for (i, frame) in frames.iter().enumerate() {
        for (band, value) in frame.as_array().expect("bands").iter().enumerate() {
            let (ours, wanted) = (at(i, band), value.as_f64().expect("a number"));
            assert!((ours - wanted).abs() <= 1.2e-5, "frame {i}, band {band}: {ours} is not {wanted}");
        }
    }
    let loudest = scaled.iter().fold(f32::MIN, |most, &value| most.max(value));
    assert!((f64::from(loudest) - oracle["global_max"].as_f64().expect("a number")).abs() <= 1e-5);
    assert!((at(2999, 40) - oracle["padding_tail_value"].as_f64().expect("a number")).abs() <= 1e-5);
}

#[test]
fn pieces_of_any_size_give_the_same_frames() {
    let (tone, mut whole) = (tone(), Mel::new(128));
    whole.push(&tone);
    whole.finish();
    for piece in [1, 159, 160, 199, 200, 201, 399, 4_000] {
        let mut mel = Mel::new(128);
        tone.chunks(piece).for_each(|samples| mel.push(samples));
        mel.finish();
        assert_eq!((mel.length(), mel.frames()), (100, 0..102));
        assert_eq!(scaled(&mel, 0, 200), scaled(&whole, 0, 200), "pieces of {piece}");
    }
}

#[test]
fn very_short_streams_have_frames() {
    for length in [0, 1, 100, 159, 160, 200, 201, 400] {
        let mut mel = Mel::new(80);
        mel.push(&tone()[..length]);
        mel.finish();
        assert_eq!(mel.length(), length as u64 / 160);
        assert!(scaled(&mel, 0, 10).iter().all(|value| value.is_finite()));
    }
}

#[test]
fn frames_that_are_forgotten_leave_the_others_as_they_are() {
    let mut mel = Mel::new(80);
    mel.push(&tone());
    let before = scaled(&mel, 50, 10);
    mel.forget(50);
    assert_eq!((mel.frames().start, scaled(&mel, 50, 10)), (50, before));
}

#[test]
fn windows_end_in_silence_and_loudness_is_of_all_bands() {
    let mut mel = Mel::new(80);
    mel.push(&tone());
    let mut frames = vec![7.0];
    mel.scaled(0, 50, 60, &mut frames);
    assert_eq!(frames.len(), 1 + 60 * 80);
    assert_eq!(frames[1..=50 * 80], scaled(&mel, 0, 50));
    let loudest = frames[1..].iter().fold(f32::MIN, |most, &value| most.max(value));
    assert!(frames[1 + 50 * 80..].iter().all(|value| (value - (loudest - 2.0)).abs() < 1e-6));
    let mut quiet = Mel::new(80);
    quiet.push(&tone().iter().map(|sample| sample / 100.0).collect::<Vec<_>>());
    let (loud, quiet) = (mel.loudness(10, 80), quiet.loudness(10, 80));
    assert_eq!(loud.len(), 80);
    // 40 dB.
    assert!(loud.iter().zip(quiet).all(|(loud, quiet)| (loud - quiet - 4.0).abs() < 1e-3));
}

#[test]
fn filters_are_those_of_openai() {
    // A list for each band: its first frequency that is not 0, and its weights from there.
    let oracle: Value = serde_json::from_str(include_str!("../data/mel_filters.json")).expect("JSON");
    for bands in [80, 128] {
        let wanted = oracle[format!("mel_{bands}")].as_array().expect("bands");
        let filters = mel_filters(bands);
        assert_eq!((filters.len(), wanted.len()), (bands, bands));
        for (i, (filter, wanted)) in filters.iter().zip(wanted).enumerate() {
            let wanted: Vec<f64> =
                wanted.as_array().expect("weights").iter().filter_map(Value::as_f64).collect();
            let mut weights = vec![0.0; 201];
            let first = wanted[0] as usize;
            weights[first..][..wanted.len() - 1].copy_from_slice(&wanted[1..]);
            for (frequency, (ours, wanted)) in filter.iter().zip(&weights).enumerate() {
                assert!(
                    (ours - wanted).abs() < 1e-7,
                    "{bands} bands, {i}, {frequency}: {ours} is not {wanted}"
                );
            }
        }
    }
}
