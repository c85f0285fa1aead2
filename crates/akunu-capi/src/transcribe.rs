//! Transcription of audio.

use std::ffi::{c_char, c_void};
use std::ops::ControlFlow;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use akunu::audio::{Audio, Pcm, SampleFormat};
use akunu::{
    DeviceChoice, EngineOptions, Error, Event, Model, OnLoad, Segment, TranscribeOptions, Transcriber,
    TranscriberOptions,
};

use crate::arguments::AKUNU_TO_NULL;
use crate::arguments::{check_pointer, items, optional_text, read_options, text, write};
use crate::boundary::{Failure, Status, check_not_in_callback, guard, in_callback};
use crate::generate::flow;
use crate::loading::{Serve, Watcher, load_on_thread};
use crate::log::{LogLevel, log, log_notes};
use crate::model::small;
use crate::registry::{Registry, number};
use crate::structs::{
    OnSegment, SpeechSegment, SpeechTask, SpokenWord, Timestamps, TranscribeSettings, TranscriberHandle,
    TranscriberSettings,
};

static TRANSCRIBERS: Registry<Loaded> = Registry::new("transcriber");

type Task = Box<dyn FnOnce(&mut Transcriber) + Send>;

/// A loaded transcriber, shared between threads. A device may be used from one thread only, which runs tasks from a
/// queue.
#[derive(Debug)]
struct Loaded {
    tasks: Mutex<Option<Sender<Task>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    beams: usize,
}

fn freed() -> Failure {
    Failure::new(Status::Handle, "the transcriber was freed during the call")
}

fn broken() -> Failure {
    let message = "a bug in Akunu: this transcriber panicked and cannot be used; free it and load it again";
    Failure::new(Status::Internal, message)
}

/// What the thread tells the caller.
enum Heard {
    Segment(OwnedSegment),
    Done(Result<(), Failure>),
}

