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
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        let text = format!("{} in {} of {}", tensor.name, tensor.dtype.name(), shape.join(" × "));
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

/// The first value in which two configurations differ, of each, in words.
pub(super) fn differing_value(own: &str, other: &str) -> (String, String) {
    let mut values = own.split(", ").zip(other.split(", "));
    let differ = values.find(|(own, other)| own != other).unwrap_or((own, other));
    (in_words(differ.0), in_words(differ.1))
}

/// A value of a configuration without the names of types around it: `Rope { head_count: Some(8)` as `head count 8`.
fn in_words(text: &str) -> String {
    let value = text.rsplit("{ ").next().unwrap_or(text).trim_end_matches([' ', '}', ']']);
    let (name, value) = value.split_once(": ").unwrap_or(("", value));
    let value = match value.strip_prefix("Some(") {
        Some(value) => value.strip_suffix(')').unwrap_or(value),
        None if value == "None" => "none",
        None => value.trim_start_matches('['),
    };
    format!("{} {value}", name.replace('_', " ")).trim().to_string()
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
        assert_eq!(differing_value(&own, &other), ("size 64".into(), "size 80".into()));
        let [own, other] = [1, 2].map(|end| format!("Config {{ rope: Rope {{ base: 1.0 }}, end: {end} }}"));
        assert_eq!(differing_value(&own, &other), ("end 1".into(), "end 2".into()));
        let [own, other] = ["Some(1024)", "None"]
            .map(|window| format!("Config {{ end: 1, sliding_window: {window}, base: 1.0 }}"));
        assert_eq!(
            differing_value(&own, &other),
            ("sliding window 1024".into(), "sliding window none".into())
        );
    }
}
