//! A command buffer that is being written.

use std::ops::Range;
use std::ptr::NonNull;

use akunu_gpu::{Commands, Encoder};
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSRange;
use objc2_metal::{
    MTLBarrierScope, MTLBuffer, MTLCommandBuffer, MTLCommandEncoder, MTLComputeCommandEncoder,
    MTLComputePipelineState, MTLIndirectCommandBuffer, MTLResource, MTLResourceUsage, MTLSize,
};

use super::indirect::MetalIndirect;

pub(super) type Buffer = Retained<ProtocolObject<dyn MTLBuffer>>;
pub(super) type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;

/// What an indirect command buffer needs of the encoder that runs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// Its buffers, named: where no residency set has them.
    pub(super) buffers: bool,
    /// Its pipelines, set once.
    pub(super) pipelines: bool,
}

/// One encoder, whose launches may run at the same time.
#[derive(Debug)]
pub struct MetalCommands {
    pub(super) buffer: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
    pub(super) encoder: Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>,
    /// What the shared event will count to when it is done.
    pub(super) number: u64,
    needs: Needs,
    /// The indirect command buffer that was run last, for which that was done: it is only compared.
    ready: *const ProtocolObject<dyn MTLIndirectCommandBuffer>,
    ended: bool,
}

impl MetalCommands {
    pub(super) fn new(
        buffer: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
        encoder: Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>,
        number: u64,
        needs: Needs,
    ) -> MetalCommands {
        MetalCommands { buffer, encoder, number, needs, ready: std::ptr::null(), ended: false }
    }

    pub(super) fn end(&mut self) {
        if !self.ended {
            self.encoder.endEncoding();
            self.ended = true;
        }
    }

    fn make_ready(&mut self, indirect: &MetalIndirect) {
        if std::ptr::eq(self.ready, &raw const *indirect.commands) {
            return;
        }
        self.ready = &raw const *indirect.commands;
        let buffers = indirect.buffers.iter().filter(|_| self.needs.buffers);
        for buffer in buffers {
            let resource: &ProtocolObject<dyn MTLResource> = ProtocolObject::from_ref(&**buffer);
            self.encoder.useResource_usage(resource, MTLResourceUsage::Read | MTLResourceUsage::Write);
        }
        let pipelines = indirect.pipelines.iter().filter(|_| self.needs.pipelines);
        for pipeline in pipelines {
            self.encoder.setComputePipelineState(pipeline);
            // Of nothing.
            self.encoder.dispatchThreadgroups_threadsPerThreadgroup(size([0; 3]), size([0; 3]));
        }
    }
}

impl Drop for MetalCommands {
    /// Metal stops a program that lets go of an encoder which was not ended.
    fn drop(&mut self) {
        self.end();
    }
}

pub(super) fn size([width, height, depth]: [u32; 3]) -> MTLSize {
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

impl Commands for MetalCommands {
    type Indirect = MetalIndirect;

    fn run(&mut self, indirect: &MetalIndirect, dispatches: Range<usize>) {
        assert!(dispatches.end <= indirect.commands.size());
        self.make_ready(indirect);
        let range = NSRange::new(dispatches.start, dispatches.len());
        // SAFETY: the commands are there, and were all encoded when the table was prepared; the prepared table keeps them, and what they use.
        unsafe { self.encoder.executeCommandsInBuffer_withRange(&indirect.commands, range) };
    }
}
