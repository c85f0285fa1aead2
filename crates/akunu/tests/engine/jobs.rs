//! Several files that are transcribed side by side.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::path::{Path, PathBuf};
use std::sync::Arc;

use akunu::audio::{Audio, Pcm, SampleFormat};
use akunu::{
    DeviceChoice, EngineOptions, Error, Job, Model, TranscribeOptions, Transcriber, TranscriberOptions,
    Transcript,
};

fn speech(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/speech").join(name)
}

fn transcriber(windows: usize) -> Transcriber {
    let model = Arc::new(Model::open(speech("akunu-speech-q8_0.gguf")).unwrap());
    let engine = EngineOptions { device: DeviceChoice::Cpu, threads: Some(1), ..EngineOptions::default() };
    let options = TranscriberOptions { engine, windows, beams: 1, word_times: false };
    Transcriber::new(model, &options).unwrap()
}

fn options(parallel: bool) -> TranscribeOptions {
    TranscribeOptions { parallel, beams: 1, best_of: 1, ..TranscribeOptions::default() }
}

fn finished(transcriber: &mut Transcriber, mut jobs: Vec<Job>) -> Vec<Result<Transcript, Error>> {
    let mut transcripts: Vec<_> = jobs.iter().map(|_| Ok(Transcript::default())).collect();
    while jobs.iter().any(|job| !job.is_over()) {
        transcriber.step(&mut jobs.iter_mut().collect::<Vec<_>>()).unwrap();
        for (job, transcript) in jobs.iter_mut().zip(&mut transcripts) {
            match (job.events(), transcript) {
                (Ok(events), Ok(transcript)) => events.into_iter().for_each(|event| transcript.add(event)),
                (Err(error), transcript) => *transcript = Err(error),
                (Ok(_), Err(_)) => {}
            }
        }
    }
    transcripts
}

#[test]
fn files_side_by_side_have_the_text_that_they_have_alone() {
    if akunu_testing::left_to_ci() {
        return;
    }
    let mut transcriber = transcriber(3);
    let files = [("short.flac", false), ("pause.mp3", true), ("german.mp3", false)];
    let jobs = |transcriber: &Transcriber| {
        let job = |(name, parallel)| {
            transcriber.job(Audio::open(&speech(name)).unwrap(), &options(parallel)).unwrap()
        };
        files.map(job)
    };
    let (side_by_side, one_by_one) = (jobs(&transcriber), jobs(&transcriber));
    let together = finished(&mut transcriber, side_by_side.into());
    for (job, together) in one_by_one.into_iter().zip(together) {
        let alone = finished(&mut transcriber, vec![job]).pop().unwrap().unwrap();
        assert!(!alone.text.is_empty());
        assert_eq!(together.unwrap(), alone);
    }
}

#[test]
fn a_file_that_cannot_be_read_is_no_error_of_the_others() {
    let mut transcriber = transcriber(2);
    let samples = [0.0, f32::NAN].map(f32::to_le_bytes).concat();
    let pcm = Pcm { rate: 16_000, channels: 1, format: SampleFormat::F32 };
    let broken = Audio::from_pcm(std::io::Cursor::new(samples), pcm).unwrap();
    let broken = transcriber.job(broken, &options(false)).unwrap();
    let bytes = std::fs::read(speech("short.flac")).unwrap();
    let good = transcriber.job(Audio::from_bytes(bytes).unwrap(), &options(false)).unwrap();
    let [broken, good] = finished(&mut transcriber, vec![broken, good]).try_into().unwrap();
    assert!(matches!(broken, Err(Error::Audio(_))), "{broken:?}");
    assert!(!good.unwrap().text.is_empty());
}
