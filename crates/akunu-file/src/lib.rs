//! Files that are written completely or not at all, files that are read up to a limit, and the identity of files.
//!
//! ```
//! use std::io::Write;
//!
//! use akunu_file::{Existing, NewFile};
//! # fn main() -> std::io::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.gguf");
//! let mut file = NewFile::create(&path)?;
//! file.write_all(b"content")?;
//! file.commit(Existing::Refuse)?;
//! assert_eq!(std::fs::read(&path)?, b"content");
//! # Ok(())
//! # }
//! ```

mod identity;
mod limited;
mod new_file;

pub use identity::FileId;
pub use limited::{read, read_regular, read_text};
pub use new_file::{Existing, NewFile, check_replaceable, remove_unfinished, rename, write};
