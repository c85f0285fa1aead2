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
use crate::hub::Watch;
use crate::reference::Repo;
use crate::settings::{Patience, Settings, Token};
use crate::{Error, Result};

const MOST_REDIRECTS: usize = 10;
/// Maximum size in bytes of a response that is not a file.
const LONGEST_JSON: u64 = 64 << 20;
/// Attempts if the host does not respond at all.
const UNANSWERED_ATTEMPTS: u32 = 3;
const SLICE: Duration = Duration::from_millis(50);

/// The resource that a request is for, which determines the meaning of a status code.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked<'a> {
    Revision { repo: &'a Repo, revision: &'a str },
    Listing { repo: &'a Repo },
    File { repo: &'a Repo, file: &'a str },
}

impl Asked<'_> {
    fn repo(&self) -> &Repo {
        match self {
            Asked::Revision { repo, .. } | Asked::Listing { repo } | Asked::File { repo, .. } => repo,
        }
    }

    fn what(&self) -> String {
        match self {
            Asked::Revision { repo, revision } => format!("revision {revision} of {repo}"),
            Asked::Listing { repo } => format!("the listing of {repo}"),
            Asked::File { repo, file } => format!("{file} of {repo}"),
        }
    }
}

/// An error, and whether a retry may help.
#[derive(Debug)]
pub(crate) struct Trouble {
    error: Box<Error>,
    again: Again,
}

impl Trouble {
    pub fn new(error: Error, again: Again) -> Trouble {
        Trouble { error: Box::new(error), again }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    Never,
    /// The host did not respond.
    Unanswered,
    /// Retry after this time, if the hub states one.
    Later(Option<Duration>),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::new(error, Again::Never)
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
    patience: Patience,
    cancel: Arc<AtomicBool>,
    no_roots: bool,
}

impl Http {
    pub fn new(settings: &Settings, cancel: Arc<AtomicBool>) -> Result<Http> {
        let endpoint: Uri = settings.endpoint.parse().map_err(|_| Error::Setting {
            variable: "HF_ENDPOINT",
            value: settings.endpoint.clone(),
            reason: "no address",
        })?;
        let patience = settings.patience;
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
            .timeout_connect(Some(patience.connect))
            .timeout_resolve(Some(patience.connect))
            .timeout_per_read(Some(patience.idle))
            .timeout_per_write(Some(patience.idle))
            .timeout_recv_response(Some(patience.idle))
            .tls_config(tls);
        if endpoint.host().is_some_and(is_loopback) {
            config = config.proxy(None);
        }
        Ok(Http {
            agent: config.build().new_agent(),
            endpoint_text: settings.endpoint.clone(),
            endpoint,
            token: settings.token.clone(),
            patience,
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
        asked: Asked<'_>,
        watch: &mut dyn Watch,
    ) -> Result<(T, HeaderMap)> {
        let mut attempts = Attempts::default();
        loop {
            match self.json_once(url, asked) {
                Ok(done) => return Ok(done),
                Err(trouble) => self.wait(trouble, &mut attempts, watch)?,
            }
        }
    }

    fn json_once<T: DeserializeOwned>(&self, url: &str, asked: Asked<'_>) -> Result<(T, HeaderMap), Trouble> {
        let response = self.get(url, None, asked)?;
        let (parts, body) = response.into_parts();
        let mut bytes = Vec::new();
        let read = body.into_reader().take(LONGEST_JSON + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.transport(&self.endpoint, &ureq::Error::from(error)))?;
        let value = if bytes.len() as u64 > LONGEST_JSON {
            Err("it is too long".to_string())
        } else {
            serde_json::from_slice(&bytes).map_err(|error| error.to_string())
        };
        let value = value.map_err(|reason| Error::Protocol {
            host: self.host(),
            reason: format!("{} is not as expected ({reason})", asked.what()),
        })?;
        Ok((value, parts.headers))
    }

    /// One attempt; redirects are followed. With `from`, requests the bytes from there on, and returns a status of 416
    /// to the caller.
    pub fn get(&self, url: &str, from: Option<u64>, asked: Asked<'_>) -> Result<Response<Body>, Trouble> {
        let mut url = url.to_string();
        for _ in 0..=MOST_REDIRECTS {
            self.check()?;
            let uri: Uri =
                url.parse().map_err(|_| self.redirect(format!("to {url:?}, which is no address")))?;
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
                    let place = place.ok_or_else(|| self.redirect("without saying where to".to_string()))?;
                    url = join(&uri, place)
                        .ok_or_else(|| self.redirect(format!("to {place:?}, no address")))?;
                    if uri.scheme_str() == Some("https") && !url.starts_with("https:") {
                        return Err(self.redirect(format!("to {url}, which is not encrypted")).into());
                    }
                }
                200 | 206 => return Ok(response),
                416 if from.is_some() => return Ok(response),
                status => return Err(self.refusal(status, response.headers(), &uri, asked)),
            }
        }
        Err(self.redirect(format!("more than {MOST_REDIRECTS} times")).into())
    }

