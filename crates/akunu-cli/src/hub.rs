//! Models named `hf:OWNER/NAME[@REVISION][:FILE or QUANT]` or by a short name: resolved to a path in the cache, and downloaded if
//! necessary.

use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use akunu::Model;
use akunu_arch::Source;
use akunu_hub::{Cache, Error, Hub, Known, Observer, Pulled, Reference, Settings};

use crate::environment;
use crate::failure::Failure;
use crate::interrupt;
use crate::output;
use crate::progress::Progress;
use crate::prompt;

/// `--offline`, for every command that opens a model.
static OFFLINE: AtomicBool = AtomicBool::new(false);

pub fn set_offline(offline: bool) {
    OFFLINE.store(offline, Ordering::Relaxed);
}

pub fn settings() -> Result<Settings, Failure> {
    let mut settings = environment::hub()?;
    settings.offline |= OFFLINE.load(Ordering::Relaxed);
    Ok(settings)
}

/// Maximum number of names in a hint.
const NAMES: usize = 8;

/// Whether an argument is intended as a hub model, well-formed or not. A file comes before a short name.
pub fn is_reference(path: &Path) -> bool {
    path.to_str().is_some_and(|text| {
        Reference::is_reference(text) && (text.starts_with(akunu_hub::PREFIX) || !path.exists())
    })
}

/// A hint with the short names that a text may mean; `None` if it does not look like one.
pub fn near_names(text: &str) -> Option<String> {
    let near = Known::near(text);
    if near.is_empty() {
        return None;
    }
    let names: Vec<&str> = near.iter().map(|known| known.name).take(NAMES).collect();
    Some(format!("similar short names are {} (akunu models --known lists all)", names.join(", ")))
}

/// A reference by a short name or `hf:OWNER/NAME`.
pub fn reference(text: &str) -> Result<Reference, Failure> {
    Reference::named(text).map_err(|error| match near_names(text) {
        Some(hint) => Failure::usage(format!("there is no model named {text}")).hint(hint),
        None if text.contains('/') && looks_like_a_name(text) => {
            Failure::usage(format!("there is no model named {text}"))
                .hint(format!("a model on the Hugging Face hub is named hf:{text}"))
        }
        None => error.into(),
    })
}

/// Names of the models in the cache, `hf:OWNER/NAME`.
pub fn cached_names() -> Vec<String> {
    let repos = settings().ok().and_then(|settings| Cache::new(settings.cache).list().ok());
    let repos = repos.unwrap_or_default();
    let complete = repos.iter().filter(|repo| !repo.revisions.is_empty());
    complete.map(|repo| format!("hf:{}", repo.repo)).collect()
}

/// Whether a text may be OWNER/NAME without the prefix.
pub fn looks_like_a_name(text: &str) -> bool {
    format!("hf:{text}").parse::<Reference>().is_ok()
        && !text.starts_with('.')
        && !prompt::looks_like_a_model(Path::new(text))
}

/// The path of a model, local or on the hub.
pub fn resolve(model: &Path) -> Result<Cow<'_, Path>, Failure> {
    if !is_reference(model) {
        return Ok(Cow::Borrowed(model));
    }
    Ok(Cow::Owned(pull(&reference(&model.to_string_lossy())?)?.path))
}

/// OWNER/NAME for a cached SafeTensors model, whose folder is named after a commit. A GGUF file's own name is more
/// specific.
pub fn name(path: &Path, model: &Model) -> Option<String> {
    let repo = Cache::repo_of(path).filter(|_| model.config().source == Source::HuggingFace);
    repo.map(|repo| repo.to_string())
}

/// Downloads a model with a progress bar, unless it is cached. After Ctrl-C, received data is kept.
pub fn pull(reference: &Reference) -> Result<Pulled, Failure> {
    let listening = interrupt::listen();
    let hub = Hub::new(settings()?).with_cancel(listening.flag());
    let mut bar = Bar::default();
    let outcome = hub.pull(reference, &mut bar);
    drop(bar);
    match outcome {
        Err(Error::Interrupted) => {
            output::note("stopped; received data is kept, and the next download resumes");
            Err(Failure::Interrupted)
        }
        Err(error @ Error::Offline { .. }) => {
            let cached = cached_names();
            let failure = Failure::from(error);
            match cached.is_empty() {
                true => Err(failure),
                false => {
                    let names = &cached[..cached.len().min(NAMES)];
                    Err(failure.hint(format!("models in the cache: {}", names.join(", "))))
                }
            }
        }
        outcome => Ok(outcome?),
    }
}

#[derive(Debug, Default)]
struct Bar(Option<Progress>);

impl Observer for Bar {
    fn begin(&mut self, total: u64) {
        self.0 = Some(Progress::bytes("downloading", total));
    }

    fn progress(&mut self, done: u64) {
        if let Some(bar) = &mut self.0 {
            bar.set(done);
        }
    }

    fn note(&mut self, text: &str) {
        let line = format!("note: {text}");
        match &self.0 {
            Some(bar) => bar.note(&line),
            None => output::note(&line),
        }
    }
}
