//! The one face that every model shows, whatever file it comes from.

use akunu_format::{Metadata, Region, TensorInfo};

use crate::ModelConfig;

pub trait WeightProvider: std::fmt::Debug + Send + Sync {
    fn config(&self) -> &ModelConfig;

    /// In file order.
    fn tensors(&self) -> &[TensorInfo];

    fn tensor(&self, name: &str) -> Option<&TensorInfo>;

    /// What the file has instead of [`WeightProvider::tensors`], where it stacks some of them (`attn_qkv`) or keeps
    /// facts of the configuration as tensors.
    fn stored(&self) -> &[TensorInfo] {
        self.tensors()
    }

    fn regions(&self) -> &[Region];

    /// GGUF metadata (the vocabulary is in there), where the file is GGUF.
    fn metadata(&self) -> Option<&Metadata> {
        None
    }

    /// In GGUF files F32 tensors start at a multiple of 4 bytes in memory, all others but MXFP4's at a multiple of 2.
    /// SafeTensors start anywhere: MLX pads nothing.
    fn tensor_bytes(&self, tensor: &TensorInfo) -> &[u8] {
        &self.regions()[tensor.region].bytes()[tensor.offset..tensor.offset + tensor.bytes]
    }

    /// The bytes of each plane; those that a type does not have are empty.
    fn plane_bytes(&self, tensor: &TensorInfo) -> [&[u8]; 3] {
        let mut planes: [&[u8]; 3] = [&[]; 3];
        for (plane, place) in planes.iter_mut().zip(tensor.places()) {
            *plane = &self.regions()[place.region].bytes()[place.offset..place.offset + place.bytes];
        }
        planes
    }
}
