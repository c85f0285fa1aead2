//! Requests of web pages. A page that a stranger wrote can make its visitor's browser send requests to a server on the
//! visitor's machine; these must not do anything.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{HOST, HeaderValue, ORIGIN, REFERER};
use axum::http::{HeaderMap, Method, Version};

use crate::body::is_json;
use crate::guard::Cors;
use crate::refusal::{Reason, Refusal};

/// The host names under which requests may address the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    /// Names besides those of this machine's loopback interface.
    pub allowed: Vec<String>,
    /// Whether the server listens on the loopback interface only.
    pub is_loopback: bool,
}

impl Hosts {
    /// A name that an attacker's name server resolves to this machine makes the attacker's page of the same origin as the
    /// server, so a name must be known.
    fn accept(&self, host: &str) -> bool {
        let is_open = !self.is_loopback && self.allowed.is_empty();
        is_open || is_loopback(host) || self.allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(host))
    }
}

/// Refuses requests to unknown hosts, and those of other sites' pages unless `cors` allows their origin.
pub(crate) fn check(request: &Request, hosts: &Hosts, cors: &Cors) -> Result<(), Refusal> {
    let headers = request.headers();
    let host = match (one(headers, HOST.as_str())?, request.uri().host()) {
        // In an absolute URI, which takes precedence.
        (_, Some(host)) => host,
        (Some(host), None) => host_of(host),
        (None, None) if request.version() < Version::HTTP_11 => "localhost",
        (None, None) => return Err(Refusal::invalid("the request has no 'Host' header")),
    };
    if !hosts.accept(host) {
        let message = format!(
            "the host \"{}\" is not one of this server: start it with --allow-host {0} to serve under this name",
            host.escape_debug()
        );
        return Err(Refusal::new(Reason::Forbidden, message).code("host_not_allowed"));
    }
    let refuse = |origin: &str| {
        let message = format!(
            "requests of web pages from {origin} are not allowed: start the server with --cors ORIGIN to allow an origin"
        );
        Err(Refusal::new(Reason::Forbidden, message).code("origin_not_allowed"))
    };
    match one(headers, ORIGIN.as_str())? {
        Some(_) if cors.allowed_origin(headers).is_some() => Ok(()),
        Some(origin) if !is_same_site(origin, host) => refuse(&origin.escape_debug().to_string()),
        Some(_) => Ok(()),
        // A link on another site may lead to the chat page.
        None if is_navigation(request.method(), headers) => Ok(()),
        None if !all_sites_are(headers, &["same-origin", "same-site", "none"]) => refuse("another site"),
        None => match one(headers, REFERER.as_str())? {
            Some(page) if is_simple(request) && !is_same_site(origin_of(page), host) => {
                refuse("another site")
            }
            _ => Ok(()),
        },
    }
}

/// Refuses requests of web pages other than the server's own, whatever [`Cors`] allows and whatever else is on this host.
pub(crate) fn check_own_page(headers: &HeaderMap) -> Result<(), Refusal> {
    let host = one(headers, HOST.as_str())?.unwrap_or_default();
    let is_own = |origin: &str| {
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
    };
    let origin = one(headers, ORIGIN.as_str())?;
    if all_sites_are(headers, &["same-origin", "none"]) && origin.is_none_or(is_own) {
        return Ok(());
    }
    let message = "tools can be called by this server's own page only, not by pages of other origins";
    Err(Refusal::new(Reason::Forbidden, message).code("origin_not_allowed"))
}

/// Whether a request has only these values of `Sec-Fetch-Site`, if any. One that is not known is as bad as `cross-site`,
/// and so is a good one beside a bad one.
fn all_sites_are(headers: &HeaderMap, good: &[&str]) -> bool {
    headers.get_all("sec-fetch-site").iter().all(|site| good.iter().any(|good| site == good))
}

/// Whether a page of another site may send the request without asking first. Old browsers do so without an `Origin`.
fn is_simple(request: &Request) -> bool {
    request.method() == Method::POST && !is_json(request.headers())
}

/// The scheme and the authority of a URL.
fn origin_of(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    url[start..].find(['/', '?', '#']).map_or(url, |end| &url[..start + end])
}

/// The value of a header that may occur once at most.
fn one<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    let text = value.map(HeaderValue::to_str).transpose();
    match (text, values.next()) {
        (Ok(text), None) => Ok(text),
        (Err(_), _) => Err(Refusal::invalid(format!("the header '{name}' is not ASCII text"))),
        (_, Some(_)) => Err(Refusal::invalid(format!("the header '{name}' occurs more than once"))),
    }
}

