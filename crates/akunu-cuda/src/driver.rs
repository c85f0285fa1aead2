//! The functions of the CUDA driver API that are used, loaded on first use. Names and signatures are those of
//! `cuda.h`; all exist since CUDA 12.0.

#![allow(non_snake_case)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::CudaError;
use crate::error::NO_DEVICE;
use crate::library::{CudaFolders, Search};

/// Declares a table of functions and how it is loaded from a library.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident, $advice:literal, $($name:ident = $symbol:literal ($($arg:ty),*);)*) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $table {
            /// The library's file.
            pub(crate) file: String,
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) -> std::ffi::c_int,)*
        }

        impl $table {
            pub(crate) fn load(library: libloading::Library, file: String) -> Result<$table, crate::CudaError> {
                let missing = |symbol| crate::CudaError::MissingFunction {
                    library: file.clone(), symbol, advice: $advice
                };
                $(
                    // SAFETY: the symbol has this type in the library's header, and the library is never unloaded.
                    let $name = unsafe {
                        *library
                            .get::<unsafe extern "C" fn($($arg),*) -> std::ffi::c_int>($symbol.as_bytes())
                            .map_err(|_| missing($symbol))?
                    };
                )*
                std::mem::forget(library);
                Ok($table { file, $($name),* })
            }
        }
    };
}
pub(crate) use functions;

pub(crate) type Address = u64;
pub(crate) type Handle = *mut c_void;

functions! {
    Driver, "install a newer driver (525 or later)",
    cuInit = "cuInit" (c_uint);
    cuDriverGetVersion = "cuDriverGetVersion" (*mut c_int);
    cuGetErrorName = "cuGetErrorName" (c_int, *mut *const c_char);
    cuGetErrorString = "cuGetErrorString" (c_int, *mut *const c_char);
    cuDeviceGetCount = "cuDeviceGetCount" (*mut c_int);
    cuDeviceGet = "cuDeviceGet" (*mut c_int, c_int);
    cuDeviceGetName = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    cuDeviceGetAttribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    cuDeviceTotalMem = "cuDeviceTotalMem_v2" (*mut usize, c_int);
    cuDevicePrimaryCtxRetain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    cuDevicePrimaryCtxRelease = "cuDevicePrimaryCtxRelease_v2" (c_int);
    cuCtxSetCurrent = "cuCtxSetCurrent" (Handle);
    cuDeviceCanAccessPeer = "cuDeviceCanAccessPeer" (*mut c_int, c_int, c_int);
    cuCtxEnablePeerAccess = "cuCtxEnablePeerAccess" (Handle, c_uint);
    cuMemGetInfo = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    cuMemAlloc = "cuMemAlloc_v2" (*mut Address, usize);
    cuMemFree = "cuMemFree_v2" (Address);
    cuMemAllocHost = "cuMemAllocHost_v2" (*mut *mut c_void, usize);
    cuMemFreeHost = "cuMemFreeHost" (*mut c_void);
    cuMemcpyHtoDAsync = "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Handle);
    cuMemcpyDtoHAsync = "cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Handle);
    cuMemcpyDtoDAsync = "cuMemcpyDtoDAsync_v2" (Address, Address, usize, Handle);
    cuMemsetD8Async = "cuMemsetD8Async" (Address, u8, usize, Handle);
    cuStreamCreate = "cuStreamCreate" (*mut Handle, c_uint);
    cuStreamDestroy = "cuStreamDestroy_v2" (Handle);
    cuStreamSynchronize = "cuStreamSynchronize" (Handle);
    cuStreamBeginCapture = "cuStreamBeginCapture_v2" (Handle, c_int);
    cuStreamEndCapture = "cuStreamEndCapture" (Handle, *mut Handle);
    cuGraphInstantiateWithFlags = "cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
    cuGraphUpload = "cuGraphUpload" (Handle, Handle);
    cuGraphLaunch = "cuGraphLaunch" (Handle, Handle);
    cuGraphDestroy = "cuGraphDestroy" (Handle);
    cuGraphExecDestroy = "cuGraphExecDestroy" (Handle);
    cuEventCreate = "cuEventCreate" (*mut Handle, c_uint);
    cuEventRecordWithFlags = "cuEventRecordWithFlags" (Handle, Handle, c_uint);
    cuEventSynchronize = "cuEventSynchronize" (Handle);
    cuStreamWaitEvent = "cuStreamWaitEvent" (Handle, Handle, c_uint);
    cuEventElapsedTime = "cuEventElapsedTime" (*mut f32, Handle, Handle);
    cuEventDestroy = "cuEventDestroy_v2" (Handle);
    cuModuleLoadData = "cuModuleLoadData" (*mut Handle, *const c_void);
    cuModuleUnload = "cuModuleUnload" (Handle);
    cuModuleGetFunction = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    cuFuncGetAttribute = "cuFuncGetAttribute" (*mut c_int, c_int, Handle);
    cuFuncSetAttribute = "cuFuncSetAttribute" (Handle, c_int, c_int);
    cuLaunchKernelEx = "cuLaunchKernelEx" (*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: Handle,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) attribute_count: c_uint,
}

