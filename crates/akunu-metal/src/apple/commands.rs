//! A command buffer that is being encoded.

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

/// What the encoder that executes an indirect command buffer has to set for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// `useResource` for its buffers, if there is no residency set with them.
    pub(super) buffers: bool,
    /// Its pipelines, set once on the encoder.
    pub(super) pipelines: bool,
}

/// A compute encoder whose launches may run concurrently.
#[derive(Debug)]
pub struct MetalCommands {
    pub(super) buffer: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
    pub(super) encoder: Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>,
    /// The value of the shared event once it is done.
    pub(super) number: u64,
    needs: Needs,
    /// The indirect command buffer that was prepared last; the pointer is only compared, never dereferenced.
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
            // An empty dispatch.
            self.encoder.dispatchThreadgroups_threadsPerThreadgroup(size([0; 3]), size([0; 3]));
        }
    }
}

impl Drop for MetalCommands {
    /// Metal aborts the process if an encoder is released before it has been ended.
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
        // SAFETY: `count` objects and offsets are read from arrays of that length. Indices are below Metal's limit of
        // 31, because a command has at most 16 bindings; offsets were checked against the buffers' lengths when they
        // were bound, and a program keeps its buffers alive.
        unsafe { self.encoder.setBuffers_offsets_withRange(objects, offsets, NSRange::new(0, count)) };
    }

    fn threadgroup(&mut self, bytes: u32) {
        // SAFETY: every function declares threadgroup memory with index 0.
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
        // SAFETY: the range is within the commands, which were all encoded when the table was prepared; the prepared
        // table keeps them, and the buffers and pipelines that they use, alive.
        unsafe { self.encoder.executeCommandsInBuffer_withRange(&indirect.commands, range) };
    }
}
