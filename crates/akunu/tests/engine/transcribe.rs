//! Transcripts of the speech in `testdata/speech`, by the model there.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use akunu::audio::{Audio, Pcm, RATE, SampleFormat};
use akunu::devices::Isa;
use akunu::{
    DeviceChoice, Engine, EngineOptions, Error, Event, Model, Segment, SpeechTask, Timestamps,
    TranscribeOptions, Transcriber, TranscriberOptions, Transcript,
};
use akunu_cpu::{CpuDevice, CpuOptions};
use akunu_testing::{few_or_many, fewest_or};
use serde_json::Value;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/speech")
}

static MODEL: LazyLock<Arc<Model>> =
    LazyLock::new(|| Arc::new(Model::open(folder().join("akunu-speech-q8_0.gguf")).unwrap()));

fn options(windows: usize, beams: usize) -> TranscriberOptions {
    let engine = EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() };
    TranscriberOptions { engine, windows, beams, word_times: true }
}

fn transcriber(windows: usize, beams: usize) -> Transcriber {
    Transcriber::new(MODEL.clone(), &options(windows, beams)).unwrap()
}

fn greedy() -> TranscribeOptions {
    TranscribeOptions { beams: 1, best_of: 1, ..TranscribeOptions::default() }
}

fn audio(file: &str) -> Audio {
    Audio::open(&folder().join(file)).unwrap()
}

fn transcript(by: &mut Transcriber, file: &str, options: &TranscribeOptions) -> Transcript {
    by.transcribe(audio(file), options, &mut |_| {}).unwrap()
}

/// What `truth.json` says of a file.
fn truth(file: &str) -> Value {
    let all: Value = serde_json::from_slice(&std::fs::read(folder().join("truth.json")).unwrap()).unwrap();
    all.as_array().unwrap().iter().find(|one| one["file"] == file).unwrap().clone()
}

fn words(text: &str) -> Vec<String> {
    let plain = |word: &str| word.to_lowercase().replace(|c: char| !c.is_alphanumeric() && c != '\'', "");
    text.split_whitespace().map(plain).filter(|word| !word.is_empty()).collect()
}

/// The least number of words to substitute, insert and delete.
fn wrong(truth: &[String], heard: &[String]) -> usize {
    let mut row: Vec<usize> = (0..=heard.len()).collect();
    for (i, word) in truth.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in heard.iter().enumerate() {
            let here = (diagonal + usize::from(word != other)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], here);
        }
    }
    row[heard.len()]
}

fn bits(transcript: &Transcript) -> Vec<(Vec<u32>, u64, u64, u64)> {
    let of = |segment: &Segment| {
        let times = (segment.start.to_bits(), segment.end.to_bits());
        (segment.tokens.clone(), times.0, times.1, segment.mean_log_probability.to_bits())
    };
    transcript.segments.iter().map(of).collect()
}

#[test]
fn speech_of_new_voices_is_heard_with_its_times() {
    let (mut with_beams, mut alone) = (transcriber(1, 5), transcriber(1, 1));
    let files = [("story.mp3", 3), ("pause.mp3", 0), ("german.mp3", 0), ("short.flac", 0)];
    // The longest is heard by other tests, too.
    for (file, allowed) in files.into_iter().skip(fewest_or(1, 0, 0)) {
        let truth = truth(file);
        let said = words(truth["text"].as_str().unwrap());
        for found in [
            transcript(&mut with_beams, file, &TranscribeOptions::default()),
            transcript(&mut alone, file, &greedy()),
        ] {
            let count = wrong(&said, &words(&found.text));
            assert!(count <= allowed, "{file}: {count} of {} words are wrong: {}", said.len(), found.text);
            assert_eq!(found.language.as_deref(), truth["language"].as_str());
            assert!((found.duration - truth["seconds"].as_f64().unwrap()).abs() < 0.1);
            let sentences = truth["sentences"].as_array().unwrap();
            for segment in &found.segments {
                let starts =
                    |sentence: &&Value| words(sentence["text"].as_str().unwrap()) == words(&segment.text);
                let Some(sentence) = sentences.iter().find(starts) else { continue };
                for (found, key) in [(segment.start, "start"), (segment.end, "end")] {
                    let wanted = sentence[key].as_f64().unwrap();
                    assert!((found - wanted).abs() < 0.2, "{file}: {key} at {found} of {sentence}");
                }
            }
            let exact = found.segments.iter().filter(|segment| {
                sentences.iter().any(|one| words(one["text"].as_str().unwrap()) == words(&segment.text))
            });
            assert!(exact.count() * 10 >= sentences.len() * 8, "{file}: {:?}", found.segments);
        }
    }
}

