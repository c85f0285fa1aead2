//! Locations of the hub and the cache, from the environment variables of Hugging Face tools.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::http::Uri;
use ureq::{Proxy, ProxyProtocol};

use crate::{Error, Result};

const ENDPOINT: &str = "https://huggingface.co";

/// Maximum bytes of a file with a token.
const MAX_TOKEN_FILE: u64 = 64 << 10;

/// An access token. It is not shown in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// `None` if the text is empty or not valid in a header.
    pub fn new(text: &str) -> Option<Token> {
        let text = text.trim();
        (!text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic())).then(|| Token(text.to_string()))
    }

    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Timeouts and retries.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    pub connect: Duration,
    /// Timeout for the next bytes of a response.
    pub idle: Duration,
    /// Maximum number of consecutive attempts without received data.
    pub attempts: u32,
    /// Wait before the second attempt; doubles with each further one.
    pub backoff: Duration,
    /// Maximum `Retry-After` that is accepted; a longer one is an error.
    pub max_retry_after: Duration,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy {
            connect: Duration::from_secs(10),
            idle: Duration::from_secs(30),
            attempts: 5,
            backoff: Duration::from_millis(500),
            max_retry_after: Duration::from_secs(120),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// Without a trailing slash.
    pub endpoint: String,
    /// The folder that contains `models--OWNER--NAME`.
    pub cache: PathBuf,
    pub token: Option<Token>,
    /// Use only the cache, without any network access.
    pub offline: bool,
    pub proxy: Option<ProxyVariable>,
    pub retry_policy: RetryPolicy,
}

/// A variable that names a proxy, which is read by the HTTP client itself.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyVariable {
    variable: &'static str,
    value: String,
}

impl fmt::Debug for ProxyVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProxyVariable({})", self.variable)
    }
}

impl ProxyVariable {
    /// The variables in the client's order. It takes the first that it can read, and no proxy if there is none.
    const NAMES: [&str; 6] =
        ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];

    fn find(get: impl Fn(&str) -> Option<String>) -> Option<ProxyVariable> {
        let mut names = ProxyVariable::NAMES.into_iter();
        names.find_map(|variable| Some(ProxyVariable { variable, value: get(variable)? }))
    }

    /// Checks that the client can use the proxy. Otherwise it would try without one.
    pub(crate) fn check(&self) -> Result<()> {
        let reason = match Proxy::new(&self.value).map(|proxy| proxy.protocol()) {
            Ok(ProxyProtocol::Http | ProxyProtocol::Https) => return Ok(()),
            Ok(_) => {
                "the address of a SOCKS proxy; only HTTP proxies are supported, such as http://127.0.0.1:3128"
            }
            Err(_) => "not the address of a proxy; an example is http://127.0.0.1:3128",
        };
        // It may contain a password.
        let value = if self.value.contains('@') { "…" } else { &self.value };
        Err(Error::Setting { variable: self.variable, value: value.to_string(), reason })
    }
}

impl Settings {
    pub fn new(endpoint: &str, cache: impl Into<PathBuf>) -> Result<Settings> {
        Ok(Settings {
            endpoint: check_endpoint(endpoint)?,
            cache: cache.into(),
            token: None,
            offline: false,
            proxy: None,
            retry_policy: RetryPolicy::default(),
        })
    }

