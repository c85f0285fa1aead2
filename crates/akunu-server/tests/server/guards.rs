//! API keys, rate limits, CORS and TLS.

use std::io::{Read, Write};
use std::sync::Arc;

use akunu_server::{Cors, Keys, TlsFiles};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;

use crate::http::{connect, request, send};
use crate::serve::serve_with;

#[test]
fn a_server_with_keys_requires_one() {
    let server = serve_with(|options| options.keys = Keys::new("secret other"));
    let ask = |headers: &[(&str, &str)]| send(server.address(), &request("GET", "/v1/models", headers, b""));
    for headers in [&[("authorization", "Bearer secret")], &[("x-api-key", "other")]] {
        assert_eq!(ask(headers).status, 200);
    }
    for headers in [&[][..], &[("authorization", "Bearer wrong")]] {
        let refused = ask(headers);
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["code"]), (401, &json!("invalid_api_key")));
        assert_eq!(error["type"], "authentication_error");
    }
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/metrics").status, 401);
    // The page needs no key, but a POST to the same path does.
    let embed = |headers: &[(&str, &str)]| {
        let answer = send(server.address(), &request("POST", "/", headers, b"{\"inputs\": \"a\"}"));
        (answer.status, answer.json()["error"].as_str().unwrap().to_string())
    };
    assert_eq!(embed(&[]).0, 401);
    let (status, message) = embed(&[("x-api-key", "secret")]);
    assert_eq!((status, message.contains("generates text")), (400, true), "{message}");
}

#[test]
fn the_rate_limit_is_429_with_retry_after() {
    let server = serve_with(|options| options.limits.rate = Some(2));
    let ask = || server.post("/tokenize", &json!({ "content": "a" }));
    assert_eq!([ask().status, ask().status], [200, 200]);
    let refused = ask();
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    // GET requests are not limited.
    assert_eq!(server.get("/v1/models").status, 200);
}

#[test]
fn cors_allows_only_configured_origins() {
    let origin = [("origin", "https://page.example")];
    let ask = |cors: Cors, method| {
        let server = serve_with(|options| {
            options.cors = cors;
            options.keys = Keys::new("secret");
        });
        send(server.address(), &request(method, "/v1/models", &origin, b""))
    };
    const ALLOWED: &str = "access-control-allow-origin";
    assert_eq!(ask(Cors::Off, "GET").header(ALLOWED), None);
    assert_eq!(ask(Cors::Off, "OPTIONS").header(ALLOWED), None);
    assert_eq!(ask(Cors::Any, "GET").header(ALLOWED), Some("*"));
    let here = Cors::Origins(vec!["https://page.example".into()]);
    let before = ask(here.clone(), "OPTIONS");
    assert_eq!((before.status, before.header(ALLOWED)), (204, Some("https://page.example")));
    assert!(before.header("access-control-allow-headers").unwrap().contains("authorization"));
    // Errors have the header too.
    let refused = ask(here, "GET");
    assert_eq!((refused.status, refused.header(ALLOWED)), (401, Some("https://page.example")));
    let elsewhere = Cors::Origins(vec!["https://other.example".into()]);
    assert_eq!(ask(elsewhere, "GET").header(ALLOWED), None);
}

#[test]
fn https_works_and_http_on_its_port_is_closed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/tls");
    let certificate = folder.join("certificate.pem");
    let files = TlsFiles { certificate: certificate.clone(), key: folder.join("key.pem") };
    let server = serve_with(|options| options.tls = Some(files));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificate).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let client = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(client, connect(server.address()));
    stream.write_all(&request("GET", "/health", &[], b"")).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // Plain HTTP gets no response.
    let mut plain = connect(server.address());
    plain.write_all(&request("GET", "/health", &[], b"")).unwrap();
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes);
    assert!(!bytes.starts_with(b"HTTP"));
}
