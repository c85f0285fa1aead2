//! The file of an `--out` option.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use akunu_arch::WeightProvider;
use akunu_file::{Existing, NewFile};

use crate::failure::Failure;
use crate::{interrupt, sources};

const SUFFIX: &str = "safetensors";

/// Opened before the computation, so that an unwritable path is reported early. Links are followed. A file appears, or
/// is replaced, when it is complete; devices and pipes are written to.
#[derive(Debug)]
pub struct OutFile {
    path: PathBuf,
    out: Out,
}

#[derive(Debug)]
enum Out {
    File(NewFile),
    Device(File),
}

impl OutFile {
    /// Refuses the name of a new file with another suffix before a model is looked for or downloaded. What exists may be
    /// a file of the model, which `safetensors` says.
    pub fn check_new(path: &Path) -> Result<(), Failure> {
        if path.exists() { Ok(()) } else { check_suffix(path) }
    }

    /// A SafeTensors file: another suffix would promise another format.
    pub fn safetensors(
        path: &Path,
        weights: &dyn WeightProvider,
        inputs: &[&Path],
    ) -> Result<OutFile, Failure> {
        sources::refuse(path, weights)?;
        check_suffix(path)?;
        OutFile::open(path, weights, inputs)
    }

    /// The model's own files are rejected, and what else the command reads.
    pub fn open(path: &Path, weights: &dyn WeightProvider, inputs: &[&Path]) -> Result<OutFile, Failure> {
        sources::refuse(path, weights)?;
        sources::refuse_inputs(path, inputs)?;
        interrupt::remove_unfinished_files();
        let failed = |error| Failure::io("write", path, &error);
        let target = followed(path);
        let existing = match target.exists() {
            true => Some(OpenOptions::new().write(true).open(&target).map_err(failed)?),
            false => None,
        };
        let out = match existing {
            Some(device) if !device.metadata().map_err(failed)?.is_file() => Out::Device(device),
            _ => Out::File(NewFile::create(&target).map_err(failed)?),
        };
        Ok(OutFile { path: path.to_path_buf(), out })
    }

    /// Writes the whole content.
    pub fn write(mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.append(bytes)?;
        self.finish()
    }

    /// Writes more of the content, which ends with [`OutFile::finish`].
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = match &mut self.out {
            Out::Device(device) => device.write_all(bytes),
            Out::File(file) => file.write_all(bytes),
        };
        written.map_err(|error| Failure::io("write", &self.path, &error))
    }

    pub fn finish(self) -> Result<(), Failure> {
        match self.out {
            Out::Device(_) => Ok(()),
            Out::File(file) => {
                file.commit(Existing::Replace).map_err(|error| Failure::io("write", &self.path, &error))
            }
        }
    }
}

/// The path that symbolic links lead to, which need not exist.
fn followed(path: &Path) -> PathBuf {
    // As many as Linux follows.
    const MAX: usize = 40;
    let mut target = path.to_path_buf();
    for _ in 0..MAX {
        match std::fs::read_link(&target) {
            Ok(next) => target = target.parent().unwrap_or(Path::new("")).join(next),
            Err(_) => break,
        }
    }
    target
}

fn check_suffix(path: &Path) -> Result<(), Failure> {
    let is_device = path.exists() && !path.is_file();
    if is_device || followed(path).extension().is_some_and(|suffix| suffix == SUFFIX) {
        return Ok(());
    }
    let named = path.with_extension(SUFFIX);
    Err(Failure::usage(format!("{} does not end in .{SUFFIX}", path.display()))
        .hint(format!("only SafeTensors files are written: --out {}", named.display())))
}
