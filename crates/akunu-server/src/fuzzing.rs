//! The server without sockets, and what peers of the events' sockets send. Only for the fuzz targets `http` and `zmtp`,
//! with `--cfg fuzzing`.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::runtime::{Builder, Runtime};

pub use crate::kv_events::fuzzing::messages;

use crate::app::App;
use crate::{Options, ServeError};

/// All routes and layers of a server, called in this process.
#[derive(Debug)]
pub struct InProcess {
    router: Router,
    runtime: Runtime,
}

impl InProcess {
    pub fn new(options: Options) -> Result<InProcess, ServeError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(ServeError::Threads)?;
        let router = App::new(options, None, true, runtime.handle().clone()).router();
        Ok(InProcess { router, runtime })
    }

    /// Posts a body of a type. Returns the status and the whole response, or `None` if the response was aborted.
    pub fn post(&self, path: &str, kind: &str, body: &[u8]) -> Option<(u16, Vec<u8>)> {
        let request = Request::post(path)
            .header("host", "localhost")
            .header("content-type", kind)
            .body(Body::from(body.to_vec()))
            .ok()?;
        self.runtime.block_on(async {
            let response = TowerToHyperService::new(self.router.clone()).call(request).await.ok()?;
            let status = response.status().as_u16();
            Some((status, to_bytes(response.into_body(), usize::MAX).await.ok()?.to_vec()))
        })
    }
}