    /// Waits before the next attempt, or returns the error.
    pub fn wait(&self, trouble: Trouble, attempts: &mut Attempts, watch: &mut dyn Watch) -> Result<()> {
        self.check()?;
        attempts.0 += 1;
        let backoff = self.patience.backoff * 2u32.saturating_pow(attempts.0 - 1);
        let (most, wait) = match trouble.again {
            Again::Never => (0, Duration::ZERO),
            Again::Unanswered => (self.patience.attempts.min(UNANSWERED_ATTEMPTS), backoff),
            Again::Later(wait) => (self.patience.attempts, wait.unwrap_or(backoff)),
        };
        if attempts.0 >= most || wait > self.patience.longest {
            return Err(*trouble.error);
        }
        if wait >= Duration::from_secs(1) {
            watch.note(&format!("{}; trying again in {} s", headline(&trouble.error), wait.as_secs()));
        }
        let until = Instant::now() + wait;
        while Instant::now() < until {
            self.check()?;
            std::thread::sleep(SLICE.min(until.saturating_duration_since(Instant::now())));
        }
        self.check()
    }

    fn redirect(&self, reason: String) -> Error {
        Error::Redirect { host: self.host(), reason }
    }

    pub fn transport(&self, uri: &Uri, error: &ureq::Error) -> Trouble {
        if let Err(error) = self.check() {
            return error.into();
        }
        let mut reason = match error {
            ureq::Error::HostNotFound => "there is no host of that name, or no network".to_string(),
            ureq::Error::Timeout(_) => "it does not answer in time".to_string(),
            ureq::Error::Io(error) => error.to_string(),
            other => other.to_string(),
        };
        let tls =
            reason.contains("certificate") || matches!(error, ureq::Error::Rustls(_) | ureq::Error::Tls(_));
        if tls && self.no_roots {
            reason.push_str(" (this system has no root certificates: SSL_CERT_FILE may name some)");
        }
        let again = if tls || matches!(error, ureq::Error::BadUri(_) | ureq::Error::InvalidProxyUrl) {
            Again::Never
        } else {
            Again::Unanswered
        };
        Trouble::new(Error::Unreachable { host: host(uri), reason }, again)
    }

    fn refusal(&self, status: u16, headers: &HeaderMap, uri: &Uri, asked: Asked<'_>) -> Trouble {
        let repo = || asked.repo().clone();
        let token = self.token.is_some();
        let code = header(headers, "x-error-code").unwrap_or_default();
        let wait = retry_after(headers);
        let later = Again::Later(wait.map(Duration::from_secs));
        let page = format!("{}/{}", self.endpoint_text, asked.repo());
        let (error, again) = match (status, code, asked) {
            (401 | 403, "GatedRepo", _) => (Error::Gated { repo: repo(), page, token }, Again::Never),
            // The storage host that the hub redirects to does not receive the token.
            (401 | 403, _, _) if !same_place(uri, &self.endpoint) => {
                (Error::Server { host: host(uri), status, what: asked.what() }, Again::Never)
            }
            (401, _, _) => (Error::Unauthorized { repo: repo(), token }, Again::Never),
            (403, _, _) => (Error::Forbidden { repo: repo() }, Again::Never),
            (404, "RepoNotFound", _) => (Error::NoRepo { repo: repo() }, Again::Never),
            (404, "RevisionNotFound", Asked::Revision { revision, .. }) => {
                (Error::NoRevision { repo: repo(), revision: revision.to_string() }, Again::Never)
            }
            (404, _, Asked::File { file, .. }) => {
                let (file, listing) = (file.to_string(), String::new());
                (Error::NoFile { repo: repo(), file, listing }, Again::Never)
            }
            (404, _, _) => (Error::NoRepo { repo: repo() }, Again::Never),
            (429, _, _) => (Error::RateLimited { host: host(uri), seconds: wait }, later),
            (408 | 500 | 502 | 503 | 504, _, _) => {
                (Error::Server { host: host(uri), status, what: asked.what() }, later)
            }
            _ => (Error::Server { host: host(uri), status, what: asked.what() }, Again::Never),
        };
        Trouble::new(error, again)
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
fn retry_after(headers: &HeaderMap) -> Option<u64> {
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
    fn redirects_lead_where_they_say() {
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
