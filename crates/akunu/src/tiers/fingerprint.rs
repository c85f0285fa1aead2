//! The name of a model and its cache: what must be equal for keys and values of one process to be those of another.

use akunu_cpu::Isa;
use akunu_plan::{Capabilities, ModelPlan};
use sha2::{Digest, Sha256};

use crate::Model;
use crate::blocks::Name;

/// Counts changes of the numbers that devices compute, or of the layout of a block.
const ARITHMETIC: u32 = 1;

/// Of each so many bytes of a tensor, the first [`SAMPLE`] are read: all of a model would take seconds.
const EVERY: usize = 1 << 20;
const SAMPLE: usize = 1 << 10;

pub(crate) fn fingerprint(model: &Model, plan: &ModelPlan, capabilities: &Capabilities) -> Name {
    let mut hasher = Sha256::new();
    let mut add = |part: &str| {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    };
    let cache = &plan.cache;
    add(concat!("Akunu ", env!("CARGO_PKG_VERSION")));
    add(&format!("{ARITHMETIC} {} {}", capabilities.name, numerics(capabilities)));
    add(&format!("{} {:?}", plan.options.kv.name(), capabilities.keys));
    add(&format!("{} {} {}", cache.block, cache.heads, cache.row_bytes));
    if cache.ranks > 1 {
        add(&format!("{} ranks", cache.ranks));
    }
    add(&format!("{:?}", plan.config));
    let weights = model.weights();
    for tensor in weights.tensors() {
        add(&format!("{} {} {:?}", tensor.name, tensor.dtype.name(), tensor.shape));
    }
    for place in weights.tensors().iter().flat_map(|tensor| tensor.places()) {
        let region = weights.regions()[place.region].for_once();
        let bytes = &region.bytes()[place.offset..][..place.bytes];
        bytes.chunks(EVERY).for_each(|part| hasher.update(&part[..part.len().min(SAMPLE)]));
        hasher.update(&bytes[bytes.len().saturating_sub(SAMPLE)..]);
    }
    Name(hasher.finalize().into())
}

/// On CPUs, all canonical instruction sets compute the same numbers. Other devices say in their detail what they are.
fn numerics(capabilities: &Capabilities) -> &str {
    let isa = capabilities.detail.split(',').next().unwrap_or_default();
    match Isa::from_name(isa) {
        _ if capabilities.name != "cpu" => &capabilities.detail,
        Some(isa) if !isa.is_canonical() => isa.name(),
        _ => "canonical",
    }
}
