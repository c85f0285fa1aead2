//! What the machine has: cores and memory.

/// Physical cores that this process may use: affinity and cgroup quotas count.
pub fn physical_cores() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    distinct_cores().map_or(allowed, |cores| cores.clamp(1, allowed))
}

/// Distinct (package, core) pairs among the processors that this thread may run on.
#[cfg(target_os = "linux")]
fn distinct_cores() -> Option<usize> {
    // SAFETY: a set of bits, for which zeroes are valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is as large as is said.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return None;
    }
    let mut cores = std::collections::BTreeSet::new();
    for cpu in 0..libc::CPU_SETSIZE as usize {
        // SAFETY: below the set's size.
        if unsafe { libc::CPU_ISSET(cpu, &set) } {
            let read = |what: &str| {
                std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{what}")).ok()
            };
            cores.insert((read("physical_package_id")?, read("core_id")?));
        }
    }
    Some(cores.len())
}

#[cfg(not(target_os = "linux"))]
fn distinct_cores() -> Option<usize> {
    None
}

/// Bytes that may still be allocated, as far as the system says: free memory, or what a cgroup leaves of it.
pub(crate) fn available_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max")
        .map(|max| max.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)));
    Some(group.unwrap_or(u64::MAX).min(kib * 1024))
}
