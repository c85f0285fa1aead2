//! A tensor that a command leaves in a file.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView};

use crate::failure::Failure;

/// Opened before anything is computed, so that a path where nothing can be written is told at once. What stands at the
/// path stays what it is: a link is followed, and a device or a pipe is written to.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    /// It was made here and is not yet written.
    is_new: bool,
}

impl TensorFile {
    pub fn open(path: &Path) -> Result<TensorFile, Failure> {
        let mut options = OpenOptions::new();
        options.write(true);
        let (file, is_new) = match options.clone().create_new(true).open(path) {
            // Only the second way follows a link to a file that is not there yet.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (options.create(true).truncate(false).open(path), false)
            }
            made => (made, true),
        };
        let file = file.map_err(|error| Failure::io("write", path, &error))?;
        Ok(TensorFile { path: path.to_path_buf(), file, is_new })
    }

    /// A tensor of f32 in rows of `width` numbers.
    pub fn write(
        mut self,
        name: &str,
        width: usize,
        numbers: impl Iterator<Item = f32>,
    ) -> Result<(), Failure> {
        let path = self.path.clone();
        let failed = |error: &dyn Display| Failure::new(format!("cannot write {}: {error}", path.display()));
        let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
        let shape = vec![bytes.len() / 4 / width, width];
        let view = TensorView::new(Dtype::F32, shape, &bytes).map_err(|error| failed(&error))?;
        let about: Option<HashMap<String, String>> = None;
        let bytes = safetensors::serialize([(name, view)], about).map_err(|error| failed(&error))?;
        // Devices and pipes have no length.
        if self.file.metadata().map_err(|error| failed(&error))?.is_file() {
            self.file.set_len(0).map_err(|error| failed(&error))?;
        }
        self.file.write_all(&bytes).map_err(|error| failed(&error))?;
        self.is_new = false;
        Ok(())
    }
}

/// A command that fails leaves no empty file behind.
impl Drop for TensorFile {
    fn drop(&mut self) {
        if self.is_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
