//! HTTP requests: redirects that do not forward the token, retries, and the meaning of status codes for each request.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use ureq::http::{HeaderMap, Response, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::date;
use crate::hub::Observer;
use crate::reference::Repo;
use crate::settings::{RetryPolicy, Settings, Token};
use crate::{Error, Result};

const MAX_REDIRECTS: usize = 10;
/// Maximum size in bytes of a response that is not a file.
const MAX_JSON: u64 = 64 << 20;
/// Attempts if the host does not respond at all.
const UNANSWERED_ATTEMPTS: u32 = 3;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The resource that a request is for, which determines the meaning of a status code.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Resource<'a> {
    Revision { repo: &'a Repo, revision: &'a str },
    Listing { repo: &'a Repo },
    File { repo: &'a Repo, file: &'a str },
}

impl Resource<'_> {
    fn repo(&self) -> &Repo {
        match self {
            Resource::Revision { repo, .. } | Resource::Listing { repo } | Resource::File { repo, .. } => {
                repo
            }
        }
    }

    fn what(&self) -> String {
        match self {
            Resource::Revision { repo, revision } => format!("revision {revision} of {repo}"),
            Resource::Listing { repo } => format!("the listing of {repo}"),
            Resource::File { repo, file } => format!("{file} of {repo}"),
        }
    }
}

/// An error, and whether a retry may help.
#[derive(Debug)]
pub(crate) struct RequestError {
    error: Box<Error>,
    retry: Retry,
}

impl RequestError {
    pub fn new(error: Error, retry: Retry) -> RequestError {
        RequestError { error: Box::new(error), retry }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    Never,
    /// The host did not respond.
    Unanswered,
    /// Retry after this time, if the hub states one.
    Later(Option<Duration>),
}

impl From<Error> for RequestError {
    fn from(error: Error) -> RequestError {
        RequestError::new(error, Retry::Never)
    }
}

/// Counts consecutive attempts without any received data.
#[derive(Debug, Default)]
pub(crate) struct Attempts(u32);

impl Attempts {
    pub fn reset(&mut self) {
        self.0 = 0;
    }
}

#[derive(Debug)]
pub(crate) struct Http {
    agent: Agent,
    endpoint: Uri,
    endpoint_text: String,
    token: Option<Token>,
    retry_policy: RetryPolicy,
    cancel: Arc<AtomicBool>,
    no_roots: bool,
}

impl Http {
    pub fn new(settings: &Settings, cancel: Arc<AtomicBool>) -> Result<Http> {
        let endpoint: Uri = settings.endpoint.parse().map_err(|_| Error::Setting {
            variable: "HF_ENDPOINT",
            value: settings.endpoint.clone(),
            reason: "not a URL",
        })?;
        let retry_policy = settings.retry_policy;
        let roots: Vec<Certificate<'static>> = rustls_native_certs::load_native_certs()
            .certs
            .iter()
            .map(|c| Certificate::from_der(c.as_ref()).to_owned())
            .collect();
        let no_roots = roots.is_empty();
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(roots)))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("akunu/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(retry_policy.connect))
            .timeout_resolve(Some(retry_policy.connect))
            .timeout_per_read(Some(retry_policy.idle))
            .timeout_per_write(Some(retry_policy.idle))
            .timeout_recv_response(Some(retry_policy.idle))
            .tls_config(tls);
        if endpoint.host().is_some_and(is_loopback) {
            config = config.proxy(None);
        } else if let Some(proxy) = &settings.proxy {
            proxy.check()?;
        }
        Ok(Http {
            agent: config.build().new_agent(),
            endpoint_text: settings.endpoint.clone(),
            endpoint,
            token: settings.token.clone(),
            retry_policy,
            cancel,
            no_roots,
        })
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoint_text
    }

    pub fn host(&self) -> String {
        host(&self.endpoint)
    }

    /// Called from another thread when the cancel flag is set, to interrupt blocking reads.
    pub fn agent(&self) -> Agent {
        self.agent.clone()
    }