    /// The settings from `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE` and their older names.
    /// The proxy's are `HTTPS_PROXY` and the like. `variable` looks a variable up; an empty one counts as unset.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Settings> {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = get("HF_HOME").map(PathBuf::from).or_else(|| {
            let caches = get("XDG_CACHE_HOME").map(PathBuf::from);
            let user =
                || get("HOME").or_else(|| get("USERPROFILE")).map(|home| Path::new(&home).join(".cache"));
            Some(caches.or_else(user)?.join("huggingface"))
        });
        let cache = get("HF_HUB_CACHE").or_else(|| get("HUGGINGFACE_HUB_CACHE")).map(PathBuf::from);
        let cache = cache.or_else(|| Some(home.as_ref()?.join("hub"))).ok_or(Error::NoHome)?;
        let endpoint = get("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_string());
        let mut settings = Settings::new(&endpoint, cache)?;
        settings.offline = get("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value));
        settings.proxy = ProxyVariable::find(get);
        settings.token = match get("HF_TOKEN").or_else(|| get("HUGGING_FACE_HUB_TOKEN")) {
            Some(value) => Some(Token::new(&value).ok_or(Error::Setting {
                variable: "HF_TOKEN",
                value: "…".to_string(),
                reason: "not a valid token: it contains invalid characters",
            })?),
            None => {
                let file = get("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home?.join("token")));
                file.and_then(|file| akunu_file::read_text(&file, MAX_TOKEN_FILE).ok())
                    .and_then(|text| Token::new(&text))
            }
        };
        Ok(settings)
    }
}

fn is_true(value: &str) -> bool {
    matches!(value.to_ascii_uppercase().as_str(), "1" | "TRUE" | "YES" | "ON")
}

fn check_endpoint(text: &str) -> Result<String> {
    let wrong = |reason| Error::Setting { variable: "HF_ENDPOINT", value: text.to_string(), reason };
    let trimmed = text.trim_end_matches('/');
    let uri: Uri = trimmed.parse().map_err(|_| wrong("not a URL; an example is https://huggingface.co"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(_)) if uri.query().is_none() => Ok(trimmed.to_string()),
        _ => Err(wrong("not the URL of a hub; an example is https://huggingface.co")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Settings> {
        Settings::from_variables(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn the_cache_is_that_of_other_tools() {
        let cache = |variables: &[(&str, &str)]| from(variables).unwrap().cache;
        assert_eq!(cache(&[("HOME", "/h")]), Path::new("/h/.cache/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "/f")]), Path::new("/f/hub"));
        assert_eq!(cache(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")]), Path::new("/c"));
        assert!(matches!(from(&[]), Err(Error::NoHome)));
    }

    #[test]
    fn the_token_comes_from_the_variable_or_the_file() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "hf_file\n").unwrap();
        let home = home.path().to_str().unwrap();
        assert_eq!(from(&[("HF_HOME", home)]).unwrap().token, Token::new("hf_file"));
        let both = from(&[("HF_HOME", home), ("HF_TOKEN", " hf_var ")]).unwrap();
        assert_eq!(both.token, Token::new("hf_var"));
        assert!(!format!("{both:?}").contains("hf_var"));
        let broken = from(&[("HF_HOME", home), ("HF_TOKEN", "a\r\nb")]).unwrap_err();
        assert!(!broken.to_string().contains("a\r"), "{broken}");
    }

    #[test]
    fn the_endpoint_is_a_url() {
        let endpoint = |text: &str| from(&[("HOME", "/h"), ("HF_ENDPOINT", text)]).map(|s| s.endpoint);
        assert_eq!(endpoint("https://hub.example/prefix/").unwrap(), "https://hub.example/prefix");
        for text in ["hub.example", "ftp://hub.example", "https://", "nonsense here"] {
            assert!(matches!(endpoint(text), Err(Error::Setting { .. })), "{text}");
        }
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_an_error_and_its_password_is_not_shown() {
        let check = |variables: &[(&str, &str)]| {
            let variables = [&[("HOME", "/h")], variables].concat();
            from(&variables).unwrap().proxy.map_or(Ok(()), |proxy| proxy.check())
        };
        for usable in
            ["proxy.example:3128", "http://proxy.example", "https://user:word@proxy.example:443", ""]
        {
            assert!(check(&[("HTTPS_PROXY", usable)]).is_ok(), "{usable}");
        }
        for (broken, reason) in [
            ("http://", "not the address"),
            ("not a URL", "not the address"),
            ("ftp://proxy.example", "not the address"),
            ("socks5://proxy.example:1080", "SOCKS"),
        ] {
            let error = check(&[("HTTPS_PROXY", broken)]).unwrap_err().to_string();
            assert!(error.contains("HTTPS_PROXY") && error.contains(broken), "{error}");
            assert!(error.contains(reason), "{error}");
        }
        let secret = check(&[("all_proxy", "socks5://user:word@proxy.example")]).unwrap_err().to_string();
        assert!(secret.contains("all_proxy") && !secret.contains("word"), "{secret}");
    }

    #[test]
    fn offline_values_match_other_tools() {
        for (value, offline) in [("1", true), ("true", true), ("ON", true), ("0", false), ("", false)] {
            assert_eq!(
                from(&[("HOME", "/h"), ("HF_HUB_OFFLINE", value)]).unwrap().offline,
                offline,
                "{value}"
            );
        }
    }
}
