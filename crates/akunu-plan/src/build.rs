use akunu_format::WeightProvider;

use crate::Capabilities;
use crate::plan::{ModelPlan, PlanError, PlanOptions};

pub(crate) fn plan(
    weights: &dyn WeightProvider,
    _capabilities: &Capabilities,
    _options: &PlanOptions,
) -> Result<ModelPlan, PlanError> {
    Err(PlanError::Unsupported(format!("{} tensors", weights.tensors().len())))
}

/// A 1-D tensor as f32, `add` added.
pub(crate) fn vector_values(dtype: akunu_format::DType, bytes: &[u8], add: f32) -> Vec<f32> {
    use akunu_format::DType;
    let pairs = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    match dtype {
        DType::F16 => pairs().map(|b| half::f16::from_le_bytes(b).to_f32() + add).collect(),
        DType::BF16 => pairs().map(|b| half::bf16::from_le_bytes(b).to_f32() + add).collect(),
        _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]) + add).collect(),
    }
}
