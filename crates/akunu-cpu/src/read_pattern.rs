//! The order in which the weights of one-row products are read. Which is fastest depends on the chip (decision 19).

/// The order in which a worker reads weights, and the prefetch distance. Results do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPattern {
    /// Streams that are read alternately: 1, or a multiple of four up to [`MOST_PLACES`].
    pub(crate) places: usize,
    /// The prefetch distance in bytes.
    pub(crate) ahead: usize,
}

pub(crate) const MOST_PLACES: usize = 8;

impl ReadPattern {
    /// Sequentially, with a long prefetch distance.
    pub const STRAIGHT: ReadPattern = ReadPattern { places: 1, ahead: 8 << 10 };
    /// Four streams close together.
    pub const STRIPS: ReadPattern = ReadPattern { places: 4, ahead: 2 << 10 };
    /// Eight streams with a short prefetch distance: the hardware prefetcher follows each of them.
    pub const MANY_STRIPS: ReadPattern = ReadPattern { places: 8, ahead: 512 };

    /// The fastest pattern on this chip, as far as measured.
    pub fn detect() -> ReadPattern {
        #[cfg(target_arch = "x86_64")]
        match vendor_and_family() {
            (name, ZEN5..) if name == b"AuthenticAMD" => return ReadPattern::STRAIGHT,
            (name, _) if name == b"GenuineIntel" => return ReadPattern::MANY_STRIPS,
            _ => {}
        }
        ReadPattern::STRIPS
    }
}

#[cfg(target_arch = "x86_64")]
const ZEN5: u32 = 26;

#[cfg(target_arch = "x86_64")]
fn vendor_and_family() -> (Vec<u8>, u32) {
    use std::arch::x86_64::__cpuid;
    // Miri does not have the instruction.
    if cfg!(miri) {
        return (Vec::new(), 0);
    }
    let (vendor, version) = (__cpuid(0), __cpuid(1).eax);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat();
    (name, (version >> 8 & 15) + (version >> 20 & 255))
}
