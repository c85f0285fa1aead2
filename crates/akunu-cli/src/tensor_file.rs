//! Writes a tensor to a SafeTensors file.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView};

use crate::failure::Failure;

/// Opened before the computation, so that an unwritable path is reported early. Existing links are followed, and
/// devices and pipes are written to.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    /// The file was created and is still empty.
    is_new: bool,
}

impl TensorFile {
    pub fn open(path: &Path) -> Result<TensorFile, Failure> {
        let mut options = OpenOptions::new();
        options.write(true);
        let (file, is_new) = match options.clone().create_new(true).open(path) {
            // Only the second way follows a link to a file that does not exist yet.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (options.create(true).truncate(false).open(path), false)
            }
            made => (made, true),
        };
        let file = file.map_err(|error| Failure::io("write", path, &error))?;
        Ok(TensorFile { path: path.to_path_buf(), file, is_new })
    }

    /// Writes a tensor of f32 in rows of `width` numbers.
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

/// Removes the empty file if the command fails.
impl Drop for TensorFile {
    fn drop(&mut self) {
        if self.is_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