#[test]
fn silence_has_no_text() {
    let mut by = transcriber(1, 5);
    let found = transcript(&mut by, "silence.flac", &TranscribeOptions::default());
    assert_eq!((found.text.as_str(), found.segments.len()), ("", 0));
    // Nothing at all is not shown to the model.
    let zeros = Pcm { rate: RATE, channels: 1, format: SampleFormat::I16 };
    let zeros = Audio::from_pcm(std::io::Cursor::new(vec![0; 2 * 16_000 * 40]), zeros).unwrap();
    let mut progress = Vec::new();
    let found =
        by.transcribe(zeros, &TranscribeOptions::default(), &mut |event| progress.push(event.clone()));
    assert_eq!(found.unwrap(), Transcript { duration: 40.0, ..Transcript::default() });
    assert!(progress.iter().all(|event| matches!(event, Event::Progress { .. })));
}

#[test]
fn words_have_times_within_their_segments() {
    let options = TranscribeOptions { timestamps: Timestamps::Word, ..greedy() };
    let found = transcript(&mut transcriber(1, 1), "short.flac", &options);
    let truth = truth("short.flac");
    let said: Vec<&Value> = truth["sentences"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|one| one["words"].as_array().unwrap())
        .collect();
    let heard: Vec<&akunu::Word> = found.segments.iter().flat_map(|segment| &segment.words).collect();
    assert_eq!(heard.len(), said.len());
    let mut off = 0.0;
    for (word, said) in heard.iter().zip(&said) {
        assert_eq!(words(&word.text), words(said["word"].as_str().unwrap()));
        assert!(word.start <= word.end && word.probability > 0.0 && word.probability <= 1.0, "{word:?}");
        off += (word.start - said["start"].as_f64().unwrap()).abs();
    }
    assert!(off / (heard.len() as f64) < 0.15, "{off}");
    for segment in &found.segments {
        assert_eq!(segment.words.iter().map(|word| word.text.as_str()).collect::<String>(), segment.text);
        assert!(
            segment.words.iter().all(|w| w.start >= segment.start && w.end <= segment.end),
            "{segment:?}"
        );
    }
}