fn is_navigation(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::GET && headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate")
}

/// Whether an origin such as `http://localhost:3000` is on the host of the request, whatever its port and scheme.
fn is_same_site(origin: &str, host: &str) -> bool {
    let Some((_, authority)) = origin.split_once("://") else { return false };
    let origin = host_of(authority);
    origin.eq_ignore_ascii_case(host) || (is_loopback(origin) && is_loopback(host))
}

/// A host without its port. IPv6 addresses keep their brackets.
fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

fn is_loopback(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
    match address.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn status(hosts: &Hosts, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method("POST").uri("/v1/models");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        check(&request, hosts, &Cors::Off).map_or_else(|refusal| refusal.reason.status().as_u16(), |()| 200)
    }

    #[test]
    fn a_server_on_loopback_knows_its_names() {
        let hosts = Hosts { allowed: vec!["my-mac.local".into()], is_loopback: true };
        for (host, expected) in [
            ("localhost", 200),
            ("LOCALHOST:8080", 200),
            ("localhost.", 200),
            ("app.localhost:80", 200),
            ("127.0.0.1:8080", 200),
            ("127.1.2.3", 200),
            ("[::1]:8080", 200),
            ("[::ffff:127.0.0.1]", 200),
            ("My-Mac.local:8080", 200),
            ("evil.example", 403),
            ("evil.example:8080", 403),
            ("localhost.evil.example", 403),
            ("127.0.0.1.evil.example", 403),
            ("192.168.1.2", 403),
            ("", 403),
        ] {
            assert_eq!(status(&hosts, &[("host", host)]), expected, "{host}");
        }
        let open = Hosts::default();
        assert_eq!(status(&open, &[("host", "evil.example")]), 200);
        assert_eq!(status(&Hosts { is_loopback: false, ..hosts }, &[("host", "evil.example")]), 403);
        assert_eq!(status(&open, &[]), 400);
        assert_eq!(status(&open, &[("host", "a"), ("host", "a")]), 400);
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let hosts = Hosts { allowed: Vec::new(), is_loopback: true };
        for (name, value, expected) in [
            ("origin", "http://localhost:3000", 200),
            ("origin", "http://127.0.0.1:8080", 200),
            ("origin", "https://evil.example", 403),
            ("origin", "http://localhost.evil.example", 403),
            ("origin", "null", 403),
            ("origin", "", 403),
            ("sec-fetch-site", "cross-site", 403),
            ("sec-fetch-site", "same-origin", 200),
            ("sec-fetch-site", "none", 200),
            ("sec-fetch-site", "same-site", 200),
            ("sec-fetch-site", "Cross-Site", 403),
            ("sec-fetch-site", "same-origin, cross-site", 403),
            ("sec-fetch-site", "", 403),
            ("referer", "https://evil.example/page", 403),
            ("referer", "http://localhost:3000/page", 200),
        ] {
            assert_eq!(status(&hosts, &[("host", "localhost"), (name, value)]), expected, "{name}: {value}");
        }
        for (first, second) in [("same-origin", "cross-site"), ("cross-site", "same-origin")] {
            let both = [("host", "localhost"), ("sec-fetch-site", first), ("sec-fetch-site", second)];
            assert_eq!(status(&hosts, &both), 403, "{first} {second}");
        }
        // Needs to ask first.
        let json =
            [("host", "localhost"), ("content-type", "application/json"), ("referer", "https://a.example")];
        assert_eq!(status(&hosts, &json), 200);
        let own = [("host", "models.example"), ("origin", "https://models.example")];
        assert_eq!(status(&Hosts::default(), &own), 200);
        let link = |mode: &str| {
            let request = Request::builder().uri("/").header("host", "localhost");
            let request = request.header("sec-fetch-site", "cross-site").header("sec-fetch-mode", mode);
            check(&request.body(Body::empty()).unwrap(), &hosts, &Cors::Off).is_ok()
        };
        assert_eq!((link("navigate"), link("no-cors")), (true, false));
    }

    #[test]
    fn every_site_of_a_call_of_a_tool_must_be_the_servers_own() {
        for (sites, is_own) in [
            (&[][..], true),
            (&["same-origin"], true),
            (&["none", "same-origin"], true),
            (&["same-site"], false),
            (&["Cross-Site"], false),
            (&["same-origin", "cross-site"], false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("localhost"));
            for site in sites {
                headers.append("sec-fetch-site", HeaderValue::from_static(site));
            }
            assert_eq!(check_own_page(&headers).is_ok(), is_own, "{sites:?}");
        }
    }
}
