//! Compiled functions: one library per text, one pipeline per function, each compiled once.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::ptr::NonNull;
use std::thread;

use akunu_kernels::{Function, METAL_ENTRY, metal_text};
use objc2::available;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError, NSString};
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineDescriptor, MTLComputePipelineState, MTLDataType, MTLDevice,
    MTLFunction, MTLFunctionConstantValues, MTLLanguageVersion, MTLLibrary, MTLPipelineOption,
};

use super::archive::Archive;
use super::commands::Pipeline;
use crate::error::MetalError;

type Device = Retained<ProtocolObject<dyn MTLDevice>>;
type Library = Retained<ProtocolObject<dyn MTLLibrary>>;

#[derive(Debug)]
pub(super) struct Code {
    device: Device,
    /// By text.
    libraries: HashMap<String, Library>,
    pipelines: HashMap<Function, Pipeline>,
    archive: Archive,
    /// Pipelines must support indirect command buffers.
    indirect: bool,
}

/// A function that has not been compiled yet.
struct Missing<'a> {
    function: &'a Function,
    text: String,
}

impl Code {
    pub(super) fn new(device: &Device, indirect: bool, kept: Option<&Path>) -> Code {
        let (libraries, pipelines) = (HashMap::new(), HashMap::new());
        Code { device: device.clone(), libraries, pipelines, archive: Archive::open(device, kept), indirect }
    }

    /// One pipeline per function, in order.
    pub(super) fn pipelines(&mut self, functions: &[&Function]) -> Result<Vec<Pipeline>, MetalError> {
        let mut seen = HashSet::new();
        let mut missing = Vec::new();
        for &function in functions {
            if !self.pipelines.contains_key(function) && seen.insert(function) {
                missing.push(Missing { function, text: metal_text(function) });
            }
        }
        self.compile_libraries(&missing)?;
        let mut wanted = Vec::new();
        for Missing { function, text } in &missing {
            let library = self.libraries[text].clone();
            match self.archived(&*descriptor(function, &library, self.indirect)?) {
                Some(pipeline) => self.insert(function, pipeline)?,
                None => wanted.push((*function, library)),
            }
        }
        for ((function, library), pipeline) in wanted.iter().zip(self.build_all(&wanted)) {
            let pipeline = pipeline?;
            self.archive.add(&*descriptor(function, library, self.indirect)?);
            self.insert(function, pipeline)?;
        }
        self.archive.keep();
        Ok(functions.iter().map(|function| self.pipelines[*function].clone()).collect())
    }

    /// Leaks the pipelines, which the GPU may still be using.
    pub(super) fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.pipelines));
    }

    fn insert(&mut self, function: &Function, pipeline: Pipeline) -> Result<(), MetalError> {
        checked(function, &pipeline)?;
        self.pipelines.insert(function.clone(), pipeline);
        Ok(())
    }

    /// Compiles the new texts, on all cores.
    fn compile_libraries(&mut self, missing: &[Missing<'_>]) -> Result<(), MetalError> {
        let mut seen = HashSet::new();
        let new = missing.iter().filter(|m| !self.libraries.contains_key(&m.text) && seen.insert(&m.text));
        let new: Vec<&Missing<'_>> = new.collect();
        let device = &self.device;
        let compiled = on_all_cores(&new, |missing| compile(device, missing));
        for (missing, library) in new.iter().zip(compiled) {
            self.libraries.insert(missing.text.clone(), library?);
        }
        Ok(())
    }

    fn build_all(&self, wanted: &[(&Function, Library)]) -> Vec<Result<Pipeline, MetalError>> {
        let (device, indirect) = (&self.device, self.indirect);
        on_all_cores(wanted, |(function, library)| {
            let descriptor = descriptor(function, library, indirect)?;
            let none = MTLPipelineOption::empty();
            device
                .newComputePipelineStateWithDescriptor_options_reflection_error(&descriptor, none, None)
                .map_err(|error| log(function, &error))
        })
    }

    /// The pipeline in the archive.
    fn archived(&self, descriptor: &MTLComputePipelineDescriptor) -> Option<Pipeline> {
        let archive = self.archive.archive()?;
        descriptor.setBinaryArchives(Some(&NSArray::from_retained_slice(std::slice::from_ref(archive))));
        let option = MTLPipelineOption::FailOnBinaryArchiveMiss;
        self.device
            .newComputePipelineStateWithDescriptor_options_reflection_error(descriptor, option, None)
            .ok()
    }
}