#[test]
fn transcripts_do_not_depend_on_threads_instruction_sets_or_what_is_beside_them() {
    let best = *Isa::available().last().unwrap();
    // Without vectors it takes as long as with all others.
    let least = few_or_many(1, 0);
    let most = fewest_or(1, usize::MAX, usize::MAX);
    let others = Isa::available().into_iter().skip(least).filter(|isa| *isa != best).take(most);
    let others = others.map(|isa| (isa, 2));
    let mut expected = None;
    let of_best = [1, 2, 3].into_iter().take(fewest_or(1, 3, 3)).map(|threads| (best, threads));
    for (isa, threads) in of_best.chain(others) {
        let device =
            CpuDevice::new(CpuOptions { threads: Some(threads), isa: Some(isa), ..Default::default() });
        let mut by =
            Transcriber::load(MODEL.clone(), Box::new(device.unwrap()), &options(1, 2), &mut |_, _| {
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        let options = TranscribeOptions { beams: 2, best_of: 2, ..TranscribeOptions::default() };
        let found = bits(&transcript(&mut by, "short.flac", &options));
        assert_eq!(*expected.get_or_insert(found.clone()), found, "{isa:?}, {threads} threads");
    }

    // Files at once, with two windows a pass.
    let mut by = transcriber(2, 1);
    let files = &["short.flac", "german.mp3", "story.mp3"][..fewest_or(2, 3, 3)];
    let alone: Vec<_> = files.iter().map(|file| bits(&transcript(&mut by, file, &greedy()))).collect();
    let mut jobs: Vec<akunu::Job> =
        files.iter().map(|file| by.job(audio(file), &greedy()).unwrap()).collect();
    let mut found = vec![Transcript::default(); files.len()];
    while jobs.iter().any(|job| !job.is_over()) {
        by.step(&mut jobs.iter_mut().collect::<Vec<_>>()).unwrap();
        for (job, transcript) in jobs.iter_mut().zip(&mut found) {
            job.events().unwrap().into_iter().for_each(|event| transcript.add(event));
        }
    }
    assert_eq!(found.iter().map(bits).collect::<Vec<_>>(), alone);

    // Windows that are cut where it is quiet.
    let parallel = TranscribeOptions { parallel: true, ..greedy() };
    let one = bits(&transcript(&mut transcriber(1, 1), "story.mp3", &parallel));
    assert_eq!(bits(&transcript(&mut transcriber(4, 1), "story.mp3", &parallel)), one);
    assert!(one.len() > 10);
}

#[test]
fn windows_cut_where_it_is_quiet_have_the_whole_text() {
    let mut by = transcriber(3, 1);
    let said = words(truth("story.mp3")["text"].as_str().unwrap());
    for options in [
        TranscribeOptions { parallel: true, ..greedy() },
        TranscribeOptions { timestamps: Timestamps::None, ..greedy() },
    ]
    .into_iter()
    .take(fewest_or(1, 2, 2))
    {
        let found = transcript(&mut by, "story.mp3", &options);
        assert!(wrong(&said, &words(&found.text)) <= 6, "{}", found.text);
    }
}

#[test]
fn german_is_translated_and_a_wrong_language_is_not_detected() {
    let mut by = transcriber(1, 5);
    let options = TranscribeOptions { task: SpeechTask::Translate, ..TranscribeOptions::default() };
    let found = transcript(&mut by, "german.mp3", &options);
    assert_eq!(words(&found.text), words(truth("german.mp3")["translation"].as_str().unwrap()));
    let mut events = Vec::new();
    let given = TranscribeOptions { language: Some("German".into()), ..greedy() };
    by.transcribe(audio("german.mp3"), &given, &mut |event| events.push(event.clone())).unwrap();
    assert_eq!(events[0], Event::Language { code: "de".into(), probability: 1.0 });
}

/// A tone of 440 Hz in f32, of so many seconds and decibels below full scale; after it these samples.
fn tone(seconds: usize, decibels: f64, after: &[f32]) -> Audio {
    let amplitude = 10f64.powf(-decibels / 20.0);
    let sample = |i: usize| (amplitude * (std::f64::consts::TAU * 440.0 * i as f64 / 16_000.0).sin()) as f32;
    let samples = (0..seconds * 16_000).map(sample).chain(after.iter().copied());
    let bytes: Vec<u8> = samples.flat_map(f32::to_le_bytes).collect();
    let pcm = Pcm { rate: RATE, channels: 1, format: SampleFormat::F32 };
    Audio::from_pcm(std::io::Cursor::new(bytes), pcm).unwrap()
}

#[test]
fn only_what_nobody_hears_is_not_shown_to_the_model() {
    let mut by = transcriber(1, 1);
    for (decibels, is_shown) in [(70.0, true), (80.0, false)] {
        let found = by.transcribe(tone(5, decibels, &[]), &greedy(), &mut |_| {}).unwrap();
        assert_eq!(found.language.is_some(), is_shown, "{decibels} dB: {found:?}");
    }
}

#[test]
fn audio_that_cannot_be_read_any_further_has_its_text_first() {
    let mut by = transcriber(2, 1);
    for parallel in [false, true].into_iter().take(fewest_or(1, 2, 2)) {
        let options = TranscribeOptions { parallel, ..greedy() };
        let mut job = by.job(tone(70, 20.0, &[f32::NAN]), &options).unwrap();
        let mut progress = 0.0;
        let error = loop {
            assert!(!job.is_over());
            by.step(&mut [&mut job]).unwrap();
            match job.events() {
                Err(error) => break error,
                Ok(events) => {
                    for event in events {
                        if let Event::Progress { seconds } = event {
                            progress = seconds;
                        }
                    }
                }
            }
        };
        assert!(error.to_string().contains("not a finite number, after 70.0 s"), "{error}");
        assert!(job.is_over() && progress > 65.0, "{progress} s");
    }
    let nothing = by.transcribe(tone(0, 0.0, &[]), &greedy(), &mut |_| {}).unwrap_err();
    assert_eq!(nothing.to_string(), "it is empty");
}

/// Whatever a window is at when its job is cancelled, the others go on.
#[test]
fn jobs_are_cancelled_at_any_time() {
    let mut by = transcriber(2, 2);
    let options = TranscribeOptions { beams: 2, best_of: 2, ..TranscribeOptions::default() };
    let expected = bits(&transcript(&mut by, "short.flac", &options));
    for delay in (0..40).step_by(fewest_or(20, 4, 4)) {
        let mut jobs = ["story.mp3", "short.flac"].map(|file| by.job(audio(file), &options).unwrap());
        let flag = jobs[0].cancel_flag().clone();
        let canceller = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(10 * delay));
            flag.store(true, Ordering::Relaxed);
        });
        let mut found = Transcript::default();
        while jobs.iter().any(|job| !job.is_over()) {
            by.step(&mut jobs.iter_mut().collect::<Vec<_>>()).unwrap();
            jobs[1].events().unwrap().into_iter().for_each(|event| found.add(event));
            jobs[0].events().unwrap();
        }
        canceller.join().unwrap();
        assert_eq!(bits(&found), expected, "after {} ms", 10 * delay);
    }
}

