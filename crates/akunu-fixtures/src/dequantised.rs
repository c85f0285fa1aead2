//! A model's weights as f32.

use akunu_arch::{ModelConfig, WeightProvider};
use akunu_format::blocks::dequantize_nth;
use akunu_format::{DType, Metadata, Region, TensorInfo};

/// The weights of another model, each dequantised to f32. Commands round activations to int8 only where they meet
/// quantised weights, so such a model gives the logits that the quantised file has without any rounding of
/// activations: those of goldens, which other programs computed.
#[derive(Debug)]
pub struct Dequantised {
    config: ModelConfig,
    metadata: Option<Metadata>,
    tensors: Vec<TensorInfo>,
    regions: Vec<Region>,
}

impl Dequantised {
    /// With the columns of each matrix in the order of the model.
    pub fn of(model: &dyn WeightProvider) -> Dequantised {
        Dequantised::ordered(model, true)
    }

    /// With columns where the file has them, and their order beside them.
    pub fn as_stored(model: &dyn WeightProvider) -> Dequantised {
        Dequantised::ordered(model, false)
    }

    fn ordered(model: &dyn WeightProvider, restores: bool) -> Dequantised {
        let (mut tensors, mut bytes) = (Vec::new(), Vec::new());
        for tensor in model.tensors() {
            let offset = bytes.len();
            let (planes, mut row) = (model.plane_bytes(tensor), vec![0.0; tensor.cols()]);
            for index in 0..tensor.rows() {
                dequantize_nth(tensor.dtype, planes, index, &mut row).unwrap();
                if restores {
                    tensor.restore_order(&mut row);
                }
                bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
            }
            tensors.push(TensorInfo {
                dtype: DType::F32,
                region: 0,
                offset,
                bytes: bytes.len() - offset,
                scales_offsets: [None; 2],
                order: if restores { None } else { tensor.order.clone() },
                ..tensor.clone()
            });
        }
        Dequantised {
            config: model.config().clone(),
            metadata: model.metadata().cloned(),
            tensors,
            regions: vec![Region::from_vec(bytes)],
        }
    }
}

impl WeightProvider for Dequantised {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    fn regions(&self) -> &[Region] {
        &self.regions
    }

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }
}
