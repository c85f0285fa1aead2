//! Reads small files, with errors that name them.

use std::path::Path;

use crate::TokenizerError;
use crate::error::printable;

/// Maximum size of a vocabulary file, to reject files of another kind.
const MAX_FILE: u64 = 256 << 20;

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    let failed = |error: std::io::Error| TokenizerError::Io {
        path: path.display().to_string(),
        message: error.to_string(),
    };
    let about = std::fs::metadata(path).map_err(failed)?;
    if about.len() > MAX_FILE {
        return Err(TokenizerError::FileTooLarge {
            path: path.display().to_string(),
            len: about.len(),
            max: MAX_FILE,
        });
    }
    akunu_file::read_regular(path, MAX_FILE).map_err(failed)
}

pub(crate) fn not_json(file: &'static str, error: &serde_json::Error) -> TokenizerError {
    TokenizerError::Json { file, message: printable(&error.to_string()) }
}
