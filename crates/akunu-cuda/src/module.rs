//! Compiled functions: compiled once, cached on disk, loaded once.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use akunu_kernels::{Function, cuda_text};

use crate::CudaError;
use crate::cache::{self, Cache};
use crate::context::Context;
use crate::driver::{FUNCTION_MAX_DYNAMIC_SHARED, FUNCTION_MAX_THREADS, Handle, call};
use crate::library::CudaFolders;
use crate::nvrtc::Nvrtc;

/// The shared memory that a thread block has by default.
const SHARED_WITHOUT_ASKING: u32 = 48 << 10;

/// One loaded function.
#[derive(Debug)]
pub(crate) struct Kernel {
    context: Rc<Context>,
    module: Handle,
    function: Handle,
    /// The most threads per block that its register use allows.
    pub(crate) max_threads: u32,
    /// The bytes of shared memory that a thread block may use.
    shared: Cell<u32>,
}

impl Kernel {
    fn load(context: &Rc<Context>, code: &[u8], symbol: &str) -> Result<Kernel, CudaError> {
        let driver = context.driver;
        let mut kernel = Kernel {
            context: Rc::clone(context),
            module: std::ptr::null_mut(),
            function: std::ptr::null_mut(),
            max_threads: 0,
            shared: Cell::new(SHARED_WITHOUT_ASKING),
        };
        let symbol = CString::new(symbol).unwrap_or_default();
        let mut threads: c_int = 0;
        context.note_request();
        // SAFETY: the code is a complete cubin made by NVRTC (its checksum matched), and each call writes one value.
        // Querying an attribute also loads the function, which must not happen during a capture.
        unsafe {
            call!(driver, cuModuleLoadData(&mut kernel.module, code.as_ptr().cast()))?;
            call!(driver, cuModuleGetFunction(&mut kernel.function, kernel.module, symbol.as_ptr()))?;
            call!(driver, cuFuncGetAttribute(&mut threads, FUNCTION_MAX_THREADS, kernel.function))?;
        }
        kernel.max_threads = threads.unsigned_abs();
        Ok(kernel)
    }

    pub(crate) fn function(&self) -> Handle {
        self.function
    }

    /// Allows thread blocks this much shared memory.
    pub(crate) fn allow_shared(&self, bytes: u32) -> Result<(), CudaError> {
        if bytes <= self.shared.get() {
            return Ok(());
        }
        self.shared.set(bytes);
        let driver = self.context.driver;
        // SAFETY: the function's module is loaded as long as `self` exists.
        unsafe {
            call!(driver, cuFuncSetAttribute(self.function, FUNCTION_MAX_DYNAMIC_SHARED, bytes as c_int))
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if !self.module.is_null() {
            // SAFETY: the module was loaded once and is unloaded once; the device synchronises its stream before.
            unsafe { (self.context.driver.cuModuleUnload)(self.module) };
        }
    }
}

/// All functions that have been required so far.
#[derive(Debug)]
pub(crate) struct Kernels {
    context: Rc<Context>,
    nvrtc: &'static Nvrtc,
    architecture: String,
    cache: Cache,
    loaded: HashMap<Function, Rc<Kernel>>,
}

impl Kernels {
    pub(crate) fn new(
        context: &Rc<Context>,
        nvrtc: &'static Nvrtc,
        folders: &CudaFolders,
    ) -> Result<Kernels, CudaError> {
        Ok(Kernels {
            context: Rc::clone(context),
            nvrtc,
            architecture: nvrtc.architecture(context.card.compute)?,
            cache: Cache::new(folders.kernels.as_deref()),
            loaded: HashMap::new(),
        })
    }

    /// Compiles the functions that are missing, on all cores.
    pub(crate) fn require<'f>(
        &mut self,
        functions: impl Iterator<Item = &'f Function>,
    ) -> Result<(), CudaError> {
        let mut wanted: Vec<&Function> = Vec::new();
        for function in functions {
            if !self.loaded.contains_key(function) && !wanted.contains(&function) {
                wanted.push(function);
            }
        }
        let compiler = Compiler { nvrtc: self.nvrtc, architecture: &self.architecture, cache: &self.cache };
        for (function, code) in wanted.iter().zip(compiler.all(&wanted)) {
            let kernel = Kernel::load(&self.context, &code?.bytes, &function.name)?;
            self.loaded.insert((*function).clone(), Rc::new(kernel));
        }
        Ok(())
    }

    /// A function that was required before.
    pub(crate) fn get(&self, function: &Function) -> Option<&Rc<Kernel>> {
        self.loaded.get(function)
    }
}

