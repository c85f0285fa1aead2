//! How the weights of one row's products are read. Which way is faster depends on the chip (decision 19).

/// The order of a worker's reading, and how far ahead it asks. No bits depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Where it reads in turn: 1, or a multiple of four up to [`MOST_PLACES`].
    pub(crate) places: usize,
    /// Bytes from what is multiplied to what is asked for.
    pub(crate) ahead: usize,
}

pub(crate) const MOST_PLACES: usize = 8;

impl Reading {
    /// As weights lie, asking far ahead.
    pub const STRAIGHT: Reading = Reading { places: 1, ahead: 8 << 10 };
    /// At some places in turn, close together.
    pub const STRIPS: Reading = Reading { places: 4, ahead: 2 << 10 };
    /// At many places in turn, asking a little ahead: the processor asks for more of each by itself.
    pub const MANY_STRIPS: Reading = Reading { places: 8, ahead: 512 };

    /// The fastest on this chip, as far as they were measured.
    pub fn detect() -> Reading {
        #[cfg(target_arch = "x86_64")]
        match vendor_and_family() {
            (name, ZEN5..) if name == b"AuthenticAMD" => return Reading::STRAIGHT,
            (name, _) if name == b"GenuineIntel" => return Reading::MANY_STRIPS,
            _ => {}
        }
        Reading::STRIPS
    }
}

#[cfg(target_arch = "x86_64")]
const ZEN5: u32 = 26;

#[cfg(target_arch = "x86_64")]
fn vendor_and_family() -> (Vec<u8>, u32) {
    use std::arch::x86_64::__cpuid;
    let (vendor, version) = (__cpuid(0), __cpuid(1).eax);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat();
    (name, (version >> 8 & 15) + (version >> 20 & 255))
}
