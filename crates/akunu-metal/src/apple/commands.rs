//! A command buffer that is being written.

use std::ptr::NonNull;

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSRange;
use objc2_metal::{
    MTLBarrierScope, MTLBuffer, MTLCommandBuffer, MTLCommandEncoder, MTLComputeCommandEncoder,
    MTLComputePipelineState, MTLSize,
};

use crate::Encoder;

pub(super) type Buffer = Retained<ProtocolObject<dyn MTLBuffer>>;
pub(super) type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;

/// One encoder, whose launches may run at the same time.
#[derive(Debug)]
pub struct MetalCommands {
    pub(super) buffer: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
    pub(super) encoder: Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>,
    /// What the shared event will count to when it is done.
    pub(super) number: u64,
    ended: bool,
}

impl MetalCommands {
    pub(super) fn new(
        buffer: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
        encoder: Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>,
        number: u64,
    ) -> MetalCommands {
        MetalCommands { buffer, encoder, number, ended: false }
    }

    pub(super) fn end(&mut self) {
        if !self.ended {
            self.encoder.endEncoding();
            self.ended = true;
        }
    }
}

impl Drop for MetalCommands {
    /// Metal stops a program that lets go of an encoder which was not ended.
    fn drop(&mut self) {
        self.end();
    }
}

fn size([width, height, depth]: [u32; 3]) -> MTLSize {
    MTLSize { width: width as usize, height: height as usize, depth: depth as usize }
}

impl Encoder for MetalCommands {
    type Pipeline = Pipeline;
    type Buffer = Buffer;

    fn pipeline(&mut self, pipeline: &Pipeline) {
        self.encoder.setComputePipelineState(pipeline);
    }

    fn buffers(&mut self, buffers: &[Buffer], offsets: &[usize]) {
        let count = buffers.len().min(offsets.len());
        // A `Retained` is a pointer to its object.
        let objects = NonNull::from(buffers).cast::<*const ProtocolObject<dyn MTLBuffer>>();
        let offsets = NonNull::from(offsets).cast::<usize>();
        // SAFETY: as many objects and offsets are read as there are. Numbers are below Metal's 31, for a command has 16 bindings at most;
        // offsets were checked against buffers' lengths when they were bound, and a program keeps its buffers alive.
        unsafe { self.encoder.setBuffers_offsets_withRange(objects, offsets, NSRange::new(0, count)) };
    }

    fn threadgroup(&mut self, bytes: u32) {
        // SAFETY: every function has threadgroup memory number 0.
        unsafe { self.encoder.setThreadgroupMemoryLength_atIndex(bytes as usize, 0) };
    }

    fn dispatch(&mut self, groups: [u32; 3], threads: u32) {
        self.encoder.dispatchThreadgroups_threadsPerThreadgroup(size(groups), size([threads, 1, 1]));
    }

    fn barrier(&mut self) {
        self.encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
    }
}