/// The part that does not need a card.
#[derive(Clone, Copy, Debug)]
struct Compiler<'a> {
    nvrtc: &'a Nvrtc,
    architecture: &'a str,
    cache: &'a Cache,
}

/// Code for one architecture.
struct Code {
    bytes: Vec<u8>,
    /// Whether it was compiled, not read from disk.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test counts what is compiled"))]
    is_new: bool,
}

impl Compiler<'_> {
    fn all(self, functions: &[&Function]) -> Vec<Result<Code, CudaError>> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(functions.len());
        let next = AtomicUsize::new(0);
        let done: Mutex<Vec<(usize, Result<Code, CudaError>)>> =
            Mutex::new(Vec::with_capacity(functions.len()));
        let work = || {
            while let Some((index, function)) = pick(functions, &next) {
                let code = self.one(function);
                done.lock().unwrap_or_else(PoisonError::into_inner).push((index, code));
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(index, _)| *index);
        done.into_iter().map(|(_, code)| code).collect()
    }

    fn one(self, function: &Function) -> Result<Code, CudaError> {
        let text = cuda_text(function);
        let (major, minor) = self.nvrtc.version;
        let version = format!("{major}.{minor}");
        let key = cache::key(&[&text, self.architecture, &version]);
        if let Some(bytes) = self.cache.read(&key) {
            return Ok(Code { bytes, is_new: false });
        }
        let bytes = self.nvrtc.compile(&function.name, &text, self.architecture)?;
        // A folder that cannot be written only makes the next start slower; `akunu doctor` reports it.
        let _ = self.cache.write(&key, &bytes);
        Ok(Code { bytes, is_new: true })
    }
}

fn pick<'a, T>(items: &[&'a T], next: &AtomicUsize) -> Option<(usize, &'a T)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    items.get(index).map(|item| (index, *item))
}

#[cfg(test)]
mod tests {
    use akunu_kernels::{Chip, launches};
    use akunu_plan::ops::{self, NormParams};
    use akunu_plan::{BufferId, DispatchCommand, DispatchTable, Kernel as Operation, RowBounds, TableIo};

    use super::*;

    /// Norm kernels of these widths.
    fn functions(widths: &[u32]) -> Vec<Function> {
        let id = BufferId(0);
        let command = |&cols: &u32| {
            let params = NormParams { cols, epsilon: 1e-5 };
            DispatchCommand::new(Operation::NormAdd(ops::NormAdd), [id; 4], params)
        };
        let table = DispatchTable {
            name: "norms",
            commands: widths.iter().map(command).collect(),
            labels: vec![String::new(); widths.len()],
            rows: 1,
            logit_rows: 1,
            steps: 1,
            io: TableIo::new([id; 4]),
            bounds: RowBounds::one_sequence(1, 1).into(),
            streams: akunu_plan::Streams::default(),
        };
        let chip = Chip { tensor_cores: true, copies: true, ..Chip::plain(132, 200 << 10) };
        let all = table.commands.iter().map(|command| launches(command, &table, &chip).unwrap());
        all.flatten().filter_map(|work| work.launch().map(|launch| launch.function.clone())).collect()
    }

    #[test]
    fn a_second_start_compiles_nothing_and_a_damaged_file_is_compiled_again() {
        let nvrtc = match Nvrtc::open(&crate::library::tests::search(), 13) {
            Ok(nvrtc) => nvrtc,
            Err(error) => return println!("skipped: {error}"),
        };
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::at(home.path());
        let functions = functions(&[64, 96, 128, 4096, 8192]);
        let wanted: Vec<&Function> = functions.iter().collect();
        let all = |architecture| -> Vec<Code> {
            let compiler = Compiler { nvrtc: &nvrtc, architecture, cache: &cache };
            compiler.all(&wanted).into_iter().map(Result::unwrap).collect()
        };
        let first = all("sm_90");
        assert!(first.iter().all(|code| code.is_new && code.bytes.starts_with(b"\x7fELF")));
        let second = all("sm_90");
        assert!(
            second.iter().zip(&first).all(|(second, first)| !second.is_new && second.bytes == first.bytes)
        );
        assert!(all("sm_80").iter().all(|code| code.is_new));
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 10);
        for file in std::fs::read_dir(home.path()).unwrap() {
            std::fs::write(file.unwrap().path(), "damaged").unwrap();
        }
        let third = all("sm_90");
        assert!(third.iter().zip(&first).all(|(third, first)| third.is_new && third.bytes == first.bytes));
    }
}
