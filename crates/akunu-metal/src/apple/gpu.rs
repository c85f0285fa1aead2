//! [`MetalGpu`]: a Metal device and its queue.

use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use akunu_format::Region;
use akunu_gpu::{Gpu, Tuning, WORKSPACE_BYTES};
use akunu_kernels::Function;
use akunu_plan::{Capabilities, DeviceError, InPlace};
use block2::RcBlock;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLAllocation, MTLBuffer, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandQueue,
    MTLCreateSystemDefaultDevice, MTLDevice, MTLDispatchType, MTLEvent, MTLGPUFamily,
    MTLIndirectCommandBuffer, MTLResidencySet, MTLResidencySetDescriptor, MTLResource, MTLResourceOptions,
    MTLSharedEvent,
};

use super::code::Code;
use super::commands::{Buffer, MetalCommands, Needs, Pipeline};
use super::cores::gpu_cores;
use super::indirect::MetalIndirect;
use crate::bell::Bell;
use crate::chip::NAME;
use crate::error::MetalError;
use crate::{Family, MetalChip};

pub(super) type MetalObject = Retained<ProtocolObject<dyn MTLDevice>>;

/// Shared by host and GPU; hazards are tracked by our own barriers and the event, so Metal need not track them.
const OPTIONS: MTLResourceOptions =
    MTLResourceOptions::StorageModeShared.union(MTLResourceOptions::HazardTrackingModeUntracked);

/// The timeout of a command buffer. The few steps of a chain, or a chunk of a prompt, take seconds in the worst case,
/// and the system aborts work that occupies a GPU for too long before this: what takes longer will not finish.
const PATIENCE: Duration = Duration::from_secs(120);

type Handler = RcBlock<dyn Fn(NonNull<ProtocolObject<dyn MTLCommandBuffer>>)>;

/// Settings for debugging; the defaults are meant for everybody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetalOptions {
    /// Commands run one at a time, with a wait after each, so that an error names the command that failed.
    pub checked: bool,
    /// Accept a GPU of an older family, or of none (as in virtual machines), and treat it as the oldest known one.
    pub any_family: bool,
    /// Tables are encoded once, as indirect command buffers.
    pub indirect: bool,
    /// The cache folder of compiled pipelines. With `None`, every start compiles them.
    pub pipelines: Option<PathBuf>,
}

impl MetalOptions {
    /// Options from a comma-separated list of words: `checked` runs commands one by one, `any` accepts a GPU of any
    /// family, `icb` encodes tables once.
    pub fn from_words(words: &str) -> MetalOptions {
        let has = |word: &str| words.split(',').any(|part| part.trim() == word);
        MetalOptions {
            checked: has("checked"),
            any_family: has("any"),
            indirect: has("icb"),
            pipelines: None,
        }
    }
}

// Fields are dropped in this order; the device that owns this waits for the GPU before.
#[derive(Debug)]
pub struct MetalGpu {
    code: Code,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    /// Counts completed command buffers: each waits for the previous one.
    event: Retained<ProtocolObject<dyn MTLSharedEvent>>,
    submitted: u64,
    /// Rung by `handler` whenever a command buffer is completed, successfully or not, on a thread of Metal's.
    done: Arc<Bell>,
    handler: Handler,
    /// A command buffer timed out, and may still be running.
    stuck: bool,
    /// The memory that stays resident between command buffers (macOS 15 and iOS 18).
    resident: Option<Retained<ProtocolObject<dyn MTLResidencySet>>>,
    /// `resident` has changes that are not committed.
    changed: bool,
    in_use: InUse,
    page: usize,
    capabilities: Capabilities,
    tuning: Tuning,
    needs: Needs,
    device: MetalObject,
}

/// Objects that the GPU may use and that command buffers do not retain.
#[derive(Debug, Default)]
struct InUse {
    buffers: Vec<Buffer>,
    indirect: Vec<Retained<ProtocolObject<dyn MTLIndirectCommandBuffer>>>,
    /// The file mappings that buffers refer to.
    regions: Vec<Region>,
}

impl Drop for MetalGpu {
    /// Memory that the GPU may still use must not be freed.
    fn drop(&mut self) {
        if self.stuck {
            std::mem::forget((std::mem::take(&mut self.in_use), self.event.clone(), self.resident.clone()));
            self.code.abandon();
        }
    }
}

/// The system's default GPU, if it is an Apple GPU.
pub(super) fn find(options: &MetalOptions) -> Result<(MetalObject, MetalChip), MetalError> {
    let device = MTLCreateSystemDefaultDevice().ok_or(MetalError::NoDevice)?;
    let has = |family: MTLGPUFamily| device.supportsFamily(family);
    let family =
        match [MTLGPUFamily::Apple10, MTLGPUFamily::Apple9, MTLGPUFamily::Apple8, MTLGPUFamily::Apple7]
            .map(has)
        {
            [true, ..] => Family::Later,
            [_, true, ..] => Family::Apple9,
            [_, _, true, _] => Family::Apple8,
            [.., true] => Family::Apple7,
            _ if options.any_family => Family::Other,
            _ => return Err(MetalError::OldDevice { name: device.name().to_string() }),
        };
    Ok((device, MetalChip { family, cores: gpu_cores() }))
}

