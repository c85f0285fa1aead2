//! A new file under a temporary name in the folder of its final name, to which it is renamed when it is complete.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What happens if the final name is in use when the file is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// [`NewFile::commit`] fails with [`ErrorKind::AlreadyExists`].
    Refuse,
    /// The file is replaced, and its permissions are kept. A symbolic link is replaced, not followed. Devices, pipes and
    /// folders are refused.
    Replace,
}

/// A file that gets its name when it is complete and stored. If it is dropped before, it is removed.
///
/// Its temporary name is random and did not exist before, so that no other process writes the same file, and no link is
/// followed. Its permissions are those of any new file.
#[derive(Debug)]
pub struct NewFile {
    /// `None` once it is complete.
    file: Option<File>,
    temporary: PathBuf,
    target: PathBuf,
}

/// The temporary names in use, for [`remove_unfinished`].
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all files of this process that are not complete. It is to be called before the process exits without dropping
/// them.
pub fn remove_unfinished() {
    for path in unfinished().drain(..) {
        let _ = fs::remove_file(path);
    }
}

/// Writes a whole file.
pub fn write(target: &Path, content: &[u8], existing: Existing) -> io::Result<()> {
    let mut file = NewFile::create(target)?;
    file.write_all(content)?;
    file.commit(existing)
}

/// Renames a file that is stored already, within its folder, and stores the new name.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_folder(folder_of(to))
}

