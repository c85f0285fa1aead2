//! The common interface of models from any kind of file.

use akunu_format::{Metadata, Region, TensorInfo};

use crate::ModelConfig;

pub trait WeightProvider: std::fmt::Debug + Send + Sync {
    fn config(&self) -> &ModelConfig;

    /// In file order.
    fn tensors(&self) -> &[TensorInfo];

    fn tensor(&self, name: &str) -> Option<&TensorInfo>;

    /// The tensors as stored in the file. They differ from [`WeightProvider::tensors`] if some are fused (`attn_qkv`)
    /// or if configuration values are stored as tensors.
    fn stored(&self) -> &[TensorInfo] {
        self.tensors()
    }

    fn regions(&self) -> &[Region];

    /// GGUF metadata, including the vocabulary, if the file is GGUF.
    fn metadata(&self) -> Option<&Metadata> {
        None
    }

    /// The bytes of the vocabulary's tokens in the order of their ranks, if the file has a vocabulary in this form.
    fn ranked_tokens(&self) -> Option<Vec<&[u8]>> {
        None
    }

    /// In GGUF files, F32 tensors are aligned to 4 bytes in memory, and all others except MXFP4 to 2. SafeTensors data
    /// has no alignment, as MLX adds no padding, and GGML files have none.
    fn tensor_bytes(&self, tensor: &TensorInfo) -> &[u8] {
        &self.regions()[tensor.region].bytes()[tensor.offset..tensor.offset + tensor.bytes]
    }

    /// The bytes of each plane; planes that a type does not have are empty.
    fn plane_bytes(&self, tensor: &TensorInfo) -> [&[u8]; 3] {
        let mut planes: [&[u8]; 3] = [&[]; 3];
        for (plane, place) in planes.iter_mut().zip(tensor.places()) {
            *plane = &self.regions()[place.region].bytes()[place.offset..place.offset + place.bytes];
        }
        planes
    }
}
