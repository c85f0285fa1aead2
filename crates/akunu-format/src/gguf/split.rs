//! Models split over several files, `NAME-00001-of-00005.gguf`: any part opens all of them. The first part's metadata
//! is the model's; the others have only `split.*` keys.

use std::path::{Path, PathBuf};

use super::Gguf;
use super::header::{Part, read_part};
use super::metadata::Metadata;
use crate::map::load_file;
use crate::{FormatError, Loading, Region};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// Digits of a part number.
const DIGITS: usize = 5;

/// The position of a part, from its file name.
#[derive(Debug, PartialEq, Eq)]
struct PartName {
    folder: PathBuf,
    stem: String,
    /// Counted from 1.
    number: u32,
    count: u32,
}

impl PartName {
    /// Parses `STEM-00002-of-00005.gguf`.
    fn parse(path: &Path) -> Option<PartName> {
        let rest = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let plain = text.len() == DIGITS && text.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| text.parse::<u32>().ok()).flatten()
        };
        let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
        Some(PartName { folder, stem: stem.to_string(), number: digits(number)?, count: digits(count)? })
    }

    fn path_of(&self, number: u32) -> PathBuf {
        self.folder.join(format!("{}-{number:0w$}-of-{:0w$}.gguf", self.stem, self.count, w = DIGITS))
    }
}

fn split(problem: impl Into<String>) -> FormatError {
    FormatError::Split { problem: problem.into() }
}

/// The number of parts according to the metadata; 1 for an ordinary file.
fn part_count(metadata: &Metadata) -> Result<u32, FormatError> {
    Ok(metadata.u32(COUNT)?.unwrap_or(1).max(1))
}

/// Rejects parts that are in memory: without a file name, the other parts cannot be found.
pub(super) fn refuse_part(metadata: &Metadata) -> Result<(), FormatError> {
    match part_count(metadata)? {
        1 => Ok(()),
        count => Err(split(format!("this is one part of a model split into {count}; merge the parts first"))),
    }
}

pub(super) fn open(path: &Path, loading: Loading) -> Result<Gguf, FormatError> {
    let region = load_file(path, loading)?;
    let given = read_part(&region, 0).map_err(|error| error.in_file(path))?;
    let count = part_count(&given.metadata).map_err(|error| error.in_file(path))?;
    if count == 1 {
        return Gguf::assemble(given.metadata, given.tensors, vec![region])
            .map_err(|error| error.in_file(path));
    }
    let name = PartName::parse(path).filter(|name| name.count == count).ok_or_else(|| {
        let example = format!("NAME-{:0w$}-of-{count:0w$}.gguf", 1, w = DIGITS);
        split(format!(
            "this is one part of {count}, and the others are found by name: rename it to {example}"
        ))
        .in_file(path)
    })?;
    open_parts(&name, (region, given), loading).map_err(|error| error.in_file(path))
}

/// Opens the other parts and combines all of them in order.
fn open_parts(name: &PartName, given: (Region, Part), loading: Loading) -> Result<Gguf, FormatError> {
    let mut given = Some(given);
    let mut regions = Vec::new();
    let mut tensors = Vec::new();
    let mut metadata = None;
    for number in 1..=name.count {
        let path = name.path_of(number);
        let (region, part) = match given.take_if(|_| number == name.number) {
            Some((region, part)) => (region, part),
            None => open_part(&path, number, name.count, loading)?,
        };
        check_number(&part.metadata, number, name.count).map_err(|error| error.in_file(&path))?;
        // The given part was read as if it were the only one.
        let index = regions.len();
        tensors.extend(part.tensors.into_iter().map(|tensor| crate::TensorInfo { region: index, ..tensor }));
        regions.push(region);
        metadata.get_or_insert(part.metadata);
    }
    let metadata = metadata.unwrap_or_default();
    if let Some(stated) = metadata.u64(TENSORS)?
        && stated != tensors.len() as u64
    {
        let found = tensors.len();
        return Err(split(format!("`{TENSORS}` is {stated}, but the {} parts have {found}", name.count)));
    }
    Gguf::assemble(metadata, tensors, regions)
}

fn open_part(path: &Path, number: u32, count: u32, loading: Loading) -> Result<(Region, Part), FormatError> {
    if !path.exists() {
        let missing = path.display();
        return Err(split(format!("part {number} of {count} is missing: put {missing} beside the others")));
    }
    let region = load_file(path, loading)?;
    let part = read_part(&region, 0).map_err(|error| error.in_file(path))?;
    Ok((region, part))
}

fn check_number(metadata: &Metadata, number: u32, count: u32) -> Result<(), FormatError> {
    let stated = part_count(metadata)?;
    if stated != count {
        return Err(split(format!("`{COUNT}` is {stated}, but the file name says {count}")));
    }
    // The metadata counts from 0, the file name from 1.
    match metadata.u32(NUMBER)? {
        Some(stated) if stated == number - 1 => Ok(()),
        Some(stated) => {
            Err(split(format!("its file name says part {number}, but `{NUMBER}` says {}", stated + 1)))
        }
        None => Err(split(format!("`{NUMBER}` is missing"))),
    }
}