/// `CUlaunchAttribute`: an id, padding, and a union of 64 bytes, of which a flag takes the first four.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchAttribute {
    pub(crate) id: c_int,
    pub(crate) padding: c_int,
    pub(crate) flag: c_int,
    pub(crate) rest: [c_int; 15],
}

const _: () = assert!(size_of::<LaunchAttribute>() == 72);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<LaunchConfig>() == 56);

pub(crate) const PROGRAMMATIC_STREAM_SERIALIZATION: c_int = 6;
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
pub(crate) const CAPTURE_THREAD_LOCAL: c_int = 1;
pub(crate) const EVENT_RECORD_EXTERNAL: c_uint = 1;
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(crate) const FUNCTION_MAX_THREADS: c_int = 0;
pub(crate) const FUNCTION_MAX_DYNAMIC_SHARED: c_int = 8;
pub(crate) const DEVICE_PROCESSORS: c_int = 16;
pub(crate) const DEVICE_L2_BYTES: c_int = 38;
pub(crate) const DEVICE_MAJOR: c_int = 75;
pub(crate) const DEVICE_MINOR: c_int = 76;
pub(crate) const DEVICE_SHARED_BYTES: c_int = 97;

/// Calls a driver function; an error names it. To be used in an `unsafe` block.
macro_rules! call {
    ($driver:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let driver: &crate::driver::Driver = $driver;
        let code = (driver.$name)($($arg),*);
        driver.check(stringify!($name), code)
    }};
}
pub(crate) use call;

impl Driver {
    /// Loads and initialises the driver, once per process.
    pub(crate) fn get(folders: &CudaFolders) -> Result<&'static Driver, CudaError> {
        static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
        let open = || {
            let (library, file) = Search::with(folders).driver()?;
            let driver = Driver::load(library, file)?;
            // SAFETY: `cuInit` takes flags, of which only 0 is defined.
            match unsafe { call!(&driver, cuInit(0)) } {
                Err(CudaError::Call { code: NO_DEVICE, .. }) => Err(CudaError::NoCard),
                other => other.map(|()| driver),
            }
        };
        DRIVER.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    pub(crate) fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let (name, message) = (self.text(self.cuGetErrorName, code), self.text(self.cuGetErrorString, code));
        Err(CudaError::Call { call, code, name, message })
    }

    fn text(&self, get: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int, code: c_int) -> String {
        let mut text = std::ptr::null();
        // SAFETY: the call writes a pointer to a static NUL-terminated string of the library, or null.
        unsafe {
            get(code, &mut text);
            if text.is_null() {
                "unknown".into()
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        }
    }

    /// The newest CUDA version that the driver supports, as (13, 0).
    pub(crate) fn version(&self) -> Result<(i32, i32), CudaError> {
        let mut version = 0;
        // SAFETY: the call writes one number to the given place.
        unsafe { call!(self, cuDriverGetVersion(&mut version))? };
        Ok((version / 1000, version % 1000 / 10))
    }

    pub(crate) fn cards(&self) -> Result<i32, CudaError> {
        let mut count = 0;
        // SAFETY: the call writes one number to the given place.
        unsafe { call!(self, cuDeviceGetCount(&mut count))? };
        Ok(count)
    }
}
