//! Compiled pipelines on disk: one binary archive per GPU and system version, as others would reject it.
//!
//! It is only a cache. If it is missing, unreadable or cannot be written, pipelines are compiled again.

use std::path::{Path, PathBuf};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSProcessInfo, NSString, NSURL};
use objc2_metal::{MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLComputePipelineDescriptor, MTLDevice};
use sha2::{Digest, Sha256};

#[derive(Debug)]
pub(super) struct Archive {
    archive: Option<Retained<ProtocolObject<dyn MTLBinaryArchive>>>,
    file: Option<PathBuf>,
    /// It has pipelines that the file does not have.
    grew: bool,
}

fn url(path: &Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&NSString::from_str(&path.to_string_lossy()))
}

impl Archive {
    pub(super) fn open(device: &ProtocolObject<dyn MTLDevice>, folder: Option<&Path>) -> Archive {
        let system = NSProcessInfo::processInfo().operatingSystemVersionString();
        let key = Sha256::digest(format!("{}\n{system}\n{}", device.name(), env!("CARGO_PKG_VERSION")));
        let key: String = key.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let file = folder.map(|folder| folder.join(format!("{key}.archive")));
        let kept = file.as_ref().filter(|file| file.is_file());
        let open = |file: Option<&PathBuf>| {
            let descriptor = MTLBinaryArchiveDescriptor::new();
            descriptor.setUrl(file.map(|file| url(file)).as_deref());
            device.newBinaryArchiveWithDescriptor_error(&descriptor).ok()
        };
        let archive = kept.and_then(|file| open(Some(file))).or_else(|| open(None));
        Archive { archive, file, grew: false }
    }

    pub(super) fn archive(&self) -> Option<&Retained<ProtocolObject<dyn MTLBinaryArchive>>> {
        self.archive.as_ref()
    }

    pub(super) fn add(&mut self, pipeline: &MTLComputePipelineDescriptor) {
        if let Some(archive) = &self.archive {
            self.grew |= archive.addComputePipelineFunctionsWithDescriptor_error(pipeline).is_ok();
        }
    }

    /// Writes it to disk if it has new pipelines. Readers see a complete file or none.
    pub(super) fn keep(&mut self) {
        let (Some(archive), Some(file), true) = (&self.archive, &self.file, self.grew) else { return };
        self.grew = false;
        let part = file.with_extension(format!("{}.part", std::process::id()));
        let Some(folder) = file.parent() else { return };
        let written =
            std::fs::create_dir_all(folder).is_ok() && archive.serializeToURL_error(&url(&part)).is_ok();
        if !written || std::fs::rename(&part, file).is_err() {
            // The file may not exist.
            let _ = std::fs::remove_file(&part);
        }
    }
}
