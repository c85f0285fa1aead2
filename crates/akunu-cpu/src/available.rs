//! Memory that is free.

use std::fs::read_to_string;

use crate::control_groups::{Controller, control_groups, memory_left};

/// Memory that can be allocated without swapping: `MemAvailable` of Linux, or less if a control group limits it. `None` if
/// unknown.
pub fn available_memory() -> Option<u64> {
    if cfg!(miri) {
        return None;
    }
    let system = mem_available(&read_to_string("/proc/meminfo").ok()?)?;
    let groups = control_groups(Controller::Memory);
    Some(groups.iter().filter_map(|group| memory_left(group)).fold(system, u64::min))
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    8192 kB\n";
        assert_eq!(mem_available(text), Some(8 << 20));
        assert_eq!(mem_available("MemTotal: 5 kB\n"), None);
    }
}