#[test]
fn memory_is_known_before_loading() {
    for (windows, beams) in [(1, 1), (3, 2)] {
        let by = transcriber(windows, beams);
        let engine = by.engine();
        assert_eq!(engine.device().allocated_bytes(), engine.plan().memory.allocated());
    }
}

#[test]
fn a_cancelled_job_ends() {
    let mut by = transcriber(1, 1);
    let mut job = by.job(audio("story.mp3"), &greedy()).unwrap();
    by.step(&mut [&mut job]).unwrap();
    assert!(!job.is_over() && job.events().unwrap().len() > 1);
    job.cancel_flag().store(true, Ordering::Relaxed);
    by.step(&mut [&mut job]).unwrap();
    assert!(job.is_over());
}

#[test]
fn poor_texts_are_sampled_again_and_seeds_decide() {
    let mut by = transcriber(1, 2);
    // No text is good enough.
    let with = |seed: u64| TranscribeOptions {
        beams: 2,
        best_of: 2,
        log_probability: Some(0.5),
        no_speech: None,
        temperatures: vec![0.0, 0.6, 1.0],
        seed,
        ..TranscribeOptions::default()
    };
    let found = [1, 1, 2].map(|seed| bits(&transcript(&mut by, "german.mp3", &with(seed))));
    assert_eq!(found[0], found[1]);
    let all = transcript(&mut by, "german.mp3", &with(3));
    assert!(all.segments.iter().all(|segment| segment.temperature == 1.0), "{all:?}");
}

#[test]
fn what_a_model_cannot_do_is_refused() {
    let by = transcriber(1, 2);
    let refused = |options: TranscribeOptions| by.job(audio("short.flac"), &options).unwrap_err().to_string();
    let plain = || TranscribeOptions { beams: 2, best_of: 2, ..TranscribeOptions::default() };
    assert!(refused(TranscribeOptions { language: Some("xx".into()), ..plain() }).contains("en, de"));
    assert!(refused(TranscribeOptions { beams: 3, ..plain() }).contains("beams is 3"));
    assert!(refused(TranscribeOptions { temperatures: vec![], ..plain() }).contains("temperatures"));
    assert!(
        refused(TranscribeOptions { temperatures: vec![f32::NAN], ..plain() }).contains("temperature is NaN")
    );
    let without = TranscriberOptions { word_times: false, ..options(1, 2) };
    let by = Transcriber::new(MODEL.clone(), &without).unwrap();
    let words = TranscribeOptions { timestamps: Timestamps::Word, ..plain() };
    assert!(matches!(by.job(audio("short.flac"), &words), Err(Error::NoWordTimes)));

    let engine = options(1, 1).engine;
    assert!(matches!(Engine::new(MODEL.clone(), &engine), Err(Error::OnlyTranscribes)));
    let text = Arc::new(Model::embedded().unwrap());
    assert!(matches!(Transcriber::new(text, &options(1, 1)), Err(Error::DoesNotTranscribe)));
    for wrong in [options(0, 1), options(1, 65)] {
        assert!(matches!(Transcriber::new(MODEL.clone(), &wrong), Err(Error::Setting { .. })));
    }
}
