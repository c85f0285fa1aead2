//! Memory that is free.

use std::fs::read_to_string;
use std::path::Path;

/// Memory that can be allocated without swapping: `MemAvailable` of Linux, or less if a control group limits it. `None` if
/// unknown.
pub fn available_memory() -> Option<u64> {
    if cfg!(miri) {
        return None;
    }
    let system = mem_available(&read_to_string("/proc/meminfo").ok()?)?;
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    // The line of version 2. Any parent group may have a limit.
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
    let limit = Path::new(own)
        .ancestors()
        .filter_map(|group| group_available(Path::new("/sys/fs/cgroup").join(group).as_path()));
    Some(limit.fold(system, u64::min))
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The memory left by a control group's limit. The page cache counts as used there, but can be reclaimed.
fn group_available(group: &Path) -> Option<u64> {
    let number = |name: &str| read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = number("memory.max")?;
    let used = number("memory.current")?;
    let stat = read_to_string(group.join("memory.stat")).unwrap_or_default();
    let of = |name: &str| {
        let value = stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        value.unwrap_or(0)
    };
    let files = of("inactive_file ") + of("active_file ");
    Some(limit.saturating_sub(used.saturating_sub(files)))
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

    #[test]
    fn a_control_group_limits() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(group_available(dir.path()), None);
        for (name, text) in [
            ("memory.max", "1000\n"),
            ("memory.current", "700\n"),
            ("memory.stat", "anon 500\nfile 200\ninactive_file 150\nactive_file 50\n"),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        assert_eq!(group_available(dir.path()), Some(500));
        std::fs::write(dir.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(group_available(dir.path()), None);
    }
}
