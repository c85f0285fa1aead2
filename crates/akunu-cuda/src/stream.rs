//! A CUDA stream: copies, launches, events, and graphs of them.

use std::ffi::{c_int, c_uint};
use std::rc::Rc;

use akunu_plan::table::{MAX_BINDINGS, PARAM_BYTES};

use crate::CudaError;
use crate::context::Context;
use crate::driver::{
    Address, CAPTURE_THREAD_LOCAL, EVENT_DISABLE_TIMING, EVENT_RECORD_EXTERNAL, Handle, LaunchAttribute,
    LaunchConfig, PROGRAMMATIC_STREAM_SERIALIZATION, STREAM_NON_BLOCKING, call,
};
use crate::memory::Pinned;
use crate::module::Kernel;

#[derive(Debug)]
pub(crate) struct Stream {
    context: Rc<Context>,
    handle: Handle,
}

/// A kernel launch with its arguments.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) kernel: Rc<Kernel>,
    pub(crate) groups: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
    /// The addresses of bindings, pass and scratch memory.
    pub(crate) pointers: Vec<Address>,
    pub(crate) params: Params,
}

/// The parameters: the last argument, by value.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params(pub(crate) [u8; PARAM_BYTES]);

impl Default for Params {
    fn default() -> Params {
        Params([0; PARAM_BYTES])
    }
}

/// Bindings, pass, scratch, params.
const MAX_ARGUMENTS: usize = MAX_BINDINGS + 3;

impl Stream {
    pub(crate) fn new(context: &Rc<Context>) -> Result<Stream, CudaError> {
        let mut handle: Handle = std::ptr::null_mut();
        context.note_request();
        // SAFETY: the call writes a handle to the given place.
        unsafe { call!(context.driver, cuStreamCreate(&mut handle, STREAM_NON_BLOCKING))? };
        Ok(Stream { context: Rc::clone(context), handle })
    }

    /// The handle, for libraries.
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    pub(crate) fn synchronise(&self) -> Result<(), CudaError> {
        // SAFETY: the stream exists as long as `self`.
        unsafe { call!(self.context.driver, cuStreamSynchronize(self.handle)) }
    }

    /// Starts a copy from host memory to the card; `from` must not change until the stream has completed it.
    pub(crate) fn upload(
        &self,
        to: Address,
        from: &Pinned,
        start: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let source = from.bytes()[start..start + bytes].as_ptr();
        // SAFETY: the caller checked the extent of `to`; `source` is a slice of `from`.
        unsafe { call!(self.context.driver, cuMemcpyHtoDAsync(to, source.cast(), bytes, self.handle)) }
    }

    /// Starts a copy from the card to host memory; `to` must not be read until the stream has completed it.
    pub(crate) fn download(
        &self,
        to: &mut Pinned,
        start: usize,
        from: Address,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let target = to.bytes_mut()[start..start + bytes].as_mut_ptr();
        // SAFETY: the caller checked the extent of `from`; `target` is a slice of `to`.
        unsafe { call!(self.context.driver, cuMemcpyDtoHAsync(target.cast(), from, bytes, self.handle)) }
    }

    pub(crate) fn copy(&self, to: Address, from: Address, bytes: u64) -> Result<(), CudaError> {
        // SAFETY: the caller checked both extents.
        unsafe { call!(self.context.driver, cuMemcpyDtoDAsync(to, from, bytes as usize, self.handle)) }
    }