impl NewFile {
    /// A name that no file can have is an error here, before the work on its content.
    pub fn create(target: &Path) -> io::Result<NewFile> {
        check_name(target)?;
        const ATTEMPTS: usize = 16;
        let folder = folder_of(target);
        let mut attempt = 0;
        loop {
            let temporary = folder.join(format!("akunu-{:016x}.part", RandomState::new().hash_one(attempt)));
            // Held until the file is in the list, so that it is not created after `remove_unfinished`.
            let mut unfinished = unfinished();
            attempt += 1;
            match OpenOptions::new().write(true).create_new(true).open(&temporary) {
                Ok(file) => {
                    unfinished.push(temporary.clone());
                    return Ok(NewFile { file: Some(file), temporary, target: target.to_path_buf() });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists && attempt < ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes the content to disk, and gives the file its name. After an error, nothing is left of it.
    pub fn commit(mut self, existing: Existing) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Err(closed()) };
        if existing == Existing::Replace {
            check_replaceable(&self.target)?;
            if let Ok(old) = fs::symlink_metadata(&self.target)
                && old.is_file()
            {
                file.set_permissions(old.permissions())?;
            }
        }
        file.sync_all()?;
        drop(file);
        match existing {
            Existing::Replace => rename(&self.temporary, &self.target),
            Existing::Refuse => {
                name_new(&self.temporary, &self.target)?;
                sync_folder(folder_of(&self.target))
            }
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_mut().ok_or_else(closed)?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().ok_or_else(closed)?.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        drop(self.file.take());
        // There is none under this name if it was renamed.
        let _ = fs::remove_file(&self.temporary);
        unfinished().retain(|path| *path != self.temporary);
    }
}

fn closed() -> io::Error {
    io::Error::other("the file is complete")
}

/// Refuses a path at which there is a device, a pipe or a folder, also through a symbolic link: a renaming would put a
/// file in its place.
pub fn check_replaceable(target: &Path) -> io::Result<()> {
    match fs::metadata(target) {
        Ok(old) if !old.is_file() => {
            Err(io::Error::new(ErrorKind::InvalidInput, "it is a device, a pipe or a folder, and no file"))
        }
        _ => Ok(()),
    }
}

fn check_name(target: &Path) -> io::Result<()> {
    let last = target.as_os_str().as_encoded_bytes().last().map(|&byte| char::from(byte));
    if target.file_name().is_none() || last.is_some_and(std::path::is_separator) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is the name of a folder"));
    }
    match fs::symlink_metadata(target) {
        // For example a name that is too long.
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

/// Unlike a renaming, a hard link never replaces a file. Not every file system has them.
fn name_new(temporary: &Path, target: &Path) -> io::Result<()> {
    match fs::hard_link(temporary, target) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => match fs::symlink_metadata(target) {
            Ok(_) => Err(ErrorKind::AlreadyExists.into()),
            Err(_) => fs::rename(temporary, target),
        },
        linked => linked,
    }
}

/// Makes the file's name survive a power failure, on file systems that can.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    // A folder may be writable without being readable.
    let Ok(folder) = File::open(folder) else { return Ok(()) };
    match folder.sync_all() {
        Err(error) if !matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_has_its_name_once_it_is_complete_and_leaves_nothing_if_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        let mut file = NewFile::create(&target).unwrap();
        file.write_all(b"half").unwrap();
        assert!(!target.exists() && names(dir.path()).len() == 1);
        drop(file);
        assert!(names(dir.path()).is_empty());
        write(&target, b"whole", Existing::Refuse).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"whole");
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn of_two_files_with_one_name_the_second_is_refused_or_replaces_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        let mut files: Vec<_> = (0..3).map(|_| NewFile::create(&target).unwrap()).collect();
        for (file, content) in files.iter_mut().zip(["first", "second", "third"]) {
            file.write_all(content.as_bytes()).unwrap();
        }
        let mut commit = |existing| files.remove(0).commit(existing);
        commit(Existing::Refuse).unwrap();
        assert_eq!(commit(Existing::Refuse).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&target).unwrap(), b"first");
        commit(Existing::Replace).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"third");
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn a_failure_leaves_the_old_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        fs::create_dir(&target).unwrap();
        for existing in [Existing::Refuse, Existing::Replace] {
            write(&target, b"content", existing).unwrap_err();
        }
        assert_eq!(names(dir.path()), ["out"]);
        assert!(write(&dir.path().join("no/folder"), b"content", Existing::Replace).is_err());
    }

    #[test]
    fn names_that_no_file_can_have_are_refused_before_the_content_is_written() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["new/", "..", &"x".repeat(300)] {
            NewFile::create(&dir.path().join(name)).unwrap_err();
        }
        NewFile::create(Path::new("")).unwrap_err();
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn unfinished_files_are_removed_before_the_process_exits() {
        let dir = tempfile::tempdir().unwrap();
        let file = NewFile::create(&dir.path().join("out")).unwrap();
        // Not `remove_unfinished`, which would remove the files of other tests.
        let path = unfinished().iter().find(|path| path.starts_with(dir.path())).cloned();
        assert_eq!(path.as_ref(), Some(&file.temporary));
        drop(file);
        assert!(unfinished().iter().all(|path| !path.starts_with(dir.path())));
    }

    #[cfg(unix)]
    #[test]
    fn devices_are_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, link) = (dir.path().join("socket"), dir.path().join("link"));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        for target in [&socket, &link] {
            let error = write(target, b"content", Existing::Replace).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(!fs::metadata(target).unwrap().is_file());
        }
        assert_eq!(names(dir.path()), ["link", "socket"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed_and_permissions_are_those_of_new_files_or_of_the_replaced_one() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
        fs::write(at("other"), "other").unwrap();
        symlink("other", at("out")).unwrap();
        symlink("absent", at("dangling")).unwrap();
        for name in ["out", "dangling"] {
            let error = write(&at(name), b"new", Existing::Refuse).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        }
        write(&at("out"), b"new", Existing::Replace).unwrap();
        assert_eq!(
            (fs::read(at("out")).unwrap(), fs::read(at("other")).unwrap()),
            (b"new".into(), b"other".into())
        );
        assert!(!fs::symlink_metadata(at("out")).unwrap().is_symlink());
        assert_eq!(mode("out"), mode("other"), "the process's umask applies to both");
        fs::set_permissions(at("out"), PermissionsExt::from_mode(0o600)).unwrap();
        write(&at("out"), b"newer", Existing::Replace).unwrap();
        assert_eq!(mode("out"), 0o600);
        assert_eq!(names(dir.path()), ["dangling", "other", "out"]);
    }
}