/// A description for people.
pub(super) fn describe(device: &MetalObject, chip: MetalChip) -> String {
    format!("{}, {}", device.name(), chip.describe())
}

impl MetalGpu {
    pub(super) fn new(options: MetalOptions) -> Result<MetalGpu, MetalError> {
        autoreleasepool(|_| MetalGpu::within_pool(options))
    }

    fn within_pool(options: MetalOptions) -> Result<MetalGpu, MetalError> {
        let (device, chip) = find(&options)?;
        let queue = device.newCommandQueue().ok_or(MetalError::Refused { what: "command queue" })?;
        let event = device.newSharedEvent().ok_or(MetalError::Refused { what: "shared event" })?;
        let resident = residency_set(&device);
        if let Some(set) = &resident {
            queue.addResidencySet(set);
        }
        let free = device.recommendedMaxWorkingSetSize().saturating_sub(device.currentAllocatedSize() as u64);
        let detail =
            describe(&device, chip) + if options.indirect { ", indirect command buffers" } else { "" };
        let capabilities = Capabilities {
            // The workspace counts as allocated when the caller looks at this.
            available_bytes: Some(free.saturating_sub(WORKSPACE_BYTES)),
            ..chip.capabilities(detail)
        };
        // SAFETY: `sysconf` takes a number, returns one, and has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let done = Arc::new(Bell::default());
        let ringing = Arc::clone(&done);
        let needs = Needs { buffers: resident.is_none(), pipelines: chip.family.sets_pipelines() };
        let tuning = chip.tuning();
        Ok(MetalGpu {
            code: Code::new(&device, options.indirect, options.pipelines.as_deref()),
            queue,
            event,
            submitted: 0,
            done,
            handler: RcBlock::new(move |_| ringing.ring()),
            stuck: false,
            resident,
            changed: false,
            in_use: InUse::default(),
            page: usize::try_from(page).unwrap_or(16 << 10),
            capabilities,
            tuning: Tuning { checked: options.checked, indirect: options.indirect, ..tuning },
            needs,
            device,
        })
    }

    fn too_long(&self, bytes: u64) -> Option<MetalError> {
        let most = self.device.maxBufferLength() as u64;
        let name = || self.device.name().to_string();
        (bytes > most).then(|| MetalError::TooLong { name: name(), bytes, most })
    }

    fn keep(&mut self, buffer: &Buffer) {
        self.in_use.buffers.push(buffer.clone());
        if let Some(set) = &self.resident {
            set.addAllocation(as_allocation(buffer));
            self.changed = true;
        }
    }
}

fn stuck() -> DeviceError {
    MetalError::Stuck { seconds: PATIENCE.as_secs() }.into()
}

fn as_allocation(buffer: &Buffer) -> &ProtocolObject<dyn MTLAllocation> {
    ProtocolObject::from_ref(&**buffer)
}

fn residency_set(device: &MetalObject) -> Option<Retained<ProtocolObject<dyn MTLResidencySet>>> {
    if !device.respondsToSelector(sel!(newResidencySetWithDescriptor:error:)) {
        return None;
    }
    device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new()).ok()
}

impl Gpu for MetalGpu {
    type Buffer = Buffer;
    type Pipeline = Pipeline;
    type Commands = MetalCommands;
    type Indirect = MetalIndirect;
    type Pending = Retained<ProtocolObject<dyn MTLCommandBuffer>>;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<Buffer, DeviceError> {
        if let Some(error) = self.too_long(bytes) {
            return Err(error.into());
        }
        let out_of_memory = || DeviceError::OutOfMemory { device: NAME, what: what.into(), bytes };
        // Metal zeroes new buffers.
        let buffer = self.device.newBufferWithLength_options(bytes.max(16) as usize, OPTIONS);
        let buffer = buffer.ok_or_else(out_of_memory)?;
        buffer.setLabel(Some(&NSString::from_str(what)));
        self.keep(&buffer);
        Ok(buffer)
    }

    /// A buffer consists of whole pages; adjacent parts may share one.
    fn map(
        &mut self,
        region: &Region,
        offset: usize,
        bytes: usize,
    ) -> Result<Option<(Buffer, usize)>, DeviceError> {
        if !InPlace::is_bindable(region, offset) {
            return Ok(None);
        }
        let first = offset / self.page * self.page;
        let length = (offset + bytes).next_multiple_of(self.page) - first;
        if let Some(error) = self.too_long(length as u64) {
            return Err(error.into());
        }
        let start = NonNull::from(&region.bytes()[first..]).cast::<c_void>();
        // SAFETY: a mapping begins at a page boundary and extends to the end of its last page; the region is kept
        // alive as long as the buffer. Kernels do not write weights: `TableDevice` binds imported memory only where
        // tables read.
        let buffer = unsafe {
            self.device.newBufferWithBytesNoCopy_length_options_deallocator(start, length, OPTIONS, None)
        };
        let buffer = buffer.ok_or(MetalError::NotMapped { bytes: length })?;
        let regions = &mut self.in_use.regions;
        if !regions.iter().any(|kept| kept.bytes().as_ptr() == region.bytes().as_ptr()) {
            regions.push(region.clone());
        }
        self.keep(&buffer);
        Ok(Some((buffer, offset - first)))
    }