/// Runs `run` on as many threads as there are cores, each with a share of the work.
fn on_all_cores<T: Sync, R: Send>(work: &[T], run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let share = work.len().div_ceil(threads).max(1);
    let run = &run;
    thread::scope(|scope| {
        let shares: Vec<_> = work
            .chunks(share)
            .map(|share| scope.spawn(move || autoreleasepool(|_| share.iter().map(run).collect::<Vec<R>>())))
            .collect();
        shares
            .into_iter()
            .flat_map(|share| share.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn log(function: &Function, error: &NSError) -> MetalError {
    MetalError::Compile { function: function.name.clone(), log: error.localizedDescription().to_string() }
}

fn compile(device: &Device, missing: &Missing<'_>) -> Result<Library, MetalError> {
    let options = MTLCompileOptions::new();
    // The first has bfloat; the second has the fence that orders writes between the threadgroups of a launch.
    let has_fences = available!(macos = 15.0, ios = 18.0);
    let version = if has_fences { MTLLanguageVersion::Version3_2 } else { MTLLanguageVersion::Version3_1 };
    options.setLanguageVersion(version);
    // The kernels call fma explicitly where operations may be fused. `mathMode` is newer than macOS 14.
    #[allow(deprecated, reason = "what replaces it is newer than the oldest system that is supported")]
    options.setFastMathEnabled(false);
    device
        .newLibraryWithSource_options_error(&NSString::from_str(&missing.text), Some(&options))
        .map_err(|error| log(missing.function, &error))
}

fn descriptor(
    function: &Function,
    library: &Library,
    indirect: bool,
) -> Result<Retained<MTLComputePipelineDescriptor>, MetalError> {
    let values = MTLFunctionConstantValues::new();
    for (index, (_, value)) in function.constants.iter().enumerate() {
        // SAFETY: the call reads 32 bits from the pointer; the text numbers its function constants in this order.
        unsafe {
            values.setConstantValue_type_atIndex(NonNull::from(value).cast(), MTLDataType::UInt, index);
        }
    }
    let entry = library
        .newFunctionWithName_constantValues_error(&NSString::from_str(METAL_ENTRY), &values)
        .map_err(|error| log(function, &error))?;
    entry.setLabel(Some(&NSString::from_str(&function.name)));
    let descriptor = MTLComputePipelineDescriptor::new();
    descriptor.setLabel(Some(&NSString::from_str(&function.name)));
    descriptor.setComputeFunction(Some(&entry));
    // The compiler limits registers for this number of threads.
    descriptor.setMaxTotalThreadsPerThreadgroup(threads(function) as usize);
    descriptor.setSupportIndirectCommandBuffers(indirect);
    Ok(descriptor)
}

/// Threads of a threadgroup.
fn threads(function: &Function) -> u32 {
    function.constants.iter().find(|(name, _)| *name == "THREADS").map_or(0, |(_, threads)| *threads)
}

fn checked(function: &Function, pipeline: &Pipeline) -> Result<(), MetalError> {
    let (wanted, most) = (threads(function), pipeline.maxTotalThreadsPerThreadgroup());
    match wanted as usize <= most && pipeline.threadExecutionWidth() == 32 {
        true => Ok(()),
        false => Err(MetalError::Threads { function: function.name.clone(), wanted, most }),
    }
}
