//! Output files: never one that the model is read from, and nothing that exists is lost unless it is asked for.

use std::io::ErrorKind;
use std::path::Path;

use akunu_arch::WeightProvider;
use akunu_file::{Existing, FileId, NewFile};
use akunu_format::Region;

use crate::failure::Failure;

/// Rejects an output file that is one of the model's files, under any name.
pub fn refuse(out: &Path, weights: &dyn WeightProvider) -> Result<(), Failure> {
    refuse_regions(out, weights.regions())?;
    if weights.metadata().is_some() || weights.ranked_tokens().is_some() {
        return Ok(());
    }
    // A checkpoint's configuration and vocabulary are files beside its weights, and in folders of modules.
    let Ok(id) = FileId::of(out) else { return Ok(()) };
    let files = weights.regions().iter().filter_map(Region::file);
    let folders = files.map(|file| file.path.parent().unwrap_or(Path::new("")));
    match folders.into_iter().any(|folder| has_file(&Path::new(".").join(folder), &id, 1)) {
        true => Err(is_source(out)),
        false => Ok(()),
    }
}

/// Rejects an output file that is in memory as one of these regions.
pub fn refuse_regions(out: &Path, regions: &[Region]) -> Result<(), Failure> {
    let Ok(id) = FileId::of(out) else { return Ok(()) };
    match regions.iter().any(|region| region.file().is_some_and(|file| file.id == id)) {
        true => Err(is_source(out)),
        false => Ok(()),
    }
}

/// Rejects an output file that is a file which the command reads, under any name. Devices and pipes are both at once.
pub fn refuse_inputs(out: &Path, inputs: &[&Path]) -> Result<(), Failure> {
    let Ok(id) = FileId::of(out) else { return Ok(()) };
    let is_same = |input: &&&Path| FileId::of(input).is_ok_and(|found| found == id);
    match inputs.iter().find(is_same) {
        Some(_) if out.is_file() => {
            Err(Failure::usage(format!("{} is an input, and would be replaced", out.display()))
                .hint("choose another output file"))
        }
        _ => Ok(()),
    }
}

/// Whether two output files would be one, which need not exist yet.
pub fn is_same_target(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(path), ..) => path,
        (_, Some(folder), Some(name)) => {
            let folder = if folder == Path::new("") { Path::new(".") } else { folder };
            folder.canonicalize().map_or_else(|_| path.to_path_buf(), |folder| folder.join(name))
        }
        _ => path.to_path_buf(),
    };
    let is_device = one.exists() && !one.is_file();
    !is_device && real(one) == real(other)
}

fn is_source(out: &Path) -> Failure {
    Failure::new(format!("{} is a file of the model that is read", out.display()))
        .hint("choose another output file")
}

/// Whether a folder has this file among those that checkpoints consist of.
fn has_file(folder: &Path, id: &FileId, depth: usize) -> bool {
    const KINDS: [&str; 5] = ["safetensors", "json", "model", "txt", "jinja"];
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| match path.is_dir() {
        true => depth > 0 && has_file(&path, id, depth - 1),
        false => {
            let is_part = path.extension().is_some_and(|kind| KINDS.iter().any(|known| kind == *known));
            is_part && FileId::of(&path).is_ok_and(|found| found == *id)
        }
    })
}

/// Rejects a path that exists, also as a link that leads nowhere. With `--force`, only devices and pipes.
pub fn refuse_existing(out: &Path, force: bool) -> Result<(), Failure> {
    if force && !out.is_dir() {
        let failed = |error| Failure::io("write", out, &error).hint("give the name of a file");
        akunu_file::check_replaceable(out).map_err(failed)?;
    }
    match !force && std::fs::symlink_metadata(out).is_ok() {
        true => Err(Failure::new(format!("{} exists", out.display())).hint("--force overwrites it")),
        false => Ok(()),
    }
}

/// Gives a complete file its name, unless another process has made a file of that name meanwhile.
pub fn commit(file: NewFile, out: &Path, force: bool) -> Result<(), Failure> {
    let existing = if force { Existing::Replace } else { Existing::Refuse };
    file.commit(existing).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            Failure::new(format!("{} was created by another process meanwhile, and is kept", out.display()))
                .hint("--force overwrites it")
        }
        _ => Failure::io("write", out, &error),
    })
}
