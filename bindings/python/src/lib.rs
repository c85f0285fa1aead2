//! The native module of Akunu's Python package: models with the handlers of a server, and a server with a socket.
//!
//! Python code (`akunu/`) writes requests in OpenAI's form and reads the answers. So a call here has the same
//! features, checks and batches as a request to `akunu serve`, without a socket between. Waiting is done without the
//! interpreter's lock, and looks for signals ten times a second.

// The macros of pyo3 write unsafe functions around those here.
#![allow(unsafe_code)]

mod logits;
mod options;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use akunu_server::{Local, LocalAnswer, LocalEvent, Notify, Server};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use logits::Logits;

create_exception!(_akunu, LoadError, PyException, "A model cannot be loaded, or the server not started.");

/// How often waiting looks for signals.
const SIGNALS: Duration = Duration::from_millis(100);

/// The names of the fields that requests to a path may have.
#[pyfunction]
fn field_names(path: &str) -> Vec<&'static str> {
    let routes = akunu_server::field_table::ROUTES.iter().filter(|route| route.paths.contains(&path));
    let all = routes.flat_map(|route| route.groups.iter().flat_map(|group| group.fields));
    all.map(|field| field.name.split('.').next().unwrap_or(field.name)).collect()
}

fn closed() -> PyErr {
    PyRuntimeError::new_err("the model is closed")
}

fn failed(error: impl ToString) -> PyErr {
    LoadError::new_err(error.to_string())
}

/// A model with the handlers of a server.
#[pyclass(frozen)]
struct Engine {
    local: Mutex<Option<Local>>,
    logits: Logits,
}

#[pymethods]
impl Engine {
    /// `options`: JSON, as `options.rs` reads it.
    #[new]
    fn new(py: Python<'_>, options: &str) -> PyResult<Engine> {
        let options = options::read(options).map_err(failed)?;
        py.detach(|| {
            let options = options::resolve(options)?;
            let logits = Logits::new(&options.models);
            let local = Local::start(options).map_err(|error| error.to_string())?;
            Ok::<_, String>(Engine { local: Mutex::new(Some(local)), logits })
        })
        .map_err(failed)
    }

    /// Begins a request. `notify` is called after each part of the answer, on another thread.
    #[pyo3(signature = (path, body=None, kind="application/json", notify=None))]
    fn request(
        &self,
        path: &str,
        body: Option<Vec<u8>>,
        kind: &str,
        notify: Option<Py<PyAny>>,
    ) -> PyResult<Answer> {
        let notify = notify.map(|notify| {
            let call = move || {
                Python::attach(|py| {
                    // The event loop may be closed.
                    let _ = notify.call0(py);
                });
            };
            Box::new(call) as Notify
        });
        let local = self.local.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = local.as_ref().ok_or_else(closed)?.request(path, kind, body, notify);
        Ok(Answer { answer: Mutex::new(Some(answer)) })
    }

    /// Logits after token ids, of all positions or the last: bytes of f32, and the size of the vocabulary.
    fn logits<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<u32>,
        all: bool,
    ) -> PyResult<(Bound<'py, PyBytes>, usize)> {
        let (logits, vocab) = wait(py, self.logits.begin(ids, all))?.map_err(PyRuntimeError::new_err)?;
        let bytes = PyBytes::new_with(py, logits.len() * 4, |bytes| {
            for (to, logit) in bytes.chunks_exact_mut(4).zip(&logits) {
                to.copy_from_slice(&logit.to_ne_bytes());
            }
            Ok(())
        })?;
        Ok((bytes, vocab))
    }

    /// Ends all requests and frees the model.
    fn close(&self, py: Python<'_>) {
        let local = self.local.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| {
            self.logits.close();
            drop(local);
        });
    }
}

/// Waits for a value without the interpreter's lock.
fn wait<T: Send>(py: Python<'_>, receiver: std::sync::mpsc::Receiver<T>) -> PyResult<T> {
    let receiver = Mutex::new(receiver);
    loop {
        let received =
            py.detach(|| receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SIGNALS));
        match received {
            Ok(value) => return Ok(value),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return Err(closed()),
        }
    }
}

/// An answer while it is written.
#[pyclass(frozen)]
struct Answer {
    answer: Mutex<Option<LocalAnswer>>,
}

#[pymethods]
impl Answer {
    /// The next part: the status as a number, bytes, or None at the end. With a `timeout` in seconds, False if there is
    /// none within it.
    #[pyo3(signature = (timeout=None))]
    fn next<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let limit = timeout.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 1e9)));
        loop {
            let left =
                limit.map_or(SIGNALS, |limit| limit.saturating_duration_since(Instant::now()).min(SIGNALS));
            let event = py.detach(|| {
                let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
                answer.as_ref().map_or(Some(LocalEvent::End), |answer| answer.next(left))
            });
            match event {
                Some(LocalEvent::Status(status)) => return Ok(status.into_pyobject(py)?.into_any()),
                Some(LocalEvent::Bytes(bytes)) => return Ok(PyBytes::new(py, &bytes).into_any()),
                Some(LocalEvent::End) => return Ok(py.None().into_bound(py)),
                None => {
                    py.check_signals()?;
                    if limit.is_some_and(|limit| Instant::now() >= limit) {
                        return Ok(false.into_pyobject(py)?.to_owned().into_any());
                    }
                }
            }
        }
    }

    /// Ends the request.
    fn close(&self, py: Python<'_>) {
        let answer = py.detach(|| self.answer.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(answer);
    }
}

/// A server with a socket, in this process.
#[pyclass(frozen)]
struct HttpServer {
    server: Mutex<Option<Server>>,
    #[pyo3(get)]
    address: String,
}

#[pymethods]
impl HttpServer {
    #[new]
    fn new(py: Python<'_>, options: &str) -> PyResult<HttpServer> {
        let options = options::read(options).map_err(failed)?;
        py.detach(|| {
            let server = Server::start(options::resolve(options)?).map_err(|error| error.to_string())?;
            let address = server.address().to_string();
            Ok::<_, String>(HttpServer { server: Mutex::new(Some(server)), address })
        })
        .map_err(failed)
    }

    /// Refuses new requests, and waits for those that run.
    fn stop(&self, py: Python<'_>) {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| server.map(Server::stop));
    }
}

#[pymodule]
fn _akunu(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("LoadError", module.py().get_type::<LoadError>())?;
    module.add_function(wrap_pyfunction!(field_names, module)?)?;
    module.add_class::<Engine>()?;
    module.add_class::<Answer>()?;
    module.add_class::<HttpServer>()
}
