//! An indirect command buffer: a table's launches, encoded once.

use akunu_gpu::Encoder;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLComputePipelineState, MTLDevice, MTLIndirectCommandBuffer, MTLIndirectCommandBufferDescriptor,
    MTLIndirectCommandType, MTLIndirectComputeCommand, MTLResourceOptions,
};

use super::commands::{Buffer, Pipeline, size};
use crate::error::MetalError;

/// It retains buffers and pipelines itself, because Metal's object does not.
#[derive(Debug)]
pub struct MetalIndirect {
    pub(super) commands: Retained<ProtocolObject<dyn MTLIndirectCommandBuffer>>,
    /// The index of the command that is being encoded.
    index: usize,
    /// The buffers that commands use, without duplicates.
    pub(super) buffers: Vec<Buffer>,
    pub(super) pipelines: Vec<Pipeline>,
}

impl MetalIndirect {
    pub(super) fn new(
        device: &ProtocolObject<dyn MTLDevice>,
        dispatches: usize,
        buffers: usize,
    ) -> Result<MetalIndirect, MetalError> {
        let descriptor = MTLIndirectCommandBufferDescriptor::new();
        descriptor.setCommandTypes(MTLIndirectCommandType::ConcurrentDispatch);
        descriptor.setInheritPipelineState(false);
        descriptor.setInheritBuffers(false);
        descriptor.setMaxKernelBufferBindCount(buffers);
        // SAFETY: 1 is below Metal's limit of 31.
        unsafe { descriptor.setMaxKernelThreadgroupMemoryBindCount(1) };
        let options = MTLResourceOptions::StorageModeShared;
        // SAFETY: the supported GPUs have no limit on the number of commands that a table (of hundreds) could reach.
        let commands = unsafe {
            device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options(
                &descriptor,
                dispatches.max(1),
                options,
            )
        };
        let commands = commands.ok_or(MetalError::Refused { what: "indirect command buffer" })?;
        Ok(MetalIndirect { commands, index: 0, buffers: Vec::new(), pipelines: Vec::new() })
    }

    fn command(&self) -> Retained<ProtocolObject<dyn MTLIndirectComputeCommand>> {
        assert!(self.index < self.commands.size());
        // SAFETY: the index is below the number of commands for which it was created.
        unsafe { self.commands.indirectComputeCommandAtIndex(self.index) }
    }
}

fn push_new<T: PartialEq + Clone>(all: &mut Vec<T>, one: &T) {
    if !all.contains(one) {
        all.push(one.clone());
    }
}

impl Encoder for MetalIndirect {
    type Pipeline = Pipeline;
    type Buffer = Buffer;

    fn pipeline(&mut self, pipeline: &Pipeline) {
        debug_assert!(pipeline.supportIndirectCommandBuffers());
        self.command().setComputePipelineState(pipeline);
        push_new(&mut self.pipelines, pipeline);
    }

    fn buffers(&mut self, buffers: &[Buffer], offsets: &[usize]) {
        let command = self.command();
        for (index, (buffer, offset)) in buffers.iter().zip(offsets).enumerate() {
            // SAFETY: indices are below the descriptor's count; offsets were checked against the buffers' lengths when
            // they were bound.
            unsafe { command.setKernelBuffer_offset_atIndex(buffer, *offset, index) };
            push_new(&mut self.buffers, buffer);
        }
    }

    fn threadgroup(&mut self, bytes: u32) {
        // SAFETY: every function declares threadgroup memory with index 0.
        unsafe { self.command().setThreadgroupMemoryLength_atIndex(bytes as usize, 0) };
    }

    fn dispatch(&mut self, groups: [u32; 3], threads: u32) {
        self.command()
            .concurrentDispatchThreadgroups_threadsPerThreadgroup(size(groups), size([threads, 1, 1]));
        self.index += 1;
    }

    fn barrier(&mut self) {
        self.command().setBarrier();
    }
}
