//! What must be equal in all processes: the model, and the plan for it.

use akunu_arch::WeightProvider;
use akunu_plan::ModelPlan;
use sha2::{Digest, Sha256};

use super::message::Digests;

/// Of each tensor, so many of its first bytes: models of one shape differ in them.
const SAMPLE: usize = 64;

/// A part of the model: what is said of it, and its digest.
pub(super) struct Entry {
    pub(super) text: String,
    pub(super) digest: u64,
}

fn digest(parts: &[&[u8]]) -> u64 {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let bytes: [u8; 32] = hasher.finalize().into();
    u64::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]])
}

/// The configuration, and each tensor in the order of the file.
pub(super) fn model(weights: &dyn WeightProvider) -> Vec<Entry> {
    let config = format!("{:?}", weights.config());
    let of_config = Entry { digest: digest(&[config.as_bytes()]), text: config };
    let of_tensors = weights.tensors().iter().map(|tensor| {
        let text = format!("{} {} {:?}", tensor.name, tensor.dtype.name(), tensor.shape);
        let bytes = weights.tensor_bytes(tensor);
        Entry { digest: digest(&[text.as_bytes(), &bytes[..bytes.len().min(SAMPLE)]]), text }
    });
    std::iter::once(of_config).chain(of_tensors).collect()
}

/// The first entry in which a worker's model is not the leader's.
pub(super) fn first_difference(own: &[Entry], leaders: &[u64]) -> Option<usize> {
    let differs = own.iter().zip(leaders).position(|(own, leaders)| own.digest != *leaders);
    differs.or_else(|| (own.len() != leaders.len()).then(|| own.len().min(leaders.len())))
}

/// The number of the configuration among the entries of a model.
pub(super) const CONFIG: usize = 0;

/// The first value in which two configurations differ, of each.
pub(super) fn differing_value<'a>(own: &'a str, other: &'a str) -> (&'a str, &'a str) {
    let value = |text: &'a str| text.rsplit("{ ").next().unwrap_or(text).trim_end_matches([' ', '}']);
    let mut values = own.split(", ").zip(other.split(", "));
    values.find(|(own, other)| own != other).map_or((own, other), |(own, other)| (value(own), value(other)))
}

/// The tables as they are printed, and the buffers.
pub(super) fn plan(plan: &ModelPlan) -> Digests {
    let buffers: Vec<String> =
        plan.buffers.iter().map(|buffer| format!("{} {}", buffer.name, buffer.bytes)).collect();
    let tables = plan
        .tables
        .iter()
        .map(|(kind, table)| (kind.name().to_string(), digest(&[table.render(&plan.buffers).as_bytes()])));
    tables.chain([("memory".to_string(), digest(&[buffers.join("\n").as_bytes()]))]).collect()
}

/// The first part in which two plans differ.
pub(super) fn differing_part(own: &Digests, leaders: &Digests) -> Option<String> {
    let missing = || own.iter().find(|part| !leaders.contains(part));
    leaders.iter().find(|part| !own.contains(part)).or_else(missing).map(|(name, _)| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_configurations_one_value_is_shown() {
        let [own, other] =
            [64, 80].map(|size| format!("Config {{ rope: Rope {{ size: {size}, base: 1.0 }}, end: 2 }}"));
        assert_eq!(differing_value(&own, &other), ("size: 64", "size: 80"));
        let [own, other] = [1, 2].map(|end| format!("Config {{ rope: Rope {{ base: 1.0 }}, end: {end} }}"));
        assert_eq!(differing_value(&own, &other), ("end: 1", "end: 2"));
    }
}
