//! Host memory that can be viewed as f32: owned words, or bytes used in place.

use akunu_format::Region;

#[derive(Debug)]
pub(super) enum Memory {
    Owned { words: Vec<u64>, bytes: usize },
    Imported { region: Region, offset: usize, bytes: usize },
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::Owned { words: Vec::new(), bytes: 0 }
    }
}

impl Memory {
    pub(super) fn zeroed(bytes: u64) -> Option<Memory> {
        let bytes = usize::try_from(bytes).ok()?;
        let mut words = Vec::new();
        words.try_reserve_exact(bytes.div_ceil(8)).ok()?;
        words.resize(bytes.div_ceil(8), 0);
        Some(Memory::Owned { words, bytes })
    }

    pub(super) fn imported(region: Region, offset: usize, bytes: usize) -> Memory {
        Memory::Imported { region, offset, bytes }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Memory::Owned { words, bytes } => &bytemuck::cast_slice(words)[..*bytes],
            Memory::Imported { region, offset, bytes } => &region.bytes()[*offset..*offset + *bytes],
        }
    }

    /// Imported memory is read-only: it is copied if it must be written (for example by tests with poisoned input).
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        if let Memory::Imported { .. } = self {
            let source = self.bytes();
            let mut words = vec![0u64; source.len().div_ceil(8)];
            bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..source.len()].copy_from_slice(source);
            *self = Memory::Owned { bytes: source.len(), words };
        }
        match self {
            Memory::Owned { words, bytes } => &mut bytemuck::cast_slice_mut(words)[..*bytes],
            Memory::Imported { .. } => &mut [],
        }
    }
}
