//! NCCL: ranks in other processes. Names and signatures are those of `nccl.h`, the same since version 2.4.
//!
//! Only all-gather is used. A kernel then adds up what all ranks have, in their order, so that each rank has the same bits.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{c_char, c_int, c_void};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use akunu_plan::{DeviceError, Member};

use crate::CudaError;
use crate::context::Context;
use crate::driver::{Address, Handle, functions};
use crate::error::failed;
use crate::library::{CudaFolders, Search};
use crate::stream::Stream;

functions! {
    Functions, "install NCCL 2.19 or later",
    version = "ncclGetVersion" (*mut c_int);
    unique_id = "ncclGetUniqueId" (*mut UniqueId);
    init_rank = "ncclCommInitRank" (*mut Handle, c_int, UniqueId, c_int);
    all_gather = "ncclAllGather" (Address, Address, usize, c_int, Handle, Handle);
    abort = "ncclCommAbort" (Handle);
}

/// `ncclUniqueId`: how the ranks find each other.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct UniqueId([c_char; ID_BYTES]);

const ID_BYTES: usize = 128;
const TYPE_F32: c_int = 7;

/// Between looks at whether another rank has failed while all of them connect.
const LOOK: Duration = Duration::from_millis(20);

fn check(call: &'static str, code: c_int) -> Result<(), CudaError> {
    let message = match code {
        0 => return Ok(()),
        1 => "a call to CUDA failed",
        2 => "a call to the system failed, such as for the network",
        3 => "an error inside the library",
        4 => "an argument that it does not take",
        5 => "it was used wrongly, or the processes have different versions of it",
        6 => "another rank cannot be reached any more",
        _ => "an error that is not in its documentation",
    };
    Err(CudaError::Nccl { call, code, message })
}

/// The loaded library.
#[derive(Debug)]
pub(crate) struct Library {
    functions: Functions,
    version: c_int,
}

impl Library {
    /// Loads it, once for the process.
    pub(crate) fn get(folders: &CudaFolders) -> Result<&'static Library, CudaError> {
        static LIBRARY: OnceLock<Result<Library, CudaError>> = OnceLock::new();
        let open = || Library::open(&Search::with(folders));
        LIBRARY.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    fn open(search: &Search) -> Result<Library, CudaError> {
        let (library, file) = search.nccl()?;
        let functions = Functions::load(library, file)?;
        let mut version = 0;
        // SAFETY: the function has this signature in `nccl.h`, and writes one number.
        check("ncclGetVersion", unsafe { (functions.version)(&mut version) })?;
        Ok(Library { functions, version })
    }

    pub(crate) fn file(&self) -> &str {
        &self.functions.file
    }

    /// 2.28.9
    pub(crate) fn version(&self) -> String {
        let version = self.version;
        format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
    }

    /// What all ranks need to find each other. This process listens for them, at an address that NCCL chooses.
    pub(crate) fn unique_id(&self) -> Result<[u8; ID_BYTES], CudaError> {
        let mut id = UniqueId([0; ID_BYTES]);
        // SAFETY: the function writes an id to the given place.
        check("ncclGetUniqueId", unsafe { (self.functions.unique_id)(&mut id) })?;
        Ok(id.0.map(|byte| byte.cast_unsigned()))
    }
}

/// The connection of all ranks.
#[derive(Debug)]
struct Communicator {
    library: &'static Library,
    handle: Handle,
    is_over: AtomicBool,
}

// SAFETY: NCCL takes a communicator from any thread, one call at a time, except for `ncclCommAbort`, which may be called
// beside others. It is called once.
unsafe impl Send for Communicator {}
// SAFETY: as above; all other calls are made by the device's thread.
unsafe impl Sync for Communicator {}

impl Communicator {
    /// Ends what runs on all streams, and frees what NCCL has allocated.
    fn abort(&self) {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            // SAFETY: the handle was created by the library, and this is the only call that frees it. An error leaves
            // nothing to be done.
            unsafe { (self.library.functions.abort)(self.handle) };
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}

/// The numbers that ranks exchange.
#[derive(Debug)]
pub(crate) struct Ranks {
    communicator: Arc<Communicator>,
    /// How many numbers were exchanged once.
    tried: RefCell<HashSet<usize>>,
}

/// One exchange, with its addresses.
#[derive(Debug)]
pub(crate) struct BoundGathering {
    communicator: Arc<Communicator>,
    from: Address,
    to: Address,
    count: usize,
}

impl BoundGathering {
    pub(crate) fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        let Communicator { library, handle, is_over } = &*self.communicator;
        if is_over.load(Ordering::Acquire) {
            return check("ncclAllGather", 6);
        }
        let Self { from, to, count, .. } = *self;
        // SAFETY: the communicator exists, and the caller has checked the extents of both addresses, the second of which has
        // room for the numbers of all ranks.
        let code =
            unsafe { (library.functions.all_gather)(from, to, count, TYPE_F32, *handle, stream.handle()) };
        check("ncclAllGather", code)
    }
}

