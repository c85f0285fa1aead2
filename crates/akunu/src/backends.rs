//! Settings of the backends, and the environment variables for them. This module does not read the environment itself.

use std::ffi::OsString;
use std::path::PathBuf;

use akunu_cpu::{Isa, IsaError};

use crate::devices::Hosts;

/// Settings of the backends, each used when its backend is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendOptions {
    /// The name of the CPU's instruction set ([`Isa::name`]); `None`: the best available. Checked when the CPU device is opened.
    pub isa: Option<String>,
    /// Devices that share out a model between them, if there are several.
    pub ranks: Option<usize>,
    /// Devices that share out the layers of a model between them, if there are several, instead of each layer.
    pub stages: Option<usize>,
    /// Processes that share out a model between them, each with one device, of which this one is the leader.
    pub hosts: Option<Hosts>,
    /// The cards of the CUDA device by their numbers, one for each rank or stage; empty: the first ones.
    pub cards: Vec<u32>,
    #[cfg(not(target_vendor = "apple"))]
    pub cuda: akunu_cuda::CudaOptions,
    #[cfg(target_vendor = "apple")]
    pub metal: akunu_metal::MetalOptions,
}

impl BackendOptions {
    /// Reads the options from variables: `AKUNU_ISA` names an instruction set, `AKUNU_CUDA` and `AKUNU_METAL` have options of those
    /// devices, `AKUNU_CUDA_PATH`, `CUDA_PATH` and `CUDA_HOME` are folders of NVIDIA's libraries, and `AKUNU_CACHE` is the folder for
    /// compiled GPU kernels. An empty variable counts as unset.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> BackendOptions {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        // Converted lossily, so that text that is not Unicode is refused as an unknown name.
        let text = |name: &str| get(name).map(|value| value.to_string_lossy().into_owned());
        BackendOptions {
            isa: text("AKUNU_ISA"),
            ranks: None,
            stages: None,
            hosts: None,
            cards: Vec::new(),
            #[cfg(not(target_vendor = "apple"))]
            cuda: akunu_cuda::CudaOptions {
                folders: akunu_cuda::CudaFolders {
                    libraries: get("AKUNU_CUDA_PATH")
                        .map(|value| std::env::split_paths(&value).collect())
                        .unwrap_or_default(),
                    toolkits: ["CUDA_PATH", "CUDA_HOME"]
                        .into_iter()
                        .filter_map(get)
                        .map(PathBuf::from)
                        .collect(),
                    kernels: kernel_folder("cuda", get),
                },
                ..akunu_cuda::CudaOptions::from_words(&text("AKUNU_CUDA").unwrap_or_default())
            },
            #[cfg(target_vendor = "apple")]
            metal: akunu_metal::MetalOptions {
                pipelines: kernel_folder("metal", get),
                ..akunu_metal::MetalOptions::from_words(&text("AKUNU_METAL").unwrap_or_default())
            },
        }
    }

    /// The instruction set of the CPU device: the named one, or else the best available.
    pub fn cpu_isa(&self) -> Result<Isa, IsaError> {
        match &self.isa {
            Some(name) => name.parse::<Isa>()?.checked(),
            None => Ok(Isa::best()),
        }
    }
}

/// The folder for compiled kernels: `AKUNU_CACHE`, or else the user's cache folder. `None` if neither is known.
fn kernel_folder(backend: &str, get: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| get(name).map(PathBuf::from);
    let caches = || {
        if cfg!(target_vendor = "apple") {
            return Some(path("HOME")?.join("Library/Caches"));
        }
        let own = path(if cfg!(windows) { "LOCALAPPDATA" } else { "XDG_CACHE_HOME" });
        own.or_else(|| Some(path("HOME").or_else(|| path("USERPROFILE"))?.join(".cache")))
    };
    let folder = path("AKUNU_CACHE").or_else(|| Some(caches()?.join("akunu")));
    Some(folder?.join(backend))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn from(variables: &[(&str, &str)]) -> BackendOptions {
        BackendOptions::from_variables(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn no_variables_are_the_default_options() {
        assert_eq!(from(&[]), BackendOptions::default());
        let empty = ["AKUNU_ISA", "AKUNU_CUDA", "AKUNU_METAL", "AKUNU_CUDA_PATH", "AKUNU_CACHE", "HOME"];
        assert_eq!(from(&empty.map(|name| (name, ""))), BackendOptions::default());
    }

    #[test]
    fn akunu_isa_picks_the_instruction_set() {
        let isa = |name: &str| from(&[("AKUNU_ISA", name)]).cpu_isa();
        assert_eq!(from(&[]).cpu_isa(), Ok(Isa::best()));
        assert_eq!(isa(""), Ok(Isa::best()));
        assert_eq!(isa("scalar"), Ok(Isa::Scalar));
        assert_eq!(isa("Scalar"), Ok(Isa::Scalar));
        assert_eq!(isa(Isa::best().name()), Ok(Isa::best()));
        assert!(isa("sse9").unwrap_err().to_string().contains("sse9"));
        let missing = Isa::ALL.into_iter().filter(|isa| !isa.is_available());
        for asked in missing {
            assert_eq!(isa(asked.name()), Err(IsaError::Unavailable { asked, best: Isa::best() }));
        }
    }

    #[test]
    #[cfg(not(target_vendor = "apple"))]
    fn akunu_cuda_lists_options_of_the_device() {
        use akunu_cuda::CudaOptions;
        let cuda = |words: &str| from(&[("AKUNU_CUDA", words)]).cuda;
        let serial = CudaOptions { linked: false, ..CudaOptions::default() };
        assert_eq!(cuda("serial"), serial);
        assert_eq!(cuda("serial, checked"), CudaOptions { checked: true, ..serial });
        let plain = CudaOptions { special: false, blas: false, blas_timed: true, ..CudaOptions::default() };
        assert_eq!(cuda("plain,noblas,blastimed"), plain);
    }

    #[test]
    #[cfg(unix)]
    #[cfg(not(target_vendor = "apple"))]
    fn library_folders_have_the_order_of_their_variables() {
        let folders =
            from(&[("CUDA_HOME", "/h"), ("CUDA_PATH", "/p"), ("AKUNU_CUDA_PATH", "/a:/b")]).cuda.folders;
        assert_eq!(folders.libraries, [Path::new("/a"), Path::new("/b")]);
        assert_eq!(folders.toolkits, [Path::new("/p"), Path::new("/h")]);
    }

    #[test]
    fn the_kernel_cache_is_in_the_users_cache_folder_by_default() {
        let folder = |variables: &[(&str, &str)]| {
            let found =
                |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            kernel_folder("cuda", found)
        };
        assert_eq!(folder(&[]), None);
        let own = if cfg!(target_vendor = "apple") { "/h/Library/Caches" } else { "/h/.cache" };
        assert_eq!(folder(&[("HOME", "/h")]).unwrap(), Path::new(own).join("akunu/cuda"));
        assert_eq!(folder(&[("HOME", "/h"), ("AKUNU_CACHE", "/a")]).unwrap(), Path::new("/a/cuda"));
        if cfg!(all(unix, not(target_vendor = "apple"))) {
            let found = folder(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]).unwrap();
            assert_eq!(found, Path::new("/x/akunu/cuda"));
        }
    }
}
