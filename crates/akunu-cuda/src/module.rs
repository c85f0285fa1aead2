//! Compiled functions: compiled once, cached on disk, loaded once.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

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
    compilers: Compilers,
    loaded: HashMap<Function, Rc<Kernel>>,
}

impl Kernels {
    pub(crate) fn new(
        context: &Rc<Context>,
        nvrtc: &'static Nvrtc,
        folders: &CudaFolders,
    ) -> Result<Kernels, CudaError> {
        let architecture = nvrtc.architecture(context.card.compute)?;
        Ok(Kernels {
            context: Rc::clone(context),
            compilers: Compilers::new(Compiler {
                nvrtc,
                architecture,
                cache: Cache::new(folders.kernels.as_deref()),
            }),
            loaded: HashMap::new(),
        })
    }

    /// Begins to compile functions that will be required.
    pub(crate) fn expect(&mut self, functions: Vec<Function>) {
        self.compilers.begin(functions);
    }

    /// Compiles and loads the functions that are missing.
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
        self.compilers.begin(wanted.iter().map(|function| (*function).clone()));
        for function in wanted {
            let code = self.compilers.wait(function)?;
            let kernel = Kernel::load(&self.context, &code.bytes, &function.name)?;
            self.loaded.insert(function.clone(), Rc::new(kernel));
        }
        Ok(())
    }

    /// A function that was required before.
    pub(crate) fn get(&self, function: &Function) -> Option<&Rc<Kernel>> {
        self.loaded.get(function)
    }
}

/// The part that does not need a card.
#[derive(Debug)]
struct Compiler {
    nvrtc: &'static Nvrtc,
    architecture: String,
    cache: Cache,
}

/// Code for one architecture.
#[derive(Debug)]
struct Code {
    bytes: Vec<u8>,
    /// Whether it was compiled, not read from disk.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test counts what is compiled"))]
    is_new: bool,
}

impl Compiler {
    fn one(&self, function: &Function) -> Result<Code, CudaError> {
        let text = cuda_text(function);
        let (major, minor) = self.nvrtc.version;
        let version = format!("{major}.{minor}");
        let key = cache::key(&[&text, &self.architecture, &version]);
        if let Some(bytes) = self.cache.read(&key) {
            return Ok(Code { bytes, is_new: false });
        }
        let bytes = self.nvrtc.compile(&function.name, &text, &self.architecture)?;
        // A folder that cannot be written only makes the next start slower; `akunu doctor` reports it.
        let _ = self.cache.write(&key, &bytes);
        Ok(Code { bytes, is_new: true })
    }
}

/// Threads that compile functions beside the device's own, one for each core while there is work.
#[derive(Debug)]
struct Compilers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    compiler: Compiler,
    work: Mutex<Work>,
    /// Notified when a function is done.
    progress: Condvar,
}

#[derive(Debug, Default)]
struct Work {
    /// Those that take the longest are last, and are taken first.
    waiting: Vec<Function>,
    /// `None`: waiting, or being compiled.
    codes: HashMap<Function, Option<Result<Code, CudaError>>>,
    /// Threads that have not ended.
    running: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let function = {
                let mut work = self.lock();
                let Some(function) = work.waiting.pop() else {
                    work.running -= 1;
                    return;
                };
                function
            };
            let compiled = catch_unwind(AssertUnwindSafe(|| self.compiler.one(&function)));
            let code =
                compiled.unwrap_or_else(|_| Err(CudaError::Compiler { function: function.name.clone() }));
            self.lock().codes.insert(function, Some(code));
            self.progress.notify_all();
        }
    }
}

/// Bytes of a function's text, by which the time to compile it is guessed.
fn text_bytes(function: &Function) -> usize {
    function.sources.iter().map(|source| source.text.len()).sum()
}

impl Compilers {
    fn new(compiler: Compiler) -> Compilers {
        let shared = Shared { compiler, work: Mutex::default(), progress: Condvar::new() };
        Compilers { shared: Arc::new(shared), threads: Vec::new() }
    }

    /// Compiles those that were not begun before.
    fn begin(&mut self, functions: impl IntoIterator<Item = Function>) {
        let mut work = self.shared.lock();
        for function in functions {
            if !work.codes.contains_key(&function) {
                work.codes.insert(function.clone(), None);
                work.waiting.push(function);
            }
        }
        work.waiting.sort_by_key(text_bytes);
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(work.waiting.len());
        let more = threads.saturating_sub(work.running);
        work.running += more;
        drop(work);
        self.threads.retain(|thread| !thread.is_finished());
        for _ in 0..more {
            let shared = Arc::clone(&self.shared);
            match std::thread::Builder::new().name("akunu-nvrtc".into()).spawn(move || shared.run()) {
                Ok(thread) => self.threads.push(thread),
                Err(_) => self.shared.lock().running -= 1,
            }
        }
        // No thread could be started.
        let mut work = self.shared.lock();
        if work.running == 0 && !work.waiting.is_empty() {
            work.running = 1;
            drop(work);
            self.shared.run();
        }
    }

    /// The code of a function that was begun, once.
    fn wait(&self, function: &Function) -> Result<Code, CudaError> {
        let mut work = self.shared.lock();
        loop {
            match work.codes.remove(function) {
                Some(Some(code)) => return code,
                Some(None) => drop(work.codes.insert(function.clone(), None)),
                None => return Err(CudaError::Compiler { function: function.name.clone() }),
            }
            work = self.shared.progress.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What is being compiled is waited for: NVRTC must not be at work when the process ends.
impl Drop for Compilers {
    fn drop(&mut self) {
        self.shared.lock().waiting.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
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
        let all = (0..table.commands.len()).map(|index| launches(&table, index, &chip).unwrap());
        all.flatten().filter_map(|work| work.launch().map(|launch| launch.function.clone())).collect()
    }

    #[test]
    fn a_second_start_compiles_nothing_and_a_damaged_file_is_compiled_again() {
        let nvrtc: &'static Nvrtc = match Nvrtc::open(&crate::library::tests::search(), 13) {
            Ok(nvrtc) => Box::leak(Box::new(nvrtc)),
            Err(error) => return println!("skipped: {error}"),
        };
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::at(home.path());
        let functions = functions(&[64, 96, 128, 4096, 8192]);
        let all = |architecture: &str| -> Vec<Code> {
            let (architecture, cache) = (architecture.to_string(), cache.clone());
            let mut compilers = Compilers::new(Compiler { nvrtc, architecture, cache });
            compilers.begin(functions[..2].iter().cloned());
            compilers.begin(functions.iter().cloned());
            functions.iter().map(|function| compilers.wait(function).unwrap()).collect()
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
