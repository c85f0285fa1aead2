//! Vectors of texts.

use std::ffi::c_char;
use std::path::Path;
use std::str::FromStr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use akunu::embed::normalise;
use akunu::{DeviceChoice, EmbedOptions, EmbedTask, Embedder, Error, Model, TextIds};

use crate::arguments::{AKUNU_TO_NULL, Room, check_pointer, items, read_options, text, wanted_text, write};
use crate::boundary::{Failure, Status, check_not_in_callback, guard};
use crate::model::small;
use crate::registry::{Registry, number};
use crate::structs::{EmbedSettings, EmbedderHandle, Pooling};

static EMBEDDERS: Registry<Loaded> = Registry::new("embedder");

type Task = Box<dyn FnOnce(&mut Embedder) + Send>;

/// A loaded embedder, as every thread may see it. A device belongs to one thread, which takes tasks in turn.
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
    Failure::new(Status::Handle, "the embedder was freed meanwhile")
}

fn broken() -> Failure {
    let message = "a bug in Akunu: this embedder broke down, and answers no more; free it and load it again";
    Failure::new(Status::Internal, message)
}

impl Loaded {
    fn open(model: Arc<Model>, options: EmbedOptions, settings: &EmbedSettings) -> Result<Loaded, Failure> {
        let (tasks, queue) = channel::<Task>();
        let (tell, told) = channel();
        let on_thread = model.clone();
        let serve = move || match Embedder::new(on_thread, &options) {
            Err(error) => drop(tell.send(Err(Failure::from(error)))),
            Ok(mut embedder) => {
                let _ = tell.send(Ok((embedder.width(), embedder.longest())));
                drop(tell);
                queue.iter().for_each(|task| task(&mut embedder));
            }
        };
        let thread = std::thread::Builder::new().name("akunu-embedder".into()).spawn(serve);
        let thread = thread.map_err(|error| {
            Failure::new(Status::Memory, format!("no thread for the embedder could be started: {error}"))
        })?;
        let (width, longest) = told.recv().unwrap_or_else(|_| Err(broken()))?;
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
        let (tell, told) = channel();
        let task: Task = Box::new(move |embedder| {
            // The caller waits for it.
            let _ = tell.send(embedder.encode(&texts));
        });
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        tasks.ok_or_else(freed)?.send(task).map_err(|_| broken())?;
        let mut vectors = told.recv().map_err(|_| broken())??;
        if !self.keeps_length {
            vectors.iter_mut().for_each(|vector| normalise(vector));
        }
        Ok(vectors.concat())
    }

    /// Has the thread end after the tasks that it has.
    fn close(&self) {
        drop(self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A thread that broke has told its callers.
        let _ = thread.map(JoinHandle::join);
    }
}

/// # Safety
/// The device's name is null or a text.
unsafe fn embed_options(settings: &EmbedSettings) -> Result<EmbedOptions, Failure> {
    let wanted = |value: u32| (value > 0).then_some(value as usize);
    // SAFETY: as this function's.
    let device = unsafe { wanted_text(settings.device, "the device") }?;
    let pooling = match settings.pooling {
        p if p == Pooling::Model as u32 => None,
        p if p == Pooling::Mean as u32 => Some(akunu::Pooling::Mean),
        p if p == Pooling::Cls as u32 => Some(akunu::Pooling::First),
        p if p == Pooling::Last as u32 => Some(akunu::Pooling::Last),
        other => {
            return Err(Failure::argument(format!("the pooling {other} is none: take an akunu_pooling")));
        }
    };
    Ok(EmbedOptions {
        device: device.map_or(Ok(DeviceChoice::Auto), DeviceChoice::from_str)?,
        threads: wanted(settings.threads),
        backends: crate::environment::backends(),
        task: EmbedTask::Vectors(pooling),
        longest: wanted(settings.context),
        ..EmbedOptions::default()
    })
}

/// Loads a model that makes vectors of texts: an encoder, a model whose files name a pooling, or any other with a
/// pooling in the options. A null `path` loads the small story-teller that comes with the library. Null `options`
/// are the usual ones. Free it with akunu_free_embedder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_load_embedder(
    path: *const c_char,
    options: *const EmbedSettings,
    embedder: *mut *mut EmbedderHandle,
) -> Status {
    guard(|| {
        check_pointer(embedder, "the place for the embedder")?;
        // SAFETY: null or a text.
        let path = unsafe { wanted_text(path, "the path") }?.map(Path::new);
        // SAFETY: null or as large as it says.
        let settings = unsafe { read_options(options) }?;
        // SAFETY: the device's name is null or a text.
        let options = unsafe { embed_options(&settings) }?;
        let model = Arc::new(path.map_or_else(Model::embedded, Model::open)?);
        let loaded = Arc::new(Loaded::open(model, options, &settings)?);
        // SAFETY: checked above.
        unsafe { write(embedder, EMBEDDERS.add(number(), loaded), "the place for the embedder") }
    })
}

