//! Where compiled pipelines are kept.

use std::ffi::OsString;
use std::path::PathBuf;

/// In `AKUNU_CACHE`, or where Apple's systems have their users' caches. `None`: nothing is kept.
pub(crate) fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let get = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let own = || Some(get("HOME")?.join("Library/Caches/akunu"));
    Some(get("AKUNU_CACHE").or_else(own)?.join("metal"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_folder_is_the_users() {
        let from = |variables: &[(&str, &str)]| {
            folder(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        assert_eq!(from(&[]), None);
        assert_eq!(
            from(&[("HOME", "/h"), ("AKUNU_CACHE", "")]).unwrap(),
            Path::new("/h/Library/Caches/akunu/metal")
        );
        assert_eq!(from(&[("HOME", "/h"), ("AKUNU_CACHE", "/a")]).unwrap(), Path::new("/a/metal"));
    }
}