impl Loaded {
    fn open(model: Arc<Model>, options: TranscriberOptions, watcher: &Watcher) -> Result<Loaded, Failure> {
        let (tasks, queue) = channel::<Task>();
        let (beams, on_thread) = (options.beams, model.clone());
        let load = move |on_load: OnLoad<'_>| {
            let EngineOptions { device, threads, backends, .. } = &options.engine;
            let device = akunu::open_device(*device, *threads, backends)?;
            let mut transcriber = Transcriber::load(on_thread, device, &options, on_load)?;
            let notes = transcriber.engine().notes().to_vec();
            let serve: Serve = Box::new(move || queue.iter().for_each(|task| task(&mut transcriber)));
            Ok((notes, serve))
        };
        let (thread, notes) = load_on_thread("akunu-transcriber", watcher, load, broken)?;
        log_notes(&notes);
        log(LogLevel::Info, || format!("loaded {}, for transcription", model.name()));
        Ok(Loaded { tasks: Mutex::new(Some(tasks)), thread: Mutex::new(Some(thread)), beams })
    }

    /// Transcribes on the transcriber's thread, and calls the callback on this one.
    fn transcribe(
        &self,
        audio: Audio,
        mut options: TranscribeOptions,
        mut on_segment: impl FnMut(&OwnedSegment) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        (options.beams, options.best_of) = (self.beams, self.beams);
        let cancel = Arc::<AtomicBool>::default();
        let (sender, receiver) = channel();
        let of_task = cancel.clone();
        let task: Task = Box::new(move |transcriber| {
            let done = run(transcriber, audio, &options, of_task, &sender);
            // The receiver waits below.
            let _ = sender.send(Heard::Done(done.map_err(Failure::from)));
        });
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        tasks.ok_or_else(freed)?.send(task).map_err(|_| broken())?;
        loop {
            match receiver.recv().map_err(|_| broken())? {
                Heard::Done(done) => return done,
                Heard::Segment(segment) => {
                    if !cancel.load(Ordering::Relaxed) && on_segment(&segment).is_break() {
                        cancel.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// Ends the thread after the queued tasks.
    fn close(&self) {
        drop(self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A thread that panicked has failed its callers' requests already.
        let _ = thread.map(JoinHandle::join);
    }
}

fn run(
    transcriber: &mut Transcriber,
    audio: Audio,
    options: &TranscribeOptions,
    cancel: Arc<AtomicBool>,
    sender: &Sender<Heard>,
) -> Result<(), Error> {
    let mut job = transcriber.job(audio, options)?.cancelled_by(cancel);
    let mut language = String::new();
    while !job.is_over() {
        transcriber.step(&mut [&mut job])?;
        for event in job.events()? {
            match event {
                Event::Language { code, .. } => language = code,
                Event::Segment(segment) => {
                    let _ = sender.send(Heard::Segment(OwnedSegment::new(segment, &language)));
                }
                Event::Progress { .. } => {}
                Event::Repetition { seconds } => log(LogLevel::Warning, || {
                    format!("the text of the window at {seconds:.0} s repeats itself, and was cut")
                }),
                Event::Damage(damage) => log(LogLevel::Warning, || {
                    let ended = damage.ended.as_ref().map(|reason| format!("; it ends early: {reason}"));
                    let ended = ended.unwrap_or_default();
                    format!("{} packets of the audio could not be decoded{ended}", damage.packets)
                }),
            }
        }
    }
    Ok(())
}

/// A segment on its way from the transcriber's thread to the caller's. Texts end with a null character.
#[derive(Debug)]
struct OwnedSegment {
    text: String,
    language: String,
    start: f64,
    end: f64,
    /// Text, start and end.
    words: Vec<(String, f64, f64)>,
}

impl OwnedSegment {
    fn new(segment: Segment, language: &str) -> OwnedSegment {
        let ended = |text: &str| format!("{text}\0");
        let words = segment.words.iter().map(|word| (ended(&word.text), word.start, word.end));
        OwnedSegment {
            words: words.collect(),
            text: ended(&segment.text),
            language: ended(language),
            start: segment.start,
            end: segment.end,
        }
    }

    /// Its words for C, valid as long as the segment.
    fn words(&self) -> Vec<SpokenWord> {
        let word = |(text, start, end): &(String, f64, f64)| SpokenWord {
            text: text.as_ptr().cast::<c_char>(),
            text_length: text.len() - 1,
            start: *start,
            end: *end,
        };
        self.words.iter().map(word).collect()
    }

    /// The segment for C, valid as long as this one and its words.
    fn view(&self, words: &[SpokenWord]) -> SpeechSegment {
        SpeechSegment {
            size: small(size_of::<SpeechSegment>()),
            word_count: small(words.len()),
            text: self.text.as_ptr().cast::<c_char>(),
            text_length: self.text.len() - 1,
            start: self.start,
            end: self.end,
            words: if words.is_empty() { std::ptr::null() } else { words.as_ptr() },
            language: self.language.as_ptr().cast::<c_char>(),
        }
    }
}

/// # Safety
/// The device's name is null or a text.
unsafe fn transcriber_options(settings: &TranscriberSettings) -> Result<TranscriberOptions, Failure> {
    let defaults = TranscriberOptions::default();
    let or = |value: u32, default: usize| if value > 0 { value as usize } else { default };
    // SAFETY: guaranteed by the caller.
    let device = unsafe { optional_text(settings.device, "the device") }?;
    let engine = EngineOptions {
        device: device.map_or(Ok(DeviceChoice::Auto), DeviceChoice::from_str)?,
        threads: (settings.threads > 0).then_some(settings.threads as usize),
        backends: crate::environment::backends(),
        ..EngineOptions::default()
    };
    Ok(TranscriberOptions {
        engine,
        windows: or(settings.windows, defaults.windows),
        beams: or(settings.beams, defaults.beams),
        word_times: settings.word_times != 0,
    })
}

/// # Safety
/// The texts are null or end.
unsafe fn transcribe_options(settings: &TranscribeSettings) -> Result<TranscribeOptions, Failure> {
    // SAFETY: guaranteed by the caller.
    let language = unsafe { optional_text(settings.language, "the language") }?;
    // SAFETY: guaranteed by the caller.
    let prompt = unsafe { optional_text(settings.prompt, "the prompt") }?;
    let task = match settings.task {
        task if task == SpeechTask::Transcribe as u32 => akunu::SpeechTask::Transcribe,
        task if task == SpeechTask::Translate as u32 => akunu::SpeechTask::Translate,
        other => return Err(Failure::argument(format!("the task {other} is not an akunu_speech_task"))),
    };
    let timestamps = match settings.timestamps {
        times if times == Timestamps::Segment as u32 => akunu::Timestamps::Segment,
        times if times == Timestamps::Word as u32 => akunu::Timestamps::Word,
        times if times == Timestamps::None as u32 => akunu::Timestamps::None,
        other => {
            return Err(Failure::argument(format!("the timestamps {other} are not an akunu_timestamps")));
        }
    };
    let once = settings.temperature != 0.0 || settings.no_fallback != 0;
    Ok(TranscribeOptions {
        language: language.map(str::to_string),
        prompt: prompt.map(str::to_string),
        task,
        timestamps,
        parallel: settings.parallel != 0,
        temperatures: if once {
            vec![settings.temperature]
        } else {
            TranscribeOptions::TEMPERATURES.to_vec()
        },
        ..TranscribeOptions::default()
    })
}

/// Loads a model that transcribes, such as Whisper. Null `options` select the defaults. Free it with
/// akunu_free_transcriber.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_load_transcriber(
    path: *const c_char,
    options: *const TranscriberSettings,
    transcriber: *mut *mut TranscriberHandle,
) -> Status {
    guard(|| {
        check_pointer(transcriber, "the pointer for the transcriber")?;
        // SAFETY: null or a text.
        let path = unsafe { text(path, AKUNU_TO_NULL, "the path") }?;
        // SAFETY: guaranteed by the caller.
        let settings = unsafe { read_options(options) }?;
        // SAFETY: the device's name is null or a text.
        let options = unsafe { transcriber_options(&settings) }?;
        check_not_in_callback()?;
        let watcher = Watcher { on_progress: settings.on_progress, user: settings.progress_user };
        watcher.begin()?;
        let model = Arc::new(Model::open(Path::new(path))?);
        let loaded = Arc::new(Loaded::open(model, options, &watcher)?);
        // SAFETY: checked above.
        unsafe { write(transcriber, TRANSCRIBERS.add(number(), loaded), "the pointer for the transcriber") }
    })
}

/// Frees a transcriber, after waiting for calls of other threads. Does nothing if `transcriber` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_free_transcriber(transcriber: *mut TranscriberHandle) -> Status {
    guard(|| {
        if !transcriber.is_null() {
            check_not_in_callback()?;
            TRANSCRIBERS.remove(transcriber)?.close();
        }
        Ok(())
    })
}

/// Transcribes an audio file: WAV, MP3, FLAC, OGG Vorbis or M4A of any rate and number of channels. `on_segment` is
/// called with each segment as it is found, and `user`. If it returns AKUNU_STOP, the call ends without an error. Null
/// `options` select the defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_transcribe(
    transcriber: *const TranscriberHandle,
    path: *const c_char,
    options: *const TranscribeSettings,
    on_segment: OnSegment,
    user: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: null or a text.
        let path = unsafe { text(path, AKUNU_TO_NULL, "the path") }?;
        let audio = || Audio::open(Path::new(path)).map_err(Error::from);
        // SAFETY: guaranteed by the caller.
        unsafe { transcribe(transcriber, audio, options, on_segment, user) }
    })
}