    pub fn check(&self) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// A JSON response and its headers; retries if that may help.
    pub fn json<T: DeserializeOwned>(
        &self,
        url: &str,
        resource: Resource<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(T, HeaderMap)> {
        let mut attempts = Attempts::default();
        loop {
            match self.json_once(url, resource) {
                Ok(done) => return Ok(done),
                Err(failure) => self.wait(failure, &mut attempts, observer)?,
            }
        }
    }

    fn json_once<T: DeserializeOwned>(
        &self,
        url: &str,
        resource: Resource<'_>,
    ) -> Result<(T, HeaderMap), RequestError> {
        let response = self.get(url, None, resource)?;
        let (parts, body) = response.into_parts();
        let mut bytes = Vec::new();
        let read = body.into_reader().take(MAX_JSON + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.transport(&self.endpoint, &ureq::Error::from(error)))?;
        let value = if bytes.len() as u64 > MAX_JSON {
            Err("it is too large".to_string())
        } else {
            serde_json::from_slice(&bytes).map_err(|error| error.to_string())
        };
        let value = value.map_err(|reason| Error::Protocol {
            host: self.host(),
            reason: format!("{} is not as expected ({reason})", resource.what()),
        })?;
        Ok((value, parts.headers))
    }

    /// One attempt; redirects are followed. With `from`, requests the bytes from there on, and returns a status of 416
    /// to the caller.
    pub fn get(
        &self,
        url: &str,
        from: Option<u64>,
        resource: Resource<'_>,
    ) -> Result<Response<Body>, RequestError> {
        let mut url = url.to_string();
        for _ in 0..=MAX_REDIRECTS {
            self.check()?;
            let uri: Uri =
                url.parse().map_err(|_| self.redirect(format!("to {url:?}, which is not a URL")))?;
            let mut request = self.agent.get(&uri).header("accept-encoding", "identity");
            if let Some(from) = from {
                request = request.header("range", format!("bytes={from}-"));
            }
            if let Some(token) = self.token.as_ref().filter(|_| same_place(&uri, &self.endpoint)) {
                request = request.header("authorization", token.bearer());
            }
            let response = request.call().map_err(|error| self.transport(&uri, &error))?;
            match response.status().as_u16() {
                301 | 302 | 303 | 307 | 308 => {
                    let place = header(response.headers(), "location");
                    let place = place.ok_or_else(|| self.redirect("without a location".to_string()))?;
                    url = join(&uri, place)
                        .ok_or_else(|| self.redirect(format!("to {place:?}, which is not a URL")))?;
                    if uri.scheme_str() == Some("https") && !url.starts_with("https:") {
                        return Err(self.redirect(format!("to {url}, which is not encrypted")).into());
                    }
                }
                200 | 206 => return Ok(response),
                416 if from.is_some() => return Ok(response),
                status => return Err(self.refusal(status, response.headers(), &uri, resource)),
            }
        }
        Err(self.redirect(format!("more than {MAX_REDIRECTS} times")).into())
    }

    /// Waits before the next attempt, or returns the error.
    pub fn wait(
        &self,
        failure: RequestError,
        attempts: &mut Attempts,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        self.check()?;
        attempts.0 += 1;
        let backoff = self.retry_policy.backoff * 2u32.saturating_pow(attempts.0 - 1);
        let (most, wait) = match failure.retry {
            Retry::Never => (0, Duration::ZERO),
            Retry::Unanswered => (self.retry_policy.attempts.min(UNANSWERED_ATTEMPTS), backoff),
            Retry::Later(wait) => (self.retry_policy.attempts, wait.unwrap_or(backoff)),
        };
        if attempts.0 >= most || wait > self.retry_policy.max_retry_after {
            return Err(*failure.error);
        }
        if wait >= Duration::from_secs(1) {
            observer.note(&format!("{}; trying again in {} s", headline(&failure.error), wait.as_secs()));
        }
        let until = Instant::now() + wait;
        while Instant::now() < until {
            self.check()?;
            std::thread::sleep(POLL_INTERVAL.min(until.saturating_duration_since(Instant::now())));
        }
        self.check()
    }

    fn redirect(&self, reason: String) -> Error {
        Error::Redirect { host: self.host(), reason }
    }

    pub fn transport(&self, uri: &Uri, error: &ureq::Error) -> RequestError {
        if let Err(error) = self.check() {
            return error.into();
        }
        let mut reason = match error {
            ureq::Error::HostNotFound => "host not found, or no network".to_string(),
            ureq::Error::Timeout(_) => "timeout".to_string(),
            ureq::Error::Io(error) => error.to_string(),
            other => other.to_string(),
        };
        let tls =
            reason.contains("certificate") || matches!(error, ureq::Error::Rustls(_) | ureq::Error::Tls(_));
        if tls && self.no_roots {
            reason.push_str(" (no root certificates were found: set SSL_CERT_FILE)");
        }
        let retry = if tls || matches!(error, ureq::Error::BadUri(_) | ureq::Error::InvalidProxyUrl) {
            Retry::Never
        } else {
            Retry::Unanswered
        };
        let proxy = self.agent.config().proxy().filter(|proxy| !proxy.is_no_proxy(uri));
        let proxy = proxy.map(|proxy| format!("{}:{}", proxy.host(), proxy.port()));
        RequestError::new(Error::Unreachable { host: host(uri), proxy, reason }, retry)
    }

    fn refusal(&self, status: u16, headers: &HeaderMap, uri: &Uri, resource: Resource<'_>) -> RequestError {
        let repo = || resource.repo().clone();
        let token = self.token.is_some();
        let code = header(headers, "x-error-code").unwrap_or_default();
        let wait = retry_after(headers);
        let later = Retry::Later(wait.map(Duration::from_secs));
        let page = format!("{}/{}", self.endpoint_text, resource.repo());
        let (error, retry) = match (status, code, resource) {
            (401 | 403, "GatedRepo", _) => (Error::Gated { repo: repo(), page, token }, Retry::Never),
            // The storage host that the hub redirects to does not receive the token.
            (401 | 403, _, _) if !same_place(uri, &self.endpoint) => {
                (Error::Server { host: host(uri), status, what: resource.what() }, Retry::Never)
            }
            (401, _, _) => (Error::Unauthorized { repo: repo(), token }, Retry::Never),
            (403, _, _) => (Error::Forbidden { repo: repo() }, Retry::Never),
            (404, "RepoNotFound", _) => (Error::NoRepo { repo: repo() }, Retry::Never),
            (404, "RevisionNotFound", Resource::Revision { revision, .. }) => {
                (Error::NoRevision { repo: repo(), revision: revision.to_string() }, Retry::Never)
            }
            (404, _, Resource::File { file, .. }) => {
                let (file, listing) = (file.to_string(), String::new());
                (Error::NoFile { repo: repo(), file, listing }, Retry::Never)
            }
            (404, _, _) => (Error::NoRepo { repo: repo() }, Retry::Never),
            (429, _, _) => (Error::RateLimited { host: host(uri), seconds: wait }, later),
            (408 | 500 | 502 | 503 | 504, _, _) => {
                (Error::Server { host: host(uri), status, what: resource.what() }, later)
            }
            _ => (Error::Server { host: host(uri), status, what: resource.what() }, Retry::Never),
        };
        RequestError::new(error, retry)
    }
}

/// An error text without its remedy and its listing.
pub(crate) fn headline(error: &Error) -> String {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    first.rsplit_once("; ").map_or(first, |(error, _)| error).to_string()
}

pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The `Retry-After` of a response in seconds, from a number or a date. A date is relative to the server's clock, if
/// the response states it. `None` if the time has passed: then the default pauses are used.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<u64> {
    let text = header(headers, "retry-after")?.trim();
    let seconds = text.parse().ok().or_else(|| {
        let here = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        let there = header(headers, "date").and_then(|text| date::seconds(text, here));
        Some(date::seconds(text, here)?.saturating_sub(there.unwrap_or(here)))
    });
    seconds.filter(|&seconds| seconds > 0)
}

