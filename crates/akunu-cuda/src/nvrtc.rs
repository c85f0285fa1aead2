//! NVRTC: compiles source text to code for one architecture. Needs no card.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::CudaError;
use crate::driver::functions;
use crate::library::{CudaFolders, Search};

type Program = *mut c_void;

functions! {
    Functions, "install CUDA 12 or later",
    version = "nvrtcVersion" (*mut c_int, *mut c_int);
    supported_count = "nvrtcGetNumSupportedArchs" (*mut c_int);
    supported = "nvrtcGetSupportedArchs" (*mut c_int);
    create = "nvrtcCreateProgram" (
        *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    );
    destroy = "nvrtcDestroyProgram" (*mut Program);
    compile = "nvrtcCompileProgram" (Program, c_int, *const *const c_char);
    log_size = "nvrtcGetProgramLogSize" (Program, *mut usize);
    log = "nvrtcGetProgramLog" (Program, *mut c_char);
    cubin_size = "nvrtcGetCUBINSize" (Program, *mut usize);
    cubin = "nvrtcGetCUBIN" (Program, *mut c_char);
}

#[derive(Debug)]
pub(crate) struct Nvrtc {
    functions: Functions,
    pub(crate) version: (i32, i32),
    /// 80, 90, …, ascending.
    supported: Vec<i32>,
}

impl Nvrtc {
    /// Loads it, once per process. `driver_major` as of [`Search::nvrtc`].
    pub(crate) fn get(folders: &CudaFolders, driver_major: i32) -> Result<&'static Nvrtc, CudaError> {
        static NVRTC: OnceLock<Result<Nvrtc, CudaError>> = OnceLock::new();
        let open = || Nvrtc::open(&Search::with(folders), driver_major);
        NVRTC.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    pub(crate) fn open(search: &Search, driver_major: i32) -> Result<Nvrtc, CudaError> {
        let (library, file) = search.nvrtc(driver_major)?;
        let functions = Functions::load(library, file)?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: the calls write one number each, the last as many as the call before it returned, which the array
        // has room for.
        let supported = unsafe {
            check("nvrtcVersion", (functions.version)(&mut major, &mut minor))?;
            check("nvrtcGetNumSupportedArchs", (functions.supported_count)(&mut count))?;
            let mut supported = vec![0; usize::try_from(count).unwrap_or(0)];
            check("nvrtcGetSupportedArchs", (functions.supported)(supported.as_mut_ptr()))?;
            supported
        };
        Ok(Nvrtc { functions, version: (major, minor), supported })
    }

    pub(crate) fn file(&self) -> &str {
        &self.functions.file
    }

    /// The architecture to compile for: `sm_80`, `sm_90a`. From 9.0 on the `a` enables features that only this
    /// architecture has, which has no disadvantage, as code is compiled for the card in use.
    pub(crate) fn architecture(&self, (major, minor): (i32, i32)) -> Result<String, CudaError> {
        let number = 10 * major + minor;
        if !self.supported.contains(&number) {
            let (major, minor) = self.version;
            return Err(CudaError::Architecture { architecture: number.unsigned_abs(), major, minor });
        }
        Ok(format!("sm_{number}{}", if major >= 9 { "a" } else { "" }))
    }

    /// Code for one architecture. May be called from several threads.
    pub(crate) fn compile(&self, name: &str, text: &str, architecture: &str) -> Result<Vec<u8>, CudaError> {
        let failed = |log: String| CudaError::Compile {
            function: name.to_string(),
            architecture: architecture.to_string(),
            log,
        };
        let c_string =
            |text: &str| CString::new(text).map_err(|_| failed("there is a zero byte in it".into()));
        let (source, title) = (c_string(text)?, c_string(&format!("{name}.cu"))?);
        let target = c_string(&format!("--gpu-architecture={architecture}"))?;
        let options = [target.as_ptr()];
        let mut program = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: both strings are NUL-terminated, and the number of headers is 0.
        let created =
            unsafe { (self.functions.create)(&mut program, source.as_ptr(), title.as_ptr(), 0, none, none) };
        check("nvrtcCreateProgram", created)?;
        let program = Owned { program, functions: &self.functions };
        // SAFETY: the array has the given number of NUL-terminated options.
        let compiled =
            unsafe { (self.functions.compile)(program.program, options.len() as c_int, options.as_ptr()) };
        if compiled != 0 {
            let log = program.log().unwrap_or_else(|error| error.to_string());
            return Err(failed(format!("{} ({compiled})\n{log}", message(compiled))));
        }
        program.cubin()
    }
}