    fn release(&mut self, buffer: Buffer) {
        self.in_use.buffers.retain(|kept| *kept != buffer);
        if let Some(set) = &self.resident {
            set.removeAllocation(as_allocation(&buffer));
            self.changed = true;
        }
    }

    fn write(&mut self, buffer: &Buffer, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= buffer.length()));
        // SAFETY: the bytes are inside the buffer; the GPU does not use them now, so the host may write them.
        unsafe {
            let to = buffer.contents().cast::<u8>().add(offset);
            to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
        }
        Ok(())
    }

    fn read(&mut self, buffer: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= buffer.length()));
        let to = NonNull::from(&mut *bytes).cast::<u8>();
        // SAFETY: the bytes are inside the buffer, and the GPU does not write them now.
        unsafe { buffer.contents().cast::<u8>().add(offset).copy_to_nonoverlapping(to, bytes.len()) };
        Ok(())
    }

    /// The host copies: all submissions are over whenever the device calls this.
    fn copy(&mut self, from: &Buffer, to: &Buffer, bytes: u64) -> Result<(), DeviceError> {
        let mut between = vec![0; bytes as usize];
        self.read(from, 0, &mut between)?;
        self.write(to, 0, &between)
    }

    fn pipelines(&mut self, functions: &[&Function]) -> Result<Vec<Pipeline>, DeviceError> {
        Ok(autoreleasepool(|_| self.code.pipelines(functions))?)
    }

    fn indirect(&mut self, dispatches: usize, buffers: usize) -> Result<MetalIndirect, DeviceError> {
        let indirect = autoreleasepool(|_| MetalIndirect::new(&self.device, dispatches, buffers))?;
        self.in_use.indirect.push(indirect.commands.clone());
        Ok(indirect)
    }

    fn begin(&mut self) -> Result<MetalCommands, DeviceError> {
        autoreleasepool(|_| {
            if self.stuck {
                return Err(stuck());
            }
            // Programs and the device keep everything that is bound alive.
            let buffer = self.queue.commandBufferWithUnretainedReferences();
            let buffer = buffer.ok_or(MetalError::Refused { what: "command buffer" })?;
            let event: &ProtocolObject<dyn MTLEvent> = ProtocolObject::from_ref(&*self.event);
            buffer.encodeWaitForEvent_value(event, self.submitted);
            let encoder = buffer.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
            let encoder = encoder.ok_or(MetalError::Refused { what: "command encoder" })?;
            Ok(MetalCommands::new(buffer, encoder, self.submitted + 1, self.needs))
        })
    }

    fn submit(&mut self, mut commands: MetalCommands, _followed: bool) -> Result<Self::Pending, DeviceError> {
        autoreleasepool(|_| {
            if commands.number != self.submitted + 1 {
                return Err(MetalError::Order.into());
            }
            commands.end();
            let event: &ProtocolObject<dyn MTLEvent> = ProtocolObject::from_ref(&*self.event);
            commands.buffer.encodeSignalEvent_value(event, commands.number);
            if let Some(set) = self.resident.as_ref().filter(|_| self.changed) {
                set.commit();
                set.requestResidency();
                self.changed = false;
            }
            // SAFETY: Metal retains the block until it has been called.
            unsafe { commands.buffer.addCompletedHandler(RcBlock::as_ptr(&self.handler)) };
            commands.buffer.commit();
            self.submitted = commands.number;
            Ok(commands.buffer.clone())
        })
    }

    fn finish(&mut self, pending: Self::Pending) -> Result<u64, DeviceError> {
        autoreleasepool(|_| {
            let has_ended = || {
                matches!(pending.status(), MTLCommandBufferStatus::Completed | MTLCommandBufferStatus::Error)
            };
            // There is no point in waiting for submissions after one that is stuck.
            let patience = if self.stuck { Duration::ZERO } else { PATIENCE };
            if !self.done.wait(patience, has_ended) {
                self.stuck = true;
                return Err(stuck());
            }
            if pending.status() == MTLCommandBufferStatus::Error {
                // It may have failed before its signal, for which later command buffers wait.
                self.event.setSignaledValue(self.submitted);
                let error = pending.error();
                let message =
                    |error: &Retained<objc2_foundation::NSError>| error.localizedDescription().to_string();
                let code = error.as_ref().map_or(0, |error| error.code());
                let message = error.as_ref().map_or_else(String::new, message);
                return Err(MetalError::of_commands(code, message).into());
            }
            let seconds = pending.GPUEndTime() - pending.GPUStartTime();
            Ok((seconds.max(0.0) * 1e9) as u64)
        })
    }
}
