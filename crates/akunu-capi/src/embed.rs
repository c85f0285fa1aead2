//! Embeddings of texts.

use std::ffi::c_char;
use std::path::Path;
use std::str::FromStr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use akunu::embed::normalise;
use akunu::{DeviceChoice, EmbedOptions, EmbedTask, Embedder, Error, Model, OnLoad, TextIds};

use crate::arguments::{
    AKUNU_TO_NULL, OutBuffer, check_pointer, items, optional_text, read_options, text, write,
};
use crate::boundary::{Failure, Status, check_not_in_callback, guard};
use crate::loading::{Serve, Watcher, load_on_thread};
use crate::log::{LogLevel, log, log_notes};
use crate::model::small;
use crate::registry::{Registry, number};
use crate::structs::{EmbedSettings, EmbedderHandle, Pooling};

static EMBEDDERS: Registry<Loaded> = Registry::new("embedder");

type Task = Box<dyn FnOnce(&mut Embedder) + Send>;

/// A loaded embedder, shared between threads. A device may be used from one thread only, which runs tasks from a queue.
#[derive(Debug)]
struct Loaded {
    model: Arc<Model>,
    width: usize,
    longest: usize,
    keeps_length: bool,
    truncates: bool,
    tasks: Mutex<Option<Sender<Task>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

fn freed() -> Failure {
    Failure::new(Status::Handle, "the embedder was freed during the call")
}

fn broken() -> Failure {
    let message = "a bug in Akunu: this embedder panicked and cannot be used; free it and load it again";
    Failure::new(Status::Internal, message)
}

impl Loaded {
    fn open(
        model: Arc<Model>,
        options: EmbedOptions,
        settings: &EmbedSettings,
        watcher: &Watcher,
    ) -> Result<Loaded, Failure> {
        let (tasks, queue) = channel::<Task>();
        let on_thread = model.clone();
        let load = move |on_load: OnLoad<'_>| {
            let device = akunu::open_device(options.device, options.threads, &options.backends)?;
            let mut embedder = Embedder::load(on_thread, device, &options, on_load)?;
            let facts =
                (embedder.width(), embedder.longest(), embedder.notes().to_vec(), embedder.load_time());
            let serve: Serve = Box::new(move || queue.iter().for_each(|task| task(&mut embedder)));
            Ok((facts, serve))
        };
        let (thread, (width, longest, notes, time)) =
            load_on_thread("akunu-embedder", watcher, load, broken)?;
        log_notes(&notes);
        log(LogLevel::Info, || {
            format!("loaded {} in {:.1} s, for embeddings", model.name(), time.as_secs_f64())
        });
        Ok(Loaded {
            model,
            width,
            longest,
            keeps_length: settings.keep_length != 0,
            truncates: settings.truncate != 0,
            tasks: Mutex::new(Some(tasks)),
            thread: Mutex::new(Some(thread)),
        })
    }

    fn encode(&self, mut texts: Vec<TextIds>) -> Result<Vec<f32>, Failure> {
        for text in texts.iter_mut().filter(|text| self.truncates && text.ids.len() > self.longest) {
            self.model.cut(text, self.longest);
        }
        let (sender, receiver) = channel();
        let task: Task = Box::new(move |embedder| {
            // The receiver waits below.
            let _ = sender.send(embedder.encode(&texts));
        });
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        tasks.ok_or_else(freed)?.send(task).map_err(|_| broken())?;
        let mut vectors = receiver.recv().map_err(|_| broken())??;
        if !self.keeps_length {
            vectors.iter_mut().for_each(|vector| normalise(vector));
        }
        Ok(vectors.concat())
    }

    /// Ends the thread after the queued tasks.
    fn close(&self) {
        drop(self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A thread that panicked has failed its callers' requests already.
        let _ = thread.map(JoinHandle::join);
    }
}

/// # Safety
/// The device's name is null or a text.
unsafe fn embed_options(settings: &EmbedSettings) -> Result<EmbedOptions, Failure> {
    let nonzero = |value: u32| (value > 0).then_some(value as usize);
    // SAFETY: guaranteed by the caller.
    let device = unsafe { optional_text(settings.device, "the device") }?;
    let pooling = match settings.pooling {
        p if p == Pooling::Model as u32 => None,
        p if p == Pooling::Mean as u32 => Some(akunu::Pooling::Mean),
        p if p == Pooling::Cls as u32 => Some(akunu::Pooling::First),
        p if p == Pooling::Last as u32 => Some(akunu::Pooling::Last),
        other => {
            return Err(Failure::argument(format!("the pooling {other} is not an akunu_pooling")));
        }
    };
    Ok(EmbedOptions {
        device: device.map_or(Ok(DeviceChoice::Auto), DeviceChoice::from_str)?,
        threads: nonzero(settings.threads),
        backends: crate::environment::backends(),
        task: EmbedTask::Vectors(pooling),
        longest: nonzero(settings.context),
        ..EmbedOptions::default()
    })
}

/// Loads an embedding model: an encoder, a model whose files specify a pooling, or any other model with a pooling in the
/// options. A null `path` loads the small model embedded in the library. Null `options` select the defaults. Free it with
/// akunu_free_embedder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_load_embedder(
    path: *const c_char,
    options: *const EmbedSettings,
    embedder: *mut *mut EmbedderHandle,
) -> Status {
    guard(|| {
        check_pointer(embedder, "the pointer for the embedder")?;
        // SAFETY: null or a text.
        let path = unsafe { optional_text(path, "the path") }?.map(Path::new);
        // SAFETY: guaranteed by the caller.
        let settings = unsafe { read_options(options) }?;
        // SAFETY: the device's name is null or a text.
        let options = unsafe { embed_options(&settings) }?;
        check_not_in_callback()?;
        let watcher = Watcher { on_progress: settings.on_progress, user: settings.progress_user };
        watcher.begin()?;
        let model = Arc::new(path.map_or_else(Model::embedded, Model::open)?);
        let loaded = Arc::new(Loaded::open(model, options, &settings, &watcher)?);
        // SAFETY: checked above.
        unsafe { write(embedder, EMBEDDERS.add(number(), loaded), "the pointer for the embedder") }
    })
}

