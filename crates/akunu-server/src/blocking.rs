//! Work on blocking threads, and what ends with the request that it was begun for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinHandle;

use crate::refusal::Refusal;

/// Runs blocking work on a blocking thread. Work that nobody waits for any more is not begun, and the texts that it
/// encodes end early.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    let hung_up = CancelOnDrop::default();
    let flag = hung_up.flag();
    let work = move || akunu_tokenizer::cancellable(&flag, work);
    Attached::new(tokio::task::spawn_blocking(work)).finished().await
}

/// A flag that is set when this is dropped, as when a client hangs up.
#[derive(Debug, Default)]
pub(crate) struct CancelOnDrop(Arc<AtomicBool>);

impl CancelOnDrop {
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    pub(crate) fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// A task that is aborted when this is dropped, as when a client hangs up.
#[derive(Debug)]
pub(crate) struct Attached<T>(JoinHandle<T>);

impl<T> Attached<T> {
    pub(crate) fn new(task: JoinHandle<T>) -> Attached<T> {
        Attached(task)
    }

    /// The result of the task. A panic is an error of the request.
    pub(crate) async fn finished(mut self) -> Result<T, Refusal> {
        let result = (&mut self.0).await;
        result.map_err(|_| Refusal::internal("internal error: a bug in Akunu"))
    }
}

impl<T> Drop for Attached<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
