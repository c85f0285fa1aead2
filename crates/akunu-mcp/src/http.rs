//! Servers over HTTP: a request is posted, and answered by a message or by a stream of events.

use std::io::{BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value as Json;
use ureq::http::{Response, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::error::Reason;
use crate::inbox::{self, Incoming, MAX_MESSAGE, Outlet};

const SESSION: &str = "mcp-session-id";
/// How long the end of a session may take.
const END: Duration = Duration::from_secs(2);

/// Requests run on threads of their own, so that the caller can stop waiting.
#[derive(Debug)]
pub struct Http {
    link: Arc<Link>,
    outlet: Outlet,
    timeout: Duration,
}

#[derive(Debug)]
struct Link {
    agent: Agent,
    url: String,
    headers: Vec<(String, String)>,
    /// What the server calls the session, and the version of the protocol.
    session: Mutex<(Option<String>, Option<String>)>,
}

impl Http {
    pub fn new(
        url: &str,
        headers: &[(String, String)],
        outlet: Outlet,
        timeout: Duration,
    ) -> Result<Http, Reason> {
        let uri: Uri = url.parse().map_err(|_| Reason::Unreachable(format!("{url:?} is not a URL")))?;
        let roots = rustls_native_certs::load_native_certs().certs;
        let roots = roots.iter().map(|root| Certificate::from_der(root.as_ref()).to_owned());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(roots.collect())))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        // Redirects are not followed: headers may have secrets.
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("akunu/", env!("CARGO_PKG_VERSION")))
            .timeout_global(Some(timeout))
            .tls_config(tls);
        if matches!(uri.host(), Some("localhost" | "127.0.0.1" | "[::1]")) {
            config = config.proxy(None);
        }
        let agent = config.build().new_agent();
        let link = Link { agent, url: url.to_string(), headers: headers.to_vec(), session: Mutex::default() };
        Ok(Http { link: Arc::new(link), outlet, timeout })
    }

    /// The version that later requests name.
    pub fn set_version(&self, version: &str) {
        self.link.session.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(version.to_string());
    }

    pub fn send(&self, message: &Json) {
        let (link, outlet, body) = (self.link.clone(), self.outlet.clone(), message.to_string());
        let request = message["id"].as_u64().filter(|_| message.get("method").is_some());
        let seconds = self.timeout.as_secs();
        let method = message["method"].as_str().unwrap_or_default().to_string();
        thread::spawn(move || {
            let send = |message| outlet.send(Incoming { request, message }).is_ok();
            if let Err(reason) = link.post(&body, request.is_some(), send) {
                let reason = match reason {
                    Reason::Timeout { .. } => Reason::Timeout { method, seconds },
                    other => other,
                };
                let _ = outlet.send(Incoming { request, message: Err(reason) });
            }
        });
    }
}

/// Ends the session, if the server has one.
impl Drop for Http {
    fn drop(&mut self) {
        let session = self.link.session.lock().unwrap_or_else(PoisonError::into_inner).0.clone();
        if let Some(session) = session {
            let mut request = self.link.agent.delete(&self.link.url).header(SESSION, session);
            for (name, value) in &self.link.headers {
                request = request.header(name, value);
            }
            let _ = request.config().timeout_global(Some(END)).build().call();
        }
    }
}

impl Link {
    fn post(
        &self,
        body: &str,
        wants_answer: bool,
        mut send: impl FnMut(Result<Json, Reason>) -> bool,
    ) -> Result<(), Reason> {
        let mut request = self.agent.post(&self.url);
        request = request.header("content-type", "application/json");
        request = request.header("accept", "application/json, text/event-stream");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        {
            let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(id) = &session.0 {
                request = request.header(SESSION, id);
            }
            if let Some(version) = &session.1 {
                request = request.header("mcp-protocol-version", version);
            }
        }
        let response = request.send(body).map_err(|error| unreachable(&error))?;
        let status = response.status().as_u16();
        if !(200..300).contains(&status) {
            let mut text = String::new();
            let _ = response.into_body().into_reader().take(500).read_to_string(&mut text);
            return Err(Reason::Status { status, text });
        }
        if let Some(id) = header(&response, SESSION) {
            self.session.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(id);
        }
        if !wants_answer {
            return Ok(());
        }
        let kind = header(&response, "content-type").unwrap_or_default();
        let mut body = BufReader::new(response.into_body().into_reader());
        match kind.split(';').next().unwrap_or_default().trim() {
            "application/json" => {
                let mut text = String::new();
                let read = body.take(MAX_MESSAGE + 1).read_to_string(&mut text);
                read.map_err(broken)?;
                if text.len() as u64 > MAX_MESSAGE {
                    return Err(Reason::Protocol(format!("a message is longer than {MAX_MESSAGE} bytes")));
                }
                send(inbox::message(&text));
                Ok(())
            }
            "text/event-stream" => events(&mut body, send),
            other => Err(Reason::Protocol(format!("its answer has the type {other:?}"))),
        }
    }
}

/// Sends the data of each event until the stream ends, or they are not taken.
fn events(
    body: &mut BufReader<impl Read>,
    mut send: impl FnMut(Result<Json, Reason>) -> bool,
) -> Result<(), Reason> {
    let mut data = String::new();
    while let Some(line) = inbox::line(body)? {
        if let Some(more) = line.strip_prefix("data:") {
            if !data.is_empty() {
                data.push('\n');
            }
            data.push_str(more.strip_prefix(' ').unwrap_or(more));
            if data.len() as u64 > MAX_MESSAGE {
                return Err(Reason::Protocol(format!("a message is longer than {MAX_MESSAGE} bytes")));
            }
        } else if line.is_empty() && !data.is_empty() && !send(inbox::message(&std::mem::take(&mut data))) {
            return Ok(());
        }
    }
    // After an answer this is not waited for.
    Err(Reason::Protocol("its stream ended without an answer".into()))
}

fn header(response: &Response<Body>, name: &str) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_string)
}

fn broken(error: std::io::Error) -> Reason {
    unreachable(&ureq::Error::from(error))
}

fn unreachable(error: &ureq::Error) -> Reason {
    match error {
        ureq::Error::Timeout(_) => Reason::Timeout { method: String::new(), seconds: 0 },
        ureq::Error::HostNotFound => Reason::Unreachable("host not found, or no network".into()),
        ureq::Error::Io(error) => Reason::Unreachable(error.to_string()),
        other => Reason::Unreachable(other.to_string()),
    }
}
