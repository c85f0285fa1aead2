//! Models named `hf:OWNER/NAME[@REVISION][:FILE or QUANT]`: a path in the cache, downloaded where it is not there yet.

use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use akunu::Model;
use akunu_arch::Source;
use akunu_hub::{Cache, Error, Hub, Pulled, Reference, Settings, Watch};

use crate::environment;
use crate::failure::Failure;
use crate::interrupt;
use crate::output;
use crate::progress::Progress;

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

/// Whether an argument is meant as a model of the hub, well-formed or not.
pub fn is_meant(path: &Path) -> bool {
    path.to_str().is_some_and(Reference::is_meant)
}

/// The path of a model, wherever it is named.
pub fn resolve(model: &Path) -> Result<Cow<'_, Path>, Failure> {
    if !is_meant(model) {
        return Ok(Cow::Borrowed(model));
    }
    let reference: Reference = model.to_string_lossy().parse()?;
    Ok(Cow::Owned(pull(&reference)?.path))
}

/// OWNER/NAME for what the cache has as SafeTensors: its folder is called after a commit, and its files as any model's are.
/// A GGUF file's own name says more.
pub fn name(path: &Path, model: &Model) -> Option<String> {
    let repo = Cache::repo_of(path).filter(|_| model.config().source == Source::HuggingFace);
    repo.map(|repo| repo.to_string())
}

/// Sees to it that a model is in the cache, with a bar. Ctrl-C keeps what has arrived.
pub fn pull(reference: &Reference) -> Result<Pulled, Failure> {
    let listening = interrupt::listen();
    let hub = Hub::new(settings()?).with_cancel(listening.flag());
    let mut bar = Bar::default();
    let outcome = hub.pull(reference, &mut bar);
    drop(bar);
    match outcome {
        Err(Error::Interrupted) => {
            output::note("stopped; what has arrived is kept, and the next download goes on from there");
            Err(Failure::Interrupted)
        }
        outcome => Ok(outcome?),
    }
}

#[derive(Debug, Default)]
struct Bar(Option<Progress>);

impl Watch for Bar {
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