/// Frees an embedder, after waiting for calls of other threads. Does nothing if `embedder` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_free_embedder(embedder: *mut EmbedderHandle) -> Status {
    guard(|| {
        if !embedder.is_null() {
            check_not_in_callback()?;
            EMBEDDERS.remove(embedder)?.close();
        }
        Ok(())
    })
}

/// Gets the number of dimensions of a vector (`width`) and the maximum tokens of a text (`longest`). Either may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_embedding_width(
    embedder: *const EmbedderHandle,
    width: *mut u32,
    longest: *mut u32,
) -> Status {
    guard(|| {
        let loaded = EMBEDDERS.get(embedder)?;
        // SAFETY: guaranteed by the caller.
        unsafe { crate::arguments::write_optional(width, small(loaded.width), "the width") }?;
        // SAFETY: guaranteed by the caller.
        unsafe { crate::arguments::write_optional(longest, small(loaded.longest), "the longest") }
    })
}

/// Embeds `count` null-terminated UTF-8 texts, none of which may be empty. The vectors are written one after the other, `width`
/// numbers each, normalised unless the options say otherwise. Texts are batched, which does not change their vectors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_embed(
    embedder: *const EmbedderHandle,
    texts: *const *const c_char,
    count: usize,
    vectors: *mut f32,
    capacity: usize,
    length: *mut usize,
) -> Status {
    guard(|| {
        let loaded = EMBEDDERS.get(embedder)?;
        let output = OutBuffer { buffer: vectors, capacity, length };
        // SAFETY: guaranteed by the caller.
        let pointers = unsafe { items(texts, count, "the texts") }?;
        let prompt = loaded.model.embedding_prompt(None)?;
        let read = |(index, pointer): (usize, &*const c_char)| {
            // SAFETY: each is null or a text that ends.
            let text = unsafe { text(*pointer, AKUNU_TO_NULL, "a text") }?;
            match text {
                "" => Err(Error::EmptyText { index }.into()),
                text => Ok(loaded.model.text_ids(text, prompt)?),
            }
        };
        let texts = pointers.iter().enumerate().map(read).collect::<Result<Vec<_>, Failure>>()?;
        // SAFETY: the buffer has the capacity.
        unsafe { fill(&loaded, texts, output) }
    })
}

/// Embeds `count` texts given as token ids, special tokens included: `ids` has the ids of all texts, one after the other, and
/// `lengths` the number of ids of each. Otherwise as akunu_embed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_embed_ids(
    embedder: *const EmbedderHandle,
    ids: *const u32,
    lengths: *const usize,
    count: usize,
    vectors: *mut f32,
    capacity: usize,
    length: *mut usize,
) -> Status {
    guard(|| {
        let loaded = EMBEDDERS.get(embedder)?;
        let output = OutBuffer { buffer: vectors, capacity, length };
        // SAFETY: `lengths` has `count` numbers.
        let lengths = unsafe { items(lengths, count, "the lengths") }?;
        let sum = lengths.iter().try_fold(0usize, |sum, length| sum.checked_add(*length));
        let sum = sum.ok_or_else(|| Failure::argument("the sum of the lengths exceeds the address space"))?;
        // SAFETY: `ids` has as many numbers as the lengths say.
        let mut rest = unsafe { items(ids, sum, "the ids") }?;
        let take = |length: &usize| {
            let (text, others) = rest.split_at(*length);
            rest = others;
            TextIds::from(text.to_vec())
        };
        let texts = lengths.iter().map(take).collect();
        // SAFETY: the buffer has the capacity.
        unsafe { fill(&loaded, texts, output) }
    })
}

/// Embeds the texts, unless only the length was requested or the buffer is too small.
///
/// # Safety
/// The buffer has the capacity, and the length is null or valid.
unsafe fn fill(loaded: &Loaded, texts: Vec<TextIds>, output: OutBuffer<f32>) -> Result<(), Failure> {
    check_not_in_callback()?;
    let only_length = output.check()?;
    let needed = texts.len().saturating_mul(loaded.width);
    if only_length || needed > output.capacity {
        // SAFETY: as this function's.
        return unsafe { output.fill_length(needed) };
    }
    let vectors = loaded.encode(texts)?;
    // SAFETY: guaranteed by the caller.
    unsafe { output.fill(&vectors) }
}