/// A handle that is passed to another thread.
struct Passed(Handle);

// SAFETY: a communicator's handle is used by one thread at a time.
unsafe impl Send for Passed {}

impl Ranks {
    /// Connects all ranks, each of which calls this.
    pub(crate) fn connect(
        context: &Rc<Context>,
        folders: &CudaFolders,
        member: &Member,
        id: &[u8],
    ) -> Result<Ranks, DeviceError> {
        let library = Library::get(folders)?;
        let id: [u8; ID_BYTES] =
            id.try_into().map_err(|_| failed("the leader has sent no id of NCCL: it has another device"))?;
        let id = UniqueId(id.map(|byte| byte.cast_signed()));
        let (driver, card) = (context.driver, context.card.clone());
        let (ranks, rank) = (member.ranks() as c_int, member.rank() as c_int);
        let (sender, connected) = channel();
        let connect = move || {
            let result = Context::new(driver, card).and_then(|_context| {
                let mut handle: Handle = std::ptr::null_mut();
                // SAFETY: the card's context is current on this thread, and the function writes a handle.
                let code = unsafe { (library.functions.init_rank)(&mut handle, ranks, id, rank) };
                check("ncclCommInitRank", code).map(|()| Passed(handle))
            });
            // Nobody waits for it if another rank has failed.
            let _ = sender.send(result);
        };
        // It waits for the other ranks without an end, so this thread does not.
        std::thread::Builder::new()
            .name("akunu-nccl".into())
            .spawn(connect)
            .map_err(|error| CudaError::Thread { message: error.to_string() })?;
        let Passed(handle) = loop {
            match connected.recv_timeout(LOOK) {
                Ok(result) => break result?,
                Err(RecvTimeoutError::Timeout) if !member.is_broken() => {}
                Err(RecvTimeoutError::Timeout) => return Err(akunu_plan::device::broken(crate::NAME)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(failed("the thread that connects ranks has ended; please report this"));
                }
            }
        };
        let communicator = Arc::new(Communicator { library, handle, is_over: AtomicBool::new(false) });
        let aborted = Arc::downgrade(&communicator);
        member.on_break(Box::new(move || {
            // It may wait for the card, and whoever breaks the group does not.
            let abort = move || aborted.upgrade().map(|communicator| communicator.abort());
            // Without a thread, the card waits until the process ends.
            let _ = std::thread::Builder::new().name("akunu-abort".into()).spawn(abort);
        }));
        Ok(Ranks { communicator, tried: RefCell::default() })
    }

    /// Binds an exchange of `count` numbers. The first of each number is run once: connections and buffers that NCCL makes
    /// on first use must not be made during a capture.
    pub(crate) fn bind(
        &self,
        from: Address,
        to: Address,
        count: usize,
        stream: &Stream,
    ) -> Result<BoundGathering, CudaError> {
        let bound = BoundGathering { communicator: Arc::clone(&self.communicator), from, to, count };
        if self.tried.borrow_mut().insert(count) {
            bound.launch(stream)?;
            stream.synchronise()?;
        }
        Ok(bound)
    }
}

/// For the layout of a call by value.
const _: () = assert!(size_of::<UniqueId>() == 128 && align_of::<UniqueId>() == 1);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Address>() == size_of::<*const c_void>());

#[cfg(test)]
mod tests {
    use super::*;

    /// Loading it and asking for an id need no card.
    #[test]
    fn an_installed_library_makes_different_ids() {
        match Library::open(&crate::library::tests::search()) {
            Ok(library) => {
                assert!(library.version >= 20_000, "{}", library.version());
                assert_ne!(library.unique_id().unwrap(), library.unique_id().unwrap());
            }
            Err(error) => println!("skipped: {error}"),
        }
    }

    #[test]
    fn an_error_names_the_call_and_what_it_means() {
        let error = check("ncclAllGather", 6).unwrap_err().to_string();
        assert_eq!(
            error,
            "ncclAllGather gave 6: another rank cannot be reached any more; NCCL_DEBUG=WARN says more"
        );
    }
}