/// Transcribes `count` samples of one channel, `rate` of them a second; full scale is from -1 to 1. Otherwise as
/// akunu_transcribe. The samples are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_transcribe_samples(
    transcriber: *const TranscriberHandle,
    samples: *const f32,
    count: usize,
    rate: u32,
    options: *const TranscribeSettings,
    on_segment: OnSegment,
    user: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let samples = unsafe { items(samples, count, "the samples") }?;
        let audio = || {
            let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
            let pcm = Pcm { rate, channels: 1, format: SampleFormat::F32 };
            Audio::from_pcm(std::io::Cursor::new(bytes), pcm).map_err(Error::from)
        };
        // SAFETY: guaranteed by the caller.
        unsafe { transcribe(transcriber, audio, options, on_segment, user) }
    })
}

/// # Safety
/// The options are null or valid, and the callback is as declared.
unsafe fn transcribe(
    transcriber: *const TranscriberHandle,
    audio: impl FnOnce() -> Result<Audio, Error>,
    options: *const TranscribeSettings,
    on_segment: OnSegment,
    user: *mut c_void,
) -> Result<(), Failure> {
    let loaded = TRANSCRIBERS.get(transcriber)?;
    let on_segment = on_segment.ok_or_else(|| Failure::argument("the callback for segments is null"))?;
    // SAFETY: guaranteed by the caller.
    let settings = unsafe { read_options(options) }?;
    // SAFETY: the texts are null or end.
    let options = unsafe { transcribe_options(&settings) }?;
    check_not_in_callback()?;
    loaded.transcribe(audio()?, options, |segment| {
        let words = segment.words();
        let view = segment.view(&words);
        // SAFETY: the caller's function, called as it is declared.
        flow(in_callback(|| unsafe { on_segment(&raw const view, user) }))
    })
}
