//! Models named `hf:OWNER/NAME[@REVISION][:FILE or QUANT]`: resolved to a path in the cache, and downloaded if
//! necessary.

use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use akunu::Model;
use akunu_arch::Source;
use akunu_hub::{Cache, Error, Hub, Observer, Pulled, Reference, Settings};

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

/// Whether an argument is intended as a hub model, well-formed or not.
pub fn is_reference(path: &Path) -> bool {
    path.to_str().is_some_and(Reference::is_reference)
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
    let reference: Reference = model.to_string_lossy().parse()?;
    Ok(Cow::Owned(pull(&reference)?.path))
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
