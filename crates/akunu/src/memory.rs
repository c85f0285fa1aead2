//! Messages about memory plans, and allocations that may be large.

use std::collections::HashMap;
use std::hash::Hash;

pub use akunu_cpu::available_memory;
use akunu_plan::{DeviceError, MemoryPlan};

/// An empty vector with a capacity that depends on the model or its context, so that it may be large.
pub(crate) fn reserved<T>(what: &str, count: usize) -> Result<Vec<T>, DeviceError> {
    let mut items = Vec::new();
    items.try_reserve_exact(count).map_err(|_| refused::<T>(what, count))?;
    Ok(items)
}

/// Makes room for more items, with space to grow, in a vector that may be large.
pub(crate) fn grow<T>(what: &str, items: &mut Vec<T>, more: usize) -> Result<(), DeviceError> {
    items.try_reserve(more).map_err(|_| refused::<T>(what, items.len().saturating_add(more)))
}

/// Makes room for one more entry, with space to grow, in a map that may be large.
pub(crate) fn grow_map<K: Eq + Hash, V>(what: &str, map: &mut HashMap<K, V>) -> Result<(), DeviceError> {
    map.try_reserve(1).map_err(|_| refused::<(K, V)>(what, map.len() + 1))
}

fn refused<T>(what: &str, count: usize) -> DeviceError {
    let bytes = count.saturating_mul(size_of::<T>()) as u64;
    DeviceError::OutOfMemory { device: "the host", what: what.into(), bytes }
}

/// `1.50 GiB`, `12.00 KiB`, `512 B`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

/// A table of the plan's memory, for messages.
pub(crate) fn listing(plan: &MemoryPlan) -> String {
    let lines = [
        ("weights, copied", plan.weights_copied),
        ("constants", plan.constants),
        ("KV cache", plan.kv),
        ("slots of weights", plan.slots),
        ("slots of experts", plan.expert_slots),
        ("scratch", plan.scratch),
        ("rows and logits", plan.io),
        ("device's own", plan.workspace),
        ("allocated in all", plan.allocated()),
        ("for loading", plan.loading),
        ("weights, in place", plan.weights_in_place),
        ("of these, made", plan.weights_made),
    ];
    lines.map(|(name, bytes)| format!("  {name:<18} {:>12}", human(bytes))).join("\n")
}

/// Advice if a plan needs too much memory: the largest context that fits, if any.
pub(crate) fn advice(plan: &MemoryPlan, context: usize, available: u64) -> String {
    const LEAST_USEFUL: u64 = 64;
    if plan.kv == 0 {
        return "take a smaller model, shorter texts (-c) or a machine with more memory".into();
    }
    let fixed = plan.peak() - plan.kv + plan.weights_made;
    let fits = available.saturating_sub(fixed) as f64 / (plan.kv as f64 / context as f64);
    // A round number below what fits.
    let fits = (fits * 0.95) as u64;
    let round = if fits >= 1024 { fits / 256 * 256 } else { fits / 16 * 16 };
    if round >= LEAST_USEFUL {
        format!("a context of {round} would fit (-c {round}), or take a smaller KV type (--kv-type q8_0)")
    } else {
        "take a smaller model or a machine with more memory".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_formatted_in_a_suitable_unit() {
        let told = [0, 1023, 1024, 1536 << 20, 3 << 50].map(human);
        assert_eq!(told, ["0 B", "1023 B", "1.00 KiB", "1.50 GiB", "3.00 PiB"]);
    }

    #[test]
    fn advice_names_a_context_that_fits() {
        let plan = MemoryPlan { kv: 100_000_000, scratch: 1000, ..MemoryPlan::default() };
        assert!(
            advice(&plan, 100_000, 10_001_000).contains("-c 9472"),
            "{}",
            advice(&plan, 100_000, 10_001_000)
        );
        assert!(advice(&plan, 100_000, 10_000).contains("smaller model"));
    }
}
