//! Finds the driver's library, NVRTC, cuBLASLt and NCCL on this machine.

use std::path::{Path, PathBuf};

use libloading::Library;

use crate::CudaError;

pub(crate) const DRIVER: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
pub(crate) const NVRTC: &str = "NVRTC";
pub(crate) const BLAS: &str = "cuBLASLt";
pub(crate) const NCCL: &str = "NCCL";

const INSTALL_DRIVER: &str = "install NVIDIA's driver, or use --device cpu";
const INSTALL_NVRTC: &str = "install it (pip install nvidia-cuda-nvrtc, or CUDA's toolkit), or say where it is: AKUNU_CUDA_PATH=a folder with it, a \
    toolkit, or a Python's site-packages";

const INSTALL_BLAS: &str = "install it (pip install nvidia-cublas, or CUDA's toolkit), or say where it is: AKUNU_CUDA_PATH=a folder with it, a \
    toolkit, or a Python's site-packages";

const INSTALL_NCCL: &str = "install it (pip install nvidia-nccl-cu13), or say where it is: AKUNU_CUDA_PATH=a folder with it, or a \
    Python's site-packages";

/// Relative to a toolkit's folder, or a Python's site-packages.
const FOLDERS: [&str; 9] = [
    "",
    "lib64",
    "lib",
    "bin",
    "bin/x64",
    "nvidia/cu13/lib",
    "nvidia/cuda_nvrtc/lib",
    "nvidia/cublas/lib",
    "nvidia/nccl/lib",
];

/// Folders that the CUDA device uses. The libraries are loaded once per process, so the folders of the first call
/// decide which ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaFolders {
    /// Searched for libraries before the system's default places: a folder with a library in it, a toolkit, or a
    /// Python's site-packages.
    pub libraries: Vec<PathBuf>,
    /// Toolkits, searched after the system's default places.
    pub toolkits: Vec<PathBuf>,
    /// The cache of compiled kernels. With `None`, every start compiles them.
    pub kernels: Option<PathBuf>,
}

/// Folders to search before and after the system's default places.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    pub(crate) before: Vec<PathBuf>,
    /// The system's default places: `LD_LIBRARY_PATH`, `ld.so.conf`, `PATH`.
    pub(crate) system: bool,
    pub(crate) after: Vec<PathBuf>,
}

