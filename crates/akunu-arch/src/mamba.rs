//! Layers with a state (Mamba 2): their sizes, and what their tensors become when a file is opened.

use akunu_format::{DType, FormatError, Region, TensorInfo};
use half::{bf16, f16};

use crate::MambaFacts;

/// Tensors that GGUF files name without `.weight`.
const BARE: [&str; 2] = [".ssm_a", ".ssm_d"];
/// The logarithms of the rates by which states decay, in Hugging Face files; in GGUF files the negative rates.
const DECAY: &str = ".ssm_a.weight";
const NORM: &str = ".ssm_norm.weight";

impl MambaFacts {
    /// Elements of all heads.
    pub fn inner(self) -> usize {
        self.heads * self.head_dim
    }

    /// Channels of the convolution: the heads' inputs, and B and C of each group.
    pub fn channels(self) -> usize {
        self.inner() + 2 * self.groups * self.state_size
    }

    /// What the first matrix of a layer gives: the gates of all heads, the channels, and a step of each head.
    pub fn mixed(self) -> usize {
        self.inner() + self.channels() + self.heads
    }

    /// The problem of sizes that are out of range, or that contradict each other.
    pub(crate) fn contradiction(self) -> Option<String> {
        /// Far above any real model, and far below where products overflow.
        const MAX: usize = 1 << 16;
        let MambaFacts { taps, state_size, groups, heads, head_dim } = self;
        let sizes = [taps, state_size, groups, heads, head_dim];
        if sizes.iter().any(|&size| size == 0 || size > MAX) || inner_is_too_large(heads, head_dim) {
            return Some(format!(
                "{heads} heads of {head_dim} in {groups} groups, with states of {state_size} and {taps} taps, are out of range"
            ));
        }
        if !(2..=8).contains(&taps) {
            return Some(format!("a convolution over {taps} positions; 2 to 8 are supported"));
        }
        (!heads.is_multiple_of(groups))
            .then(|| format!("{heads} heads are not a multiple of {groups} groups"))
    }
}

fn inner_is_too_large(heads: usize, head_dim: usize) -> bool {
    heads.checked_mul(head_dim).is_none_or(|inner| inner > 1 << 24)
}

/// Gives tensors of a GGUF file the names and shapes that they have here: all names end with their kind, and vectors are not
/// matrices.
pub(crate) fn from_gguf(tensors: &mut [TensorInfo]) {
    for tensor in tensors {
        if BARE.iter().any(|bare| tensor.name.ends_with(bare)) {
            tensor.name.push_str(".weight");
        } else if !tensor.name.ends_with(NORM) {
            continue;
        }
        tensor.shape = vec![tensor.shape.iter().product()];
    }
}

/// The name and the shape that a tensor has in a GGUF file: numbers of heads are rows of one, and the norm has a row for each
/// group.
pub fn in_gguf<'a>(name: &'a str, shape: &[usize], mamba: Option<MambaFacts>) -> (&'a str, Vec<usize>) {
    let bare = name.strip_suffix(".weight").filter(|name| BARE.iter().any(|bare| name.ends_with(bare)));
    match (bare, mamba, shape) {
        (Some(bare), _, &[heads]) => (bare, vec![heads, 1]),
        (None, Some(MambaFacts { groups: groups @ 2.., .. }), &[inner]) if name.ends_with(NORM) => {
            (name, vec![groups, inner / groups])
        }
        _ => (bare.unwrap_or(name), shape.to_vec()),
    }
}

/// Replaces the logarithms in Hugging Face files by the negative rates that GGUF files have.
pub(crate) fn decays(tensors: &mut [TensorInfo], regions: &mut Vec<Region>) -> Result<(), FormatError> {
    for tensor in tensors.iter_mut().filter(|tensor| tensor.name.ends_with(DECAY)) {
        let bytes = &regions[tensor.region].bytes()[tensor.offset..tensor.offset + tensor.bytes];
        let pairs = || bytes.as_chunks::<2>().0.iter().copied();
        let logarithms: Vec<f32> = match tensor.dtype {
            DType::F32 => bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            DType::F16 => pairs().map(|bytes| f16::from_le_bytes(bytes).to_f32()).collect(),
            DType::BF16 => pairs().map(|bytes| bf16::from_le_bytes(bytes).to_f32()).collect(),
            other => {
                let problem = format!("it is {other}, which is not supported here");
                return Err(FormatError::tensor(&tensor.name, problem));
            }
        };
        let rates: Vec<u8> =
            logarithms.iter().flat_map(|log| (-f64::from(*log).exp() as f32).to_le_bytes()).collect();
        (tensor.dtype, tensor.region, tensor.offset, tensor.bytes) =
            (DType::F32, regions.len(), 0, rates.len());
        regions.push(Region::from_vec(rates));
    }
    Ok(())
}