fn host(uri: &Uri) -> String {
    match (uri.host(), uri.port_u16()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(host), None) => host.to_string(),
        (None, _) => uri.to_string(),
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host == "[::1]" || host.starts_with("127.")
}

/// Whether scheme, host and port are equal: the token is sent only then.
fn same_place(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    a.scheme_str() == b.scheme_str() && host(a) == host(b) && host(a).is_some() && port(a) == port(b)
}

/// Resolves a `Location` or `Link` relative to a URL.
pub(crate) fn join(base: &Uri, place: &str) -> Option<String> {
    if place.starts_with("http://") || place.starts_with("https://") {
        return Some(place.to_string());
    }
    let scheme = base.scheme_str()?;
    if place.starts_with("//") {
        return Some(format!("{scheme}:{place}"));
    }
    let root = format!("{scheme}://{}", base.authority()?);
    if place.starts_with('/') {
        return Some(format!("{root}{place}"));
    }
    let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
    (!place.is_empty() && !place.contains(':')).then(|| format!("{root}{folder}/{place}"))
}

/// Percent-encodes a path for a URL; slashes are kept.
pub(crate) fn encode(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                text.push(char::from(byte))
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn the_token_stays_with_its_host() {
        let hub = uri("https://hub.example/prefix");
        for same in ["https://hub.example/x", "https://HUB.example:443/"] {
            assert!(same_place(&uri(same), &hub), "{same}");
        }
        for other in [
            "http://hub.example/",
            "https://hub.example:444/",
            "https://cdn.hub.example/",
            "https://hub.example@evil.example/",
            "https://hub.example.evil.example/",
        ] {
            assert!(!same_place(&uri(other), &hub), "{other}");
        }
    }

    #[test]
    fn redirects_are_resolved() {
        let base = uri("https://hub.example:8443/a/b/c?d");
        for (place, expected) in [
            ("https://x.example/y", Some("https://x.example/y")),
            ("/y?z", Some("https://hub.example:8443/y?z")),
            ("//x.example/y", Some("https://x.example/y")),
            ("y", Some("https://hub.example:8443/a/b/y")),
            ("file:///etc/passwd", None),
            ("", None),
        ] {
            assert_eq!(join(&base, place).as_deref(), expected, "{place}");
        }
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(encode("a b/ä#?%.gguf"), "a%20b/%C3%A4%23%3F%25.gguf");
    }
}