impl Search {
    /// The given folders, the system's default places, and the usual places of toolkits.
    pub(crate) fn with(folders: &CudaFolders) -> Search {
        let mut after = folders.toolkits.clone();
        if cfg!(unix) {
            after.extend(["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from));
            after.extend(toolkits(Path::new("/usr/local")));
            after.extend(["/usr/local/nvidia", "/usr/lib/wsl"].map(PathBuf::from));
        }
        Search { before: folders.libraries.clone(), system: true, after }
    }

    /// The first of `names` that loads.
    fn open(
        &self,
        library: &'static str,
        names: &[&str],
        advice: &'static str,
    ) -> Result<(Library, String), CudaError> {
        let files = |roots: &[PathBuf]| -> Vec<PathBuf> {
            let places = roots.iter().flat_map(|root| FOLDERS.map(|folder| root.join(folder)));
            places.flat_map(|place| names.iter().map(move |name| place.join(name))).collect()
        };
        let existing = |roots: &[PathBuf]| files(roots).into_iter().filter(|file| file.is_file());
        let mut candidates: Vec<PathBuf> = existing(&self.before).collect();
        if self.system {
            candidates.extend(names.iter().map(PathBuf::from));
        }
        candidates.extend(existing(&self.after));
        let mut looked = Vec::new();
        for candidate in candidates {
            // SAFETY: loading runs the library's initialisers. They are NVIDIA's, which is trusted like the driver
            // itself.
            match unsafe { Library::new(&candidate) } {
                Ok(loaded) => return Ok((loaded, candidate.display().to_string())),
                Err(error) => looked.push(reason(&candidate, &error)),
            }
        }
        for root in self.before.iter().chain(&self.after).filter(|root| root.is_dir()) {
            looked.push(format!("not in {}", root.display()));
        }
        Err(CudaError::MissingLibrary { library, looked, advice })
    }

    pub(crate) fn driver(&self) -> Result<(Library, String), CudaError> {
        self.open(DRIVER, &[DRIVER], INSTALL_DRIVER)
    }

    /// The one of the driver's own CUDA version first: an older driver may refuse what a newer one compiles.
    pub(crate) fn nvrtc(&self, driver_major: i32) -> Result<(Library, String), CudaError> {
        let names = match cfg!(windows) {
            true => ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"],
            false => ["libnvrtc.so.13", "libnvrtc.so.12"],
        };
        self.open(NVRTC, &of_driver(names, driver_major), INSTALL_NVRTC)
    }

    /// As [`Search::nvrtc`].
    pub(crate) fn blas(&self, driver_major: i32) -> Result<(Library, String), CudaError> {
        let names = match cfg!(windows) {
            true => ["cublasLt64_13.dll", "cublasLt64_12.dll"],
            false => ["libcublasLt.so.13", "libcublasLt.so.12"],
        };
        self.open(BLAS, &of_driver(names, driver_major), INSTALL_BLAS)
    }

    /// There is none for Windows.
    pub(crate) fn nccl(&self) -> Result<(Library, String), CudaError> {
        self.open(NCCL, &["libnccl.so.2"], INSTALL_NCCL)
    }
}

/// The names for CUDA 13 and 12, the driver's version first.
fn of_driver(mut names: [&'static str; 2], driver_major: i32) -> [&'static str; 2] {
    if driver_major < 13 {
        names.reverse();
    }
    names
}

/// The system's message, which names the file, or ours.
fn reason(file: &Path, error: &libloading::Error) -> String {
    match std::error::Error::source(error).map(|source| source.to_string()) {
        Some(reason) if reason.contains(&file.display().to_string()) => reason,
        reason => format!("{}: {}", file.display(), reason.unwrap_or_else(|| error.to_string())),
    }
}

/// `cuda-13.0`, `cuda-12.4`, …, the newest first, judged by their names.
fn toolkits(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_toolkit =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cuda-"));
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_toolkit).collect();
    found.sort();
    found.reverse();
    found
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The search used by tests of installed libraries. `AKUNU_CUDA_PATH` names folders, as it does for users.
    pub(crate) fn search() -> Search {
        let libraries = std::env::var_os("AKUNU_CUDA_PATH").unwrap_or_default();
        let libraries = std::env::split_paths(&libraries).filter(|folder| !folder.as_os_str().is_empty());
        Search::with(&CudaFolders { libraries: libraries.collect(), ..CudaFolders::default() })
    }

    fn only(folder: &Path) -> Search {
        Search { before: vec![folder.to_path_buf()], system: false, after: Vec::new() }
    }

    #[test]
    fn a_missing_library_says_where_it_was_looked_for_and_what_to_install() {
        let empty = tempfile::tempdir().unwrap();
        let text = only(empty.path()).driver().unwrap_err().to_string();
        assert!(text.contains(DRIVER) && text.contains(&empty.path().display().to_string()), "{text}");
        assert!(text.ends_with(INSTALL_DRIVER), "{text}");
        let text = only(empty.path()).nvrtc(13).unwrap_err().to_string();
        assert!(text.contains("AKUNU_CUDA_PATH"), "{text}");
        let text = only(empty.path()).blas(13).unwrap_err().to_string();
        assert!(text.starts_with("cuBLASLt was not found") && text.contains("nvidia-cublas"), "{text}");
    }

    #[test]
    fn only_a_missing_driver_means_that_nobody_expects_cuda() {
        let empty = tempfile::tempdir().unwrap();
        assert!(only(empty.path()).driver().unwrap_err().is_absence());
        assert!(!only(empty.path()).nvrtc(12).unwrap_err().is_absence());
    }

    #[test]
    fn a_file_that_is_no_library_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lib64")).unwrap();
        let file = folder.path().join("lib64").join(DRIVER);
        std::fs::write(&file, "no library").unwrap();
        let text = only(folder.path()).driver().unwrap_err().to_string();
        assert!(text.contains(&file.display().to_string()), "{text}");
    }
}
