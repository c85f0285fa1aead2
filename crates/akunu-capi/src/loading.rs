//! Loading on a thread of its own, which then keeps what it has loaded: a device may be used from one thread only. The
//! calling thread waits, and runs the progress callback.

use std::ffi::c_void;
use std::ops::ControlFlow;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use akunu::{DeviceError, Error, OnLoad};

use crate::boundary::{Failure, Status, in_callback};
use crate::generate::flow;
use crate::structs::OnProgress;

/// The callback for the progress of loading, on the calling thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watcher {
    pub(crate) on_progress: OnProgress,
    pub(crate) user: *mut c_void,
}

impl Watcher {
    fn report(&self, done: u64, total: u64) -> ControlFlow<()> {
        match self.on_progress {
            None => ControlFlow::Continue(()),
            // SAFETY: the caller's function, called as it is declared.
            Some(on_progress) => flow(in_callback(|| unsafe { on_progress(done, total, self.user) })),
        }
    }

    /// Called before files are read.
    pub(crate) fn begin(&self) -> Result<(), Failure> {
        match self.report(0, 0) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::from(DeviceError::Cancelled).into()),
        }
    }
}

/// What the new thread does after it has loaded.
pub(crate) type Serve = Box<dyn FnOnce()>;

enum Event<T> {
    Progress(u64, u64),
    Loaded(Result<T, Failure>),
}

/// Starts a thread that loads something. Returns what `load` says about it; the thread goes on with the other result.
pub(crate) fn load_on_thread<T: Send + 'static>(
    name: &str,
    watcher: &Watcher,
    load: impl FnOnce(OnLoad<'_>) -> Result<(T, Serve), Failure> + Send + 'static,
    broken: impl Fn() -> Failure,
) -> Result<(JoinHandle<()>, T), Failure> {
    let (sender, receiver) = channel();
    let (flow_sender, flows) = channel();
    let is_watched = watcher.on_progress.is_some();
    let body = move || {
        let on_load = &mut |done, total| match is_watched {
            false => ControlFlow::Continue(()),
            true => match sender.send(Event::Progress(done, total)) {
                Ok(()) => flows.recv().unwrap_or(ControlFlow::Break(())),
                Err(_) => ControlFlow::Break(()),
            },
        };
        // The receiver waits below.
        match load(on_load) {
            Err(failure) => drop(sender.send(Event::Loaded(Err(failure)))),
            Ok((loaded, serve)) => {
                let _ = sender.send(Event::Loaded(Ok(loaded)));
                drop(sender);
                serve();
            }
        }
    };
    let thread = std::thread::Builder::new().name(name.into()).spawn(body).map_err(|error| {
        Failure::new(Status::Memory, format!("the thread {name} could not be started: {error}"))
    })?;
    loop {
        match receiver.recv() {
            Ok(Event::Progress(done, total)) => {
                let _ = flow_sender.send(watcher.report(done, total));
            }
            Ok(Event::Loaded(loaded)) => return Ok((thread, loaded?)),
            Err(_) => return Err(broken()),
        }
    }
}
