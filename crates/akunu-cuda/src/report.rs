//! What `akunu doctor` reports about CUDA.

use crate::CudaError;
use crate::blas::Library;
use crate::cache::Cache;
use crate::context::Card;
use crate::driver::Driver;
use crate::library::CudaFolders;
use crate::nvrtc::Nvrtc;

/// Facts as (name, value), in the order in which they are checked. The first failure ends the list, as nothing after
/// it would work; opening the device reports the failure itself.
pub fn report(folders: &CudaFolders) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let _ = gather(folders, &mut facts);
    facts
}

fn gather(folders: &CudaFolders, facts: &mut Vec<(&'static str, String)>) -> Result<(), CudaError> {
    let driver = Driver::get(folders)?;
    let (major, minor) = driver.version()?;
    facts.push(("cuda driver", format!("CUDA {major}.{minor} ({})", driver.file)));
    for number in 0..driver.cards()? {
        facts.push(("cuda card", describe(&Card::find(driver, number)?)));
    }
    let nvrtc = Nvrtc::get(folders, major)?;
    facts.push(("cuda nvrtc", format!("{}.{} ({})", nvrtc.version.0, nvrtc.version.1, nvrtc.file())));
    facts.push(("cuda cublaslt", blas(folders, major)));
    facts.push(("cuda nccl", nccl(folders)));
    facts.push(("cuda kernels", told(&Cache::new(folders.kernels.as_deref()))));
    Ok(())
}

/// Without it, prompts use our own kernels.
fn blas(folders: &CudaFolders, driver_major: i32) -> String {
    match Library::get(folders, driver_major) {
        Ok(library) => format!("{} ({})", library.version(), library.file()),
        Err(error) => format!("not used: {error}"),
    }
}

/// Without it, several processes cannot share out a model.
fn nccl(folders: &CudaFolders) -> String {
    match crate::nccl::Library::get(folders) {
        Ok(library) => format!("{} ({})", library.version(), library.file()),
        Err(error) => format!("not used: {error}"),
    }
}

fn describe(card: &Card) -> String {
    const MIB: u64 = 1 << 20;
    format!(
        "{}: compute capability {}.{}, {} processors, {} MiB, {} MiB of L2",
        card.name,
        card.compute.0,
        card.compute.1,
        card.processors,
        card.memory_bytes / MIB,
        card.l2_bytes / MIB
    )
}

/// Where compiled kernels are cached, and whether that works.
fn told(cache: &Cache) -> String {
    let Some(folder) = cache.folder() else {
        return "not kept: neither AKUNU_CACHE nor HOME says where; each start compiles them".into();
    };
    match cache.check() {
        Ok(()) => format!("kept in {}", folder.display()),
        Err(error) => format!("not kept: {} cannot be written: {error}", folder.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_go_as_far_as_there_is_something() {
        let folders = CudaFolders::default();
        let names: Vec<&str> = report(&folders).into_iter().map(|(name, _)| name).collect();
        let all = crate::probe(&folders, 0);
        assert_eq!(names.is_empty(), Driver::get(&folders).is_err(), "{names:?}");
        assert_eq!(names.last() == Some(&"cuda kernels"), all.is_ok(), "{names:?} {all:?}");
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_told() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("file"), "").unwrap();
        let told = super::told(&Cache::at(&home.path().join("file")));
        assert!(told.starts_with("not kept: ") && told.contains("file"), "{told}");
        assert!(super::told(&Cache::at(home.path())).starts_with("kept in "));
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
    }
}
