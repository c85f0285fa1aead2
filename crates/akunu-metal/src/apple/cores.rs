//! The number of GPU cores, from the I/O Registry, because Metal does not report it.

/// `None`: the system does not report it, as on iOS.
#[cfg(target_os = "macos")]
pub(super) fn gpu_cores() -> Option<u32> {
    use std::ffi::{CStr, c_char, c_void};
    use std::ptr;

    const CLASS: &CStr = c"AGXAccelerator";
    const PROPERTY: &CStr = c"gpu-core-count";
    const UTF8: u32 = 0x0800_0100;
    const SINT32: isize = 3;

    #[link(name = "IOKit", kind = "framework")]
    unsafe extern "C" {
        fn IOServiceMatching(name: *const c_char) -> *mut c_void;
        fn IOServiceGetMatchingService(port: u32, matching: *mut c_void) -> u32;
        fn IORegistryEntryCreateCFProperty(
            entry: u32,
            key: *const c_void,
            allocator: *const c_void,
            options: u32,
        ) -> *const c_void;
        fn IOObjectRelease(object: u32) -> i32;
    }
    #[link(name = "CoreFoundation", kind = "framework")]
    unsafe extern "C" {
        fn CFStringCreateWithCString(
            allocator: *const c_void,
            text: *const c_char,
            encoding: u32,
        ) -> *const c_void;
        fn CFGetTypeID(object: *const c_void) -> usize;
        fn CFNumberGetTypeID() -> usize;
        fn CFNumberGetValue(number: *const c_void, kind: isize, value: *mut c_void) -> u8;
        fn CFRelease(object: *const c_void);
    }

    // SAFETY: the names are NUL-terminated. IOServiceGetMatchingService consumes the dictionary, which may be null;
    // objects created here are released once and not used after that. CFNumberGetValue is called only for a CFNumber,
    // with room for the 32 bits of SINT32.
    unsafe {
        let service = IOServiceGetMatchingService(0, IOServiceMatching(CLASS.as_ptr()));
        if service == 0 {
            return None;
        }
        let key = CFStringCreateWithCString(ptr::null(), PROPERTY.as_ptr(), UTF8);
        let value = match key.is_null() {
            true => ptr::null(),
            false => IORegistryEntryCreateCFProperty(service, key, ptr::null(), 0),
        };
        let mut cores = 0i32;
        let told = !value.is_null()
            && CFGetTypeID(value) == CFNumberGetTypeID()
            && CFNumberGetValue(value, SINT32, (&raw mut cores).cast()) != 0;
        for object in [key, value].into_iter().filter(|object| !object.is_null()) {
            CFRelease(object);
        }
        IOObjectRelease(service);
        u32::try_from(cores).ok().filter(|&cores| told && cores > 0)
    }
}

#[cfg(not(target_os = "macos"))]
pub(super) fn gpu_cores() -> Option<u32> {
    None
}
