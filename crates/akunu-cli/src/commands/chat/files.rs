//! Saved conversations.

use std::io::ErrorKind;
use std::path::Path;

use akunu::chat::conversation;
use akunu_file::Existing;
use serde_json::Value as Json;

use crate::failure::Failure;

/// Maximum size of a file in bytes.
const MAX_BYTES: u64 = 256 << 20;

pub fn load(path: &Path) -> Result<Vec<Json>, Failure> {
    let bytes = akunu_file::read(path, MAX_BYTES).map_err(|error| match error.kind() {
        ErrorKind::FileTooLarge => {
            Failure::new(format!("{} is too large for a saved conversation", path.display()))
        }
        _ => Failure::io("read", path, &error),
    })?;
    let text = String::from_utf8(bytes).map_err(|_| {
        Failure::new(format!("{}: the conversation is invalid: it is not UTF-8 text", path.display()))
    })?;
    conversation::parse(&text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// Saves a conversation. An existing file is overwritten only if it contains a conversation.
pub fn save(path: &Path, messages: &[Json]) -> Result<(), Failure> {
    let existing = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Existing::Refuse,
        Err(error) => return Err(Failure::io("write", path, &error)),
        // Opening a pipe waits for its other end.
        _ if path.is_file() && load(path).is_ok() => Existing::Replace,
        _ => {
            let shown = path.display();
            return Err(Failure::new(format!("{shown} exists and is not a saved conversation"))
                .hint("the file was not changed: save under another name"));
        }
    };
    let failure = |error: std::io::Error| Failure::io("write", path, &error);
    akunu_file::write(path, conversation::to_json(messages).as_bytes(), existing).map_err(failure)
}
