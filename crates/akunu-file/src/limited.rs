//! Whole files up to a size, since the metadata of a device or a pipe tells nothing of what will come out of it.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// A whole file of at most `most` bytes, also from a pipe. More is [`ErrorKind::FileTooLarge`].
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_open(File::open(path)?, most)
}

/// As [`read`], and devices and pipes are refused, of which opening a pipe may never return.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let about = std::fs::metadata(path)?;
    match about.is_file() || about.is_dir() {
        true => read(path, most),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "it is a device or a pipe, and no file")),
    }
}

/// As [`read`], as UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let not_text = |_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8 text");
    String::from_utf8(read(path, most)?).map_err(not_text)
}

fn read_open(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if file.metadata()?.len() <= most {
        file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 <= most {
            return Ok(bytes);
        }
    }
    Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {most} bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"four");
        assert_eq!(read_text(&path, 4).unwrap(), "four");
        for read in [read, read_regular] {
            let error = read(&path, 3).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FileTooLarge);
            assert_eq!(error.to_string(), "it has more than 3 bytes");
        }
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(read_text(&path, 4).unwrap_err().kind(), ErrorKind::InvalidData);
        // Not read to find out how long it is.
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read(&path, 1 << 20).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert!(read(dir.path(), 1 << 20).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_device_without_an_end_is_read_up_to_the_limit_or_refused() {
        let zeros = Path::new("/dev/zero");
        assert_eq!(read(zeros, 100).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(read_regular(zeros, 100).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
