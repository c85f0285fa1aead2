//! How the weights of one row's products are read. Which way is faster depends on the chip (decision 19).

/// The order of a worker's reading, and how far ahead it asks. No bits depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// As weights lie, asking far ahead.
    Straight,
    /// At several places in turn, asking a little ahead at each: the processor asks for more of each by itself.
    Strips,
}

/// Places that [`Reading::Strips`] reads at.
pub(crate) const STREAMS: usize = 4;

impl Reading {
    /// The faster one on this chip, as far as it was measured.
    pub fn detect() -> Reading {
        #[cfg(target_arch = "x86_64")]
        if is_zen5_or_later() {
            return Reading::Straight;
        }
        Reading::Strips
    }

    /// How far ahead of their use weights are asked for, in bytes.
    #[inline(always)]
    pub(crate) const fn ahead(self) -> usize {
        match self {
            Reading::Straight => 8192,
            Reading::Strips => 2048,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn is_zen5_or_later() -> bool {
    use std::arch::x86_64::__cpuid;
    const ZEN5: u32 = 26;
    let (vendor, version) = (__cpuid(0), __cpuid(1).eax);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat();
    let family = (version >> 8 & 15) + (version >> 20 & 255);
    name == b"AuthenticAMD" && family >= ZEN5
}
