//! The chat page. Its behaviour is tested in a browser: `cargo xtask page`.

use crate::serve::{serve, serve_with};

#[test]
fn the_page_needs_no_key_and_loads_nothing_else() {
    for server in [serve(), serve_with(|options| options.keys = akunu_server::Keys::new("sesame"))] {
        let page = server.get("/");
        assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
        assert_eq!(page.header("content-security-policy"), Some("frame-ancestors 'none'"));
        let text = page.text();
        assert!(text.starts_with("<!doctype html>") && text.contains("default-src 'none'"));
        assert!(text.len() < 90_000, "the page has {} bytes", text.len());
        for outside in ["src=\"", "@import", "url(http", "href=\"http"] {
            assert!(!text.contains(outside), "{outside}");
        }
    }
}