/// Frees an embedder. A call that another thread has under way is waited for. Null is nothing to free.
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

/// How many numbers a vector has to `width`, and the tokens of the longest text to `longest`, either of which may
/// be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_embedding_width(
    embedder: *const EmbedderHandle,
    width: *mut u32,
    longest: *mut u32,
) -> Status {
    guard(|| {
        let loaded = EMBEDDERS.get(embedder)?;
        // SAFETY: null or room for a number.
        unsafe { crate::arguments::write_wanted(width, small(loaded.width), "the width") }?;
        // SAFETY: null or room for a number.
        unsafe { crate::arguments::write_wanted(longest, small(loaded.longest), "the longest") }
    })
}

/// The vectors of `count` UTF-8 texts, each up to its null character: one after the other, `width` numbers each, of
/// length 1 unless the options keep theirs. None of the texts may be empty. Texts share passes, and each gets the
/// vector that it gets alone.
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
        let room = Room { buffer: vectors, capacity, length };
        // SAFETY: `texts` has `count` pointers.
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
        unsafe { fill(&loaded, texts, room) }
    })
}

/// The vectors of `count` texts as token ids, as the model is to see them: `ids` has those of all texts, one after
/// the other, and `lengths` how many each has. Else as akunu_embed.
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
        let room = Room { buffer: vectors, capacity, length };
        // SAFETY: `lengths` has `count` numbers.
        let lengths = unsafe { items(lengths, count, "the lengths") }?;
        let sum = lengths.iter().try_fold(0usize, |sum, length| sum.checked_add(*length));
        let sum = sum.ok_or_else(|| Failure::argument("the lengths are more than memory can hold"))?;
        // SAFETY: `ids` has as many numbers as the lengths say.
        let mut rest = unsafe { items(ids, sum, "the ids") }?;
        let take = |length: &usize| {
            let (text, others) = rest.split_at(*length);
            rest = others;
            TextIds::from(text.to_vec())
        };
        let texts = lengths.iter().map(take).collect();
        // SAFETY: the buffer has the capacity.
        unsafe { fill(&loaded, texts, room) }
    })
}

/// Encodes, unless only the length is asked for or the buffer is too small.
///
/// # Safety
/// The buffer has the capacity, and the length is null or has room for one.
unsafe fn fill(loaded: &Loaded, texts: Vec<TextIds>, room: Room<f32>) -> Result<(), Failure> {
    check_not_in_callback()?;
    let only_length = room.check()?;
    let needed = texts.len().saturating_mul(loaded.width);
    if only_length || needed > room.capacity {
        // SAFETY: as this function's; nothing is written where it does not fit.
        return unsafe { room.fill_nothing(needed) };
    }
    let vectors = loaded.encode(texts)?;
    // SAFETY: as this function's.
    unsafe { room.fill(&vectors) }
}