/// A program, destroyed on drop.
struct Owned<'a> {
    program: Program,
    functions: &'a Functions,
}

impl Owned<'_> {
    fn log(&self) -> Result<String, CudaError> {
        let mut size = 0;
        // SAFETY: the program is valid, and the call writes one number.
        check("nvrtcGetProgramLogSize", unsafe { (self.functions.log_size)(self.program, &mut size) })?;
        let mut log = vec![0u8; size + 1];
        // SAFETY: the buffer has the `size` bytes that the call writes, NUL included.
        check("nvrtcGetProgramLog", unsafe { (self.functions.log)(self.program, log.as_mut_ptr().cast()) })?;
        let text = CStr::from_bytes_until_nul(&log).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>, CudaError> {
        let mut size = 0;
        // SAFETY: the program is valid, and the call writes one number.
        check("nvrtcGetCUBINSize", unsafe { (self.functions.cubin_size)(self.program, &mut size) })?;
        let mut cubin = vec![0u8; size];
        // SAFETY: the buffer has the `size` bytes that the call writes.
        check("nvrtcGetCUBIN", unsafe { (self.functions.cubin)(self.program, cubin.as_mut_ptr().cast()) })?;
        Ok(cubin)
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was created once and is destroyed once.
        unsafe { (self.functions.destroy)(&mut self.program) };
    }
}

fn check(call: &'static str, code: c_int) -> Result<(), CudaError> {
    match code {
        0 => Ok(()),
        code => Err(CudaError::Nvrtc { call, code, message: message(code).to_string() }),
    }
}

fn message(code: c_int) -> &'static str {
    match code {
        1 => "out of memory",
        2 => "the program could not be created",
        3 => "an invalid input",
        4 => "an invalid program",
        5 => "an invalid option",
        6 => "it does not compile",
        7 => "its library of built-in functions could not be loaded; it lies beside NVRTC's own",
        _ => "an internal error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NVRTC needs no card; if it is installed, it is tested.
    fn installed() -> Option<Nvrtc> {
        match Nvrtc::open(&crate::library::tests::search(), 13) {
            Ok(nvrtc) => Some(nvrtc),
            Err(error) => {
                println!("skipped: {error}");
                None
            }
        }
    }

    const KERNEL: &str = "extern \"C\" __global__ void twice(float *x) { x[threadIdx.x] *= FACTOR; }";

    #[test]
    fn what_compiles_is_an_elf_file() {
        let Some(nvrtc) = installed() else { return };
        let architecture = nvrtc.architecture((9, 0)).unwrap();
        assert_eq!(architecture, "sm_90a");
        let cubin = nvrtc.compile("twice", &format!("#define FACTOR 2\n{KERNEL}"), &architecture).unwrap();
        assert_eq!(&cubin[..4], b"\x7fELF");
    }

    #[test]
    fn what_does_not_compile_gives_the_log() {
        let Some(nvrtc) = installed() else { return };
        let error = nvrtc.compile("twice", KERNEL, "sm_90").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("twice.cu(1)") && text.contains("FACTOR"), "{text}");
    }

    #[test]
    fn a_card_newer_than_nvrtc_is_refused() {
        let Some(nvrtc) = installed() else { return };
        assert!(matches!(nvrtc.architecture((99, 0)), Err(CudaError::Architecture { .. })));
    }
}