    pub(crate) fn zero(&self, start: Address, bytes: u64) -> Result<(), CudaError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller checked the extent.
        unsafe { call!(self.context.driver, cuMemsetD8Async(start, 0, bytes as usize, self.handle)) }
    }

    /// `linked` (programmatic dependent launch): it may start before its predecessor has ended, and itself waits for
    /// that before it reads what the predecessor wrote.
    pub(crate) fn launch(&self, bound: &Bound, linked: bool) -> Result<(), CudaError> {
        let link =
            LaunchAttribute { id: PROGRAMMATIC_STREAM_SERIALIZATION, padding: 0, flag: 1, rest: [0; 15] };
        let config = LaunchConfig {
            grid: bound.groups,
            block: [bound.threads, 1, 1],
            shared_bytes: bound.shared_bytes,
            stream: self.handle,
            attributes: &link,
            attribute_count: c_uint::from(linked),
        };
        let mut arguments = [std::ptr::null_mut(); MAX_ARGUMENTS];
        let params = (&raw const bound.params).cast_mut().cast();
        let pointers = bound.pointers.iter().map(|pointer| std::ptr::from_ref(pointer).cast_mut().cast());
        for (argument, value) in arguments.iter_mut().zip(pointers.chain([params])) {
            *argument = value;
        }
        // SAFETY: the arguments match the kernel's in number and size (its text was generated for this command's
        // bindings), and are copied before the call returns. The addresses were checked when the table was prepared.
        unsafe {
            let function = bound.kernel.function();
            call!(
                self.context.driver,
                cuLaunchKernelEx(&config, function, arguments.as_mut_ptr(), std::ptr::null_mut())
            )
        }
    }

    /// Captures the operations of `fill` in a graph instead of executing them.
    pub(crate) fn capture(
        &self,
        fill: impl FnOnce(&Stream) -> Result<(), CudaError>,
    ) -> Result<Graph, CudaError> {
        let driver = self.context.driver;
        self.context.note_request();
        // SAFETY: the stream exists and is not capturing.
        unsafe { call!(driver, cuStreamBeginCapture(self.handle, CAPTURE_THREAD_LOCAL))? };
        let filled = fill(self);
        let mut graph: Handle = std::ptr::null_mut();
        // SAFETY: the call writes a handle, or null if a captured operation was not allowed.
        let ended = unsafe { call!(driver, cuStreamEndCapture(self.handle, &mut graph)) };
        let made = filled.and(ended).and_then(|()| {
            let mut executable: Handle = std::ptr::null_mut();
            // SAFETY: the graph was just captured.
            unsafe { call!(driver, cuGraphInstantiateWithFlags(&mut executable, graph, 0))? };
            Ok(Graph { context: Rc::clone(&self.context), executable })
        });
        if !graph.is_null() {
            // SAFETY: the executable graph does not refer to it.
            unsafe { (driver.cuGraphDestroy)(graph) };
        }
        let made = made?;
        // SAFETY: graph and stream exist. Uploading makes the first launch as fast as the later ones.
        unsafe { call!(driver, cuGraphUpload(made.executable, self.handle))? };
        Ok(made)
    }

    pub(crate) fn launch_graph(&self, graph: &Graph) -> Result<(), CudaError> {
        // SAFETY: both handles are valid as long as the borrowed values.
        unsafe { call!(self.context.driver, cuGraphLaunch(graph.executable, self.handle)) }
    }

    pub(crate) fn record(&self, event: &Event) -> Result<(), CudaError> {
        self.record_with(event, 0)
    }

    /// Later operations wait until another stream has reached its record of this event.
    pub(crate) fn wait(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both handles are valid as long as the borrowed values.
        unsafe { call!(self.context.driver, cuStreamWaitEvent(self.handle, event.handle, 0)) }
    }

    /// Records an event as a node of the graph that is being captured.
    pub(crate) fn record_in_graph(&self, event: &Event) -> Result<(), CudaError> {
        self.record_with(event, EVENT_RECORD_EXTERNAL)
    }

    fn record_with(&self, event: &Event, flags: c_uint) -> Result<(), CudaError> {
        // SAFETY: both handles are valid as long as the borrowed values.
        unsafe { call!(self.context.driver, cuEventRecordWithFlags(event.handle, self.handle, flags)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream was created once and is destroyed once. Pending operations may use memory that is
        // released next, so it is synchronised first.
        unsafe {
            (self.context.driver.cuStreamSynchronize)(self.handle);
            (self.context.driver.cuStreamDestroy)(self.handle);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Graph {
    context: Rc<Context>,
    executable: Handle,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated once and destroyed once.
        unsafe { (self.context.driver.cuGraphExecDestroy)(self.executable) };
    }
}

#[derive(Debug)]
pub(crate) struct Event {
    context: Rc<Context>,
    handle: Handle,
}

impl Event {
    pub(crate) fn new(context: &Rc<Context>) -> Result<Event, CudaError> {
        Event::with(context, EVENT_DISABLE_TIMING)
    }

    /// An event with a timestamp, for [`Event::since`].
    pub(crate) fn timed(context: &Rc<Context>) -> Result<Event, CudaError> {
        Event::with(context, 0)
    }

    fn with(context: &Rc<Context>, flags: c_uint) -> Result<Event, CudaError> {
        let mut handle: Handle = std::ptr::null_mut();
        context.note_request();
        // SAFETY: the call writes a handle to the given place.
        unsafe { call!(context.driver, cuEventCreate(&mut handle, flags))? };
        Ok(Event { context: Rc::clone(context), handle })
    }

    /// Waits until the stream has reached the last record of this event; returns at once if there is none.
    pub(crate) fn synchronise(&self) -> Result<(), CudaError> {
        // SAFETY: the event exists as long as `self`.
        unsafe { call!(self.context.driver, cuEventSynchronize(self.handle)) }
    }

    /// Nanoseconds from another event to this one; both have been recorded and waited for.
    pub(crate) fn since(&self, earlier: &Event) -> Result<u64, CudaError> {
        let mut milliseconds = 0f32;
        // SAFETY: both events exist, and the call writes one number.
        unsafe {
            call!(self.context.driver, cuEventElapsedTime(&mut milliseconds, earlier.handle, self.handle))?;
        }
        Ok((f64::from(milliseconds) * 1e6) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created once and destroyed once.
        unsafe { (self.context.driver.cuEventDestroy)(self.handle) };
    }
}

const _: () = assert!(size_of::<c_int>() == 4);
