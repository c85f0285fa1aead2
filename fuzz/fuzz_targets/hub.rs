//! What a hub answers: lines with the header of the next page, the header of a pause, and the selector of a model, then
//! a listing of files.
#![no_main]

use std::collections::HashSet;
use std::path::{Component, Path};

use akunu_hub::Reference;
use akunu_hub::fuzzing::{chosen, listing, next_page, wait};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(4, |&byte| byte == b'\n');
    let (Some(link), Some(pause), Some(selector), Some(json)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return;
    };
    if let Ok(link) = std::str::from_utf8(link)
        && let Some(next) = next_page("https://hub.example:8443/api/models/a/b/tree/c?d", link)
    {
        assert!(next.starts_with("https://") || next.starts_with("http://"), "{next}");
    }
    assert_ne!(wait(pause), Some(0));
    let selector = std::str::from_utf8(selector).ok().filter(|selector| !selector.is_empty());
    if let Some(text) = selector
        && let Ok(reference) = text.parse::<Reference>()
    {
        assert_eq!(reference.to_string(), text);
    }

    let Ok(files) = listing(json) else { return };
    for file in &files {
        let inside =
            |path: &str| Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        assert!(inside(&file.path), "{file:?}");
        assert!(matches!(file.sum.len(), 40 | 64) && inside(&file.sum), "{file:?}");
    }
    let paths: HashSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    if let Ok((found, open)) = chosen(&files, selector) {
        assert!(!found.is_empty() && found.iter().all(|path| paths.contains(path.as_str())), "{found:?}");
        assert!(open.is_none_or(|open| found.contains(&open)), "{found:?}");
        let different: HashSet<&String> = found.iter().collect();
        assert!(different.len() == found.len() || paths.len() < files.len(), "{found:?}");
    }
});
